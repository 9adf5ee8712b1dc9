"""A run's model is looked at for convolutions that end the process on a CPU."""

import pytest
import torch
from torch import nn

from lib import launch
from lib.doctor import rehearsal
from lib.doctor.layers import check_convolutions
from tests.doctor.conftest import by_name


class Images(nn.Module):
    """Convolves the toy's samples as images of 4 x 4, in one memory format or the other."""

    def __init__(self, memory_format):
        super().__init__()
        self.memory_format = memory_format
        self.first, self.shortcut = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 1, stride=2)

    def forward(self, image):
        return self.shortcut(self.first(image).contiguous(memory_format=self.memory_format))


@pytest.mark.parametrize("memory_format, verdict", [(torch.channels_last, "bad"), (torch.contiguous_format, "ok")])
def test_a_layer_that_ends_the_process_is_named_with_the_mend(toy, monkeypatch, memory_format, verdict):
    run = launch.prepare(toy())
    image = torch.zeros(1, 1, 8, 8)
    monkeypatch.setattr(run.task, "model", lambda: Images(memory_format))
    monkeypatch.setattr(run.task, "example_batch", lambda size, device: {"image": image})
    monkeypatch.setattr(run.task, "loss", lambda model, batch: ({"loss": model(batch["image"]).sum()}, {}))
    state = rehearsal._after_one_update(run)
    found = check_convolutions(run.task, state)
    assert found.verdict == verdict and found.value.startswith("shortcut ") and state.model.training
    if verdict == "bad":
        assert "oneDNN, issue 6035" in found.advice and "x[..., ::2, ::2]" in found.advice
    else:
        assert "channels_last, which is not used" in found.value


def test_a_model_without_such_a_layer_is_ok(toy):
    found = by_name(rehearsal.check_run(toy()))["convolutions"]
    assert found.verdict == "ok" and found.value.startswith("none ")
