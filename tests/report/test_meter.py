"""Means, speed and waiting between two logged rows."""

import time

import pytest
import torch

from lib.machine import memory
from lib.report.meter import Meter


def test_only_the_first_row_after_a_save_has_its_peak(monkeypatch):
    peaks = iter([10, 50, 50, 50])  # before the save, in it, and at two rows: torch's maximum stands
    meter = Meter({}, torch.device("cpu"))
    monkeypatch.setattr(memory, "peak_bytes", lambda: next(peaks))
    with meter.saving():
        pass
    meter.add({})
    first = meter.row(8)
    meter.add({})
    second = meter.row(8)
    assert first["save_peak_memory_bytes"] == 50 and "save_peak_memory_bytes" not in second
    assert first["peak_memory_bytes"] == second["peak_memory_bytes"] == 50


def test_waiting_for_data_is_the_time_inside_next_and_nothing_else(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter = Meter({}, torch.device("cpu"))

    def batches():
        for _ in range(4):
            now[0] += 3.0
            yield "batch"

    for _ in meter.waiting(batches()):
        now[0] += 1.0
        meter.add({})
    assert meter.row(8)["data_wait_share"] == 0.75


def test_a_row_that_begins_before_a_resume_has_the_mean_of_all_its_steps():
    whole, first = Meter({}, torch.device("cpu")), Meter({}, torch.device("cpu"))
    losses = [{"a": torch.tensor(1.5)}, {}, {"a": torch.tensor(0.25), "b": torch.tensor(4.0)}]  # one was skipped
    for loss in losses:
        whole.add(loss)
    for loss in losses[:2]:
        first.add(loss)
    second = Meter(first.pending(), torch.device("cpu"))
    second.add(losses[2])
    row, resumed = whole.row(8), second.row(8)
    assert {name: row[name] for name in ("loss", "loss_a", "loss_b")} == {"loss": 2.875, "loss_a": 0.875, "loss_b": 2.0}
    assert all(resumed[name] == row[name] for name in ("loss", "loss_a", "loss_b"))
    assert "loss" not in Meter({}, torch.device("cpu")).pending()


def test_a_pause_is_no_training_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter = Meter({}, torch.device("cpu"))
    with meter.paused():
        now[0] += 100.0
    for _ in range(4):
        now[0] += 0.5
        meter.add({"a": torch.tensor(1.0)})
    assert meter.row(8)["samples_per_second"] == 16 and meter.steps_per_second() == pytest.approx(2)
