"""Memory helpers alone: a step retried in smaller parts, and imports in any order."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from lib.errors import BadInput, TrainingFailed
from tests.conftest import ROOT
from trainbook.memory import predict, retry_smaller

FITS = 3  # samples at once on the imagined card


class Card:
    """A model and its step on a card on which `FITS` samples fit: more end after a part of the backward pass."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.sizes = []

    def step(self, part, share):
        x, y = part["x"], part["y"]
        self.sizes.append(len(x))
        loss = (self.model(x).squeeze(1) - y).square().mean()
        (share * loss).backward()
        if len(x) > FITS:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return share * loss.item()


def batch(count):
    return {"x": torch.arange(4.0 * count).reshape(count, 4) / 10, "y": torch.ones(count)}


def test_the_gradient_of_a_retried_step_is_that_of_the_whole_batch():
    card, whole = Card(), Card()
    losses, size = retry_smaller(card.step, batch(10), card.optimizer.zero_grad)
    expected = (whole.model(batch(10)["x"]).squeeze(1) - 1).square().mean()
    expected.backward()
    assert size == FITS
    assert card.sizes == [10, 5, 3, 3, 3, 1]
    assert sum(losses) == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(card.model.weight.grad, whole.model.weight.grad, rtol=1e-5)


def test_the_size_that_fitted_is_where_the_next_batch_begins():
    card = Card()
    _, most = retry_smaller(card.step, batch(10), card.optimizer.zero_grad)
    card.sizes.clear()
    _, most = retry_smaller(card.step, batch(2), card.optimizer.zero_grad, most)
    assert most == FITS, "a last, short batch makes later ones no smaller"
    _, most = retry_smaller(card.step, batch(6), card.optimizer.zero_grad, most)
    assert card.sizes == [2, 3, 3]


def test_a_batch_that_fits_is_given_as_it_is():
    given = batch(2)
    seen = []
    retry_smaller(lambda part, share: seen.append((part, share)), given, list)
    ((part, share),) = seen
    assert part is given
    assert share == 1


def test_one_sample_that_does_not_fit_is_a_sentence():
    def step(part, share):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(TrainingFailed, match="one sample at once"):
        retry_smaller(step, torch.ones(4, 2), list)


def test_another_error_of_the_step_stays_as_it_is():
    def step(part, share):
        raise KeyError("x")

    with pytest.raises(KeyError):
        retry_smaller(step, torch.ones(4, 2), list)


@pytest.mark.parametrize(
    "given", [(torch.ones(4, 2), [torch.ones(4)]), [torch.ones(4)], torch.ones(4)]
)
def test_a_batch_may_be_nested(given):
    counts = []

    def step(part, share):
        tensor = part if isinstance(part, torch.Tensor) else part[0]
        counts.append(len(tensor))
        if len(tensor) > FITS:
            raise MemoryError
        assert type(part) is type(given)

    retry_smaller(step, given, list)
    assert counts == [4, 2, 2]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": torch.ones(4), "y": torch.ones(3)}, "have 3, 4 samples"),
        (torch.ones(0, 2), "have 0 samples"),
        (["texts", "alone"], "holds str"),
    ],
    ids=["counts", "none", "texts"],
)
def test_what_cannot_be_split_is_a_sentence(given, words):
    with pytest.raises(BadInput, match=words):
        retry_smaller(lambda part, share: None, given, list)


def test_a_plan_is_eight_lines_in_an_own_script():
    def model():
        return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def step(net):
        return net(torch.randn(64, 256, device="cuda")).mean()

    plan = predict(model, step, "t4")
    assert plan.fits
    assert "256" not in str(plan.card)
    assert plan.peak_bytes > 16 * sum(p.numel() for p in model().parameters())


@pytest.mark.parametrize(
    "lines",
    [
        "import trainbook; from lib.planner import predict; import torch",
        "import torch; from trainbook.memory import predict, retry_smaller; import lib.machine",
    ],
    ids=["trainbook first", "torch first"],
)
def test_importing_trainbook_is_enough_in_any_order(tmp_path, lines):
    """Only the package is on the path, as it is where it was installed: `lib` is found through it."""
    (tmp_path / "trainbook").symlink_to(ROOT / "trainbook")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", f"{lines}; print('imported')"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr[-2000:]
