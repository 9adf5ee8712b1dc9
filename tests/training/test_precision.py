"""Number format that fits the card."""

import pytest
import torch

from lib import checkpoint
from lib.config import Training
from lib.errors import BadInput, TrainingFailed
from lib.report.metrics import read
from lib.training.precision import allow_tf32, choose_precision, set_determinism
from tests.toy import Toy
from tests.training.test_loop import fit
from trainbook import launch


def test_a_cpu_trains_and_resumes_in_fp16_with_a_loss_scale(toy, quick, cut):
    half = {"training.precision": "fp16"}
    run = launch.prepare(toy(half))
    assert any("10 to 20 times as long" in line for line in run.lengths)
    cut(5)
    assert launch.train(toy({**half, "run.name": "resumed"})).reason == "deadline"
    cut(None)
    resumed = launch.train(toy({**half, "run.name": "resumed"}))
    whole = launch.train(run)
    assert whole.precision == "fp16"
    assert resumed.metrics == whole.metrics
    assert whole.metrics != launch.train(toy({"run.name": "wide"})).metrics
    saved = checkpoint.load_newest(run.folder / "checkpoints")[0]
    assert saved.state["scaler"]["scale"] == 2.0 ** (16 - whole.skipped_steps) >= 2**14


@pytest.mark.parametrize("capability, best", [((7, 5), "fp16"), ((8, 0), "bf16")])
def test_precision_goes_by_the_hardware_and_not_by_emulation(monkeypatch, capability, best):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *a, **k: True)  # what a T4 says
    cuda = torch.device("cuda", 0)
    assert choose_precision("auto", cuda) == best
    assert choose_precision("fp32", cuda) == "fp32"
    if best == "fp16":
        with pytest.raises(BadInput, match="bf16, which a card lacks"):
            choose_precision("bf16", cuda)


def test_tf32_is_for_cards_that_have_it_and_not_for_fp32(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    gpu = torch.device("cuda", 0)
    for capability in ((7, 5), (8, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        for precision in ("fp32", "fp16"):
            allow_tf32(precision, gpu)
    allow_tf32("bf16", torch.device("cpu"))
    assert asked == ["highest", "highest", "highest", "high"]


def test_backward_passes_add_up_in_one_order_on_a_cpu():
    """Without the trainer's switch the backward pass of `table[index]` differs from run to run with two threads."""
    set_determinism(Training(effective_batch=1))
    index = torch.randint(16, (20_000,), generator=torch.Generator().manual_seed(0))
    weight = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(1))

    def once():
        table = torch.zeros(16, 64, requires_grad=True)
        (table[index] * weight).sum().backward()
        return table.grad

    first = once()
    assert all(torch.equal(once(), first) for _ in range(10))


class Sinking(Toy):
    """A loss whose gradient is beyond fp16 from a step on, at every scale."""

    def loss(self, model, batch):
        sums, figures = super().loss(model, batch)
        if self.step >= 3:
            model.blocks[3].weight.register_hook(lambda gradient: gradient * torch.inf)
        return sums, figures


def test_a_sinking_loss_scale_names_its_layer_and_ends_the_run(toy, tmp_path):
    config = toy(
        {"training.precision": "fp16", "training.max_steps": 60, "training.log_every_steps": 1}
    )
    with pytest.raises(
        TrainingFailed,
        match=r"loss scale of fp16 is 0\.5 after step .* gradient of blocks.3.weight",
    ):
        fit(config, tmp_path, task=Sinking(config))
    (event,) = [
        event for event in read(tmp_path / "events.csv") if event["kind"] == "low_loss_scale"
    ]
    assert event["before"] == "64.0"
    assert event["after"] == "32.0"
    assert "blocks.3.weight is not finite" in event["text"]
