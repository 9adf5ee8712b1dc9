"""The smoke test measures, leaves nothing, and stops where the card is too full."""

import pytest

from lib import launch
from lib.errors import TrainingFailed
from lib.launch import smoke
from lib.machine import memory


def test_the_smoke_test_measures_and_leaves_nothing(toy, tmp_path):
    run = launch.prepare(toy())
    text = smoke.test(run)
    for phase in ("after load", "after forward", "after backward", "after optimizer step", "peak"):
        assert phase in text
    assert "3 steps in micro-batches of 8, fp32" in text and "12 steps take about" in text
    assert not (tmp_path / "runs").exists()


def test_the_smoke_test_stops_above_92_percent_of_the_card(toy, monkeypatch):
    run = launch.prepare(toy())
    monkeypatch.setattr(memory, "card_bytes", lambda: 10 * 2**30)
    monkeypatch.setattr(memory, "peak_bytes", lambda: int(9.3 * 2**30))
    with pytest.raises(TrainingFailed, match=r'9.30 of the card\'s 10.00 GiB \(93%.*"training.micro_batch": 4'):
        smoke.test(run)
    monkeypatch.setattr(memory, "peak_bytes", lambda: int(9.1 * 2**30))
    assert "9.10" in smoke.test(run)
