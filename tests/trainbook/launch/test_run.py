"""A configuration with its data, lengths in steps; and the smoke test, which leaves nothing."""

import pytest
import torch

from lib import checkpoint, prepared
from lib.errors import TrainingFailed
from lib.machine import memory
from trainbook import launch
from trainbook.launch import smoke

pytestmark = pytest.mark.usefixtures("quick")


def test_epochs_become_steps_and_are_printed(toy):
    run = launch.prepare(toy({"training.epochs": 2}))
    assert run.config.training.max_steps == 10  # 2 * 37 / 8, rounded up
    assert run.lengths == [
        "training.epochs 2 -> training.max_steps 10 (samples 37, effective batch 8)"
    ]


SLOTS = [(0, 8, 1), (1, 8, 1), (2, 8, 2), (2, 9, 1), (4, 6, 3)]


@pytest.mark.parametrize(("cards", "batch", "slots"), SLOTS)
def test_without_slots_a_run_has_one_for_each_card_that_the_batch_divides(
    toy, monkeypatch, cards, batch, slots
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    config, _ = prepared.as_run(toy({"training.effective_batch": batch}), {})
    assert config.training.micro_batch_slots == slots


@pytest.mark.parametrize("slots", [1, 2])
def test_a_run_that_resumes_without_the_key_keeps_its_slots(toy, monkeypatch, slots, tmp_path, cut):
    given = {"training.micro_batch_slots": slots}
    cut(None)
    launch.train(toy({**given, "run.name": "whole"}))
    cut(5)
    launch.train(toy(given))
    cut(None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2 if slots == 1 else 0)
    assert prepared.as_run(toy({"run.name": "new"}), {})[0].training.micro_batch_slots == 3 - slots
    assert launch.train(toy()).step == 12
    resumed, _ = checkpoint.load_newest(tmp_path / "runs" / "toy" / "checkpoints")
    whole, _ = checkpoint.load_newest(tmp_path / "runs" / "whole" / "checkpoints")
    for name, value in whole.tensors["model"].items():
        assert torch.equal(resumed.tensors["model"][name], value)


def test_the_smoke_test_measures_leaves_nothing_and_stops_above_92_percent_of_the_card(
    toy, tmp_path, monkeypatch
):
    run = launch.prepare(toy())
    text = smoke.test(run)
    for phase in ("after load", "after forward", "after backward", "after optimizer step", "peak"):
        assert phase in text
    assert "3 steps in micro-batches of 8, fp32" in text
    assert "12 steps take" in text
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(memory, "card_bytes", lambda: 10 * 2**30)
    monkeypatch.setattr(memory, "peak_bytes", lambda: int(9.3 * 2**30))
    with pytest.raises(
        TrainingFailed, match=r'9.30 of the card\'s 10.00 GiB \(93%.*"training.micro_batch": 4'
    ):
        smoke.test(run)
    monkeypatch.setattr(memory, "peak_bytes", lambda: int(9.1 * 2**30))
    assert "9.10" in smoke.test(run)
