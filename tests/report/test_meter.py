"""Means, speed and waiting between two logged rows."""

import json
import math
import os
import time

import numpy as np
import pytest
import torch

from lib import ranks
from lib.checkpoint import contents
from lib.machine import memory
from lib.report.meter import Meter, add_figures

CPU = torch.device("cpu")


def saved(meter):
    """What a checkpoint keeps of a meter, through JSON, whose keys are sorted."""
    pending = json.loads(json.dumps(meter.pending(), sort_keys=True, allow_nan=False))
    assert all(contents._is_pending(name, value) for name, value in pending.items())
    return pending


def test_waiting_is_the_time_inside_next_and_speed_leaves_out_pauses(
    monkeypatch,
):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter = Meter({}, CPU)

    def batches():
        for _ in range(4):
            now[0] += 3.0
            yield "batch"

    for _ in meter.waiting(batches()):
        now[0] += 1.0
        if not meter.steps_per_second():
            now[0] += 6.0  # a GPU loads its kernels
        meter.add({})
        with meter.paused():
            now[0] += 100.0
    assert meter.steps_per_second() == pytest.approx(1 / 4), "of a row that has not ended"
    row = meter.row(8)
    assert row["data_wait_share"] == round(12 / 22, 4)
    assert row["samples_per_second"] == round(4 / 22 * 8, 4)
    assert meter.steps_per_second() == pytest.approx(1 / 4)


def resumed(meter):
    """The meter and the one that resumes it, one skipped step later."""
    meters = meter, Meter(saved(meter), CPU)
    for of_session in meters:
        of_session.add({})
    return meters


def losses_of(meter):
    return {name: value for name, value in meter.row(8).items() if name.startswith("loss")}


def test_a_row_that_begins_before_a_resume_has_the_mean_of_all_its_steps():
    whole = Meter({}, CPU)
    whole.add({"a": torch.tensor(1.5)})
    meters = resumed(whole)  # one step is skipped
    for meter in meters:
        meter.add({"a": torch.tensor(0.25), "b": torch.tensor(4.0)})
    assert [*map(losses_of, meters)] == [{"loss": 2.875, "loss_a": 0.875, "loss_b": 2.0}] * 2
    assert "loss" not in Meter({}, CPU).pending()


def test_the_loss_of_many_terms_is_the_same_after_a_resume_in_mid_row():
    whole = Meter({}, CPU)
    whole.add(
        {"z": torch.tensor(1e8), "b": torch.tensor(-1e8), "a": torch.tensor(1e-9)}
    )  # whose order decides the sum
    before, after = (meter.row(8)["loss"] for meter in resumed(whole))
    assert before == after == pytest.approx(1e-9)


# What two ranks return in six steps, of one sample or three each: spread widely, so that fp32 rounds every sum.
def returned(step, rank):
    return {
        "t": torch.tensor(10.0 ** (step - 4) / (3 + rank)),
        "f": 0.1 * step + rank,
        "b": torch.tensor(step > 2),
    }


FIGURES = [[(returned(step, 0), 1), (returned(step, 1), 3)] for step in range(6)]


@pytest.mark.parametrize("worlds", [(1, 1, 1), (2, 1, 2)])
def test_figures_are_means_of_all_ranks_whatever_the_row_was_cut_into(worlds, monkeypatch):
    """A row of six steps is cut after each pair, and resumed with another number of ranks."""
    pending = {}
    for part, world in enumerate(worlds):
        meters = []
        for rank in range(world):
            monkeypatch.setattr(ranks, "_here", ranks._Place(rank, world))
            meters.append(Meter(pending, CPU))
        for step in FIGURES[2 * part : 2 * part + 2]:
            for rank, (figures, size) in enumerate(step):
                logged = {}
                add_figures(logged, figures, size, ["loss"])
                meters[rank % world].log(logged)
        values = []  # of all ranks, as if they ran at once
        with monkeypatch.context() as patch:
            patch.setattr(
                ranks, "gathered", lambda value, values=values: values.append(value) or values
            )
            for meter in meters:
                meter.pending()
            patch.setattr(ranks, "gathered", lambda value, values=values: values)
            pending = saved(meters[0])
    monkeypatch.setattr(ranks, "_here", ranks._Place())
    meter = Meter(pending, CPU)
    meter.add({})
    row = meter.row(8)
    for name in ("t", "f", "b"):
        pairs = [pair for step in FIGURES for pair in step]
        sums = [float(np.float32(figures[name])) * size for figures, size in pairs]
        samples = sum(size for _, size in pairs)
        assert row[name] == pytest.approx(math.fsum(sums) / samples, rel=1e-14)


def test_a_figure_that_is_not_finite_survives_a_checkpoint():
    for value in (math.inf, 1e300, torch.tensor(math.nan)):
        logged = {}
        add_figures(logged, {"f": value, "fine": 0.5}, 2, ["loss"])
        meter = Meter({}, CPU)
        meter.log(logged)
        row = resumed(meter)[1].row(8)
        assert row["f"] == pytest.approx(float(value), nan_ok=True)
        assert row["fine"] == 0.5
    assert contents._is_pending("figures", [{"f": [1.0, 1]}])
    for wrong in ([1.0], [1.0, 0], ["a", 1], 1):
        assert not contents._is_pending("figures", [{"f": wrong}])
        assert not contents._is_pending("figures", wrong)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak to reset")
def test_the_peak_on_a_cpu_is_that_since_its_reset():
    memory.reset_peak()
    before = memory.peak_bytes()
    large = torch.ones(30_000_000)
    size = large.nbytes
    del large
    assert memory.peak_bytes() > before + 0.8 * size
    memory.reset_peak()
    assert memory.peak_bytes() < before + 0.5 * size
