"""Means, speed and waiting between two logged rows."""

import json
import math
import time

import numpy as np
import pytest
import torch

from lib import ranks
from lib.checkpoint import contents
from lib.machine import memory
from lib.report.meter import Meter, add_figures


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


CPU = torch.device("cpu")


def test_the_loss_of_many_terms_is_the_same_after_a_resume_in_mid_row():
    terms = {"z": torch.tensor(1e8), "b": torch.tensor(-1e8), "a": torch.tensor(1e-9)}  # whose order decides the sum
    whole = Meter({}, CPU)
    whole.add(terms)
    saved = json.loads(json.dumps(whole.pending(), sort_keys=True))
    assert all(contents._is_sum(name, value) for name, value in saved.items())
    resumed = Meter(saved, CPU)
    resumed.add({})
    whole.add({})
    assert resumed.row(8)["loss"] == whole.row(8)["loss"] == pytest.approx(1e-9)


@pytest.mark.parametrize(
    "terms, columns",
    [({"loss"}, {"loss"}), ({"a"}, {"loss", "loss_a"}), ({"loss", "a"}, {"loss", "loss_loss", "loss_a"})],
)
def test_one_term_that_is_the_loss_has_no_second_column(terms, columns):
    meter = Meter({}, CPU)
    meter.add({term: torch.tensor(2.0) for term in terms})
    row = meter.row(8)
    assert {name for name in row if name.startswith("loss")} == columns and row["loss"] == 2 * len(terms)


# What two ranks return in six steps, of one sample or three each: spread widely, so that fp32 rounds every sum.
def returned(step, rank):
    return {"t": torch.tensor(10.0 ** (step - 4) / (3 + rank)), "f": 0.1 * step + rank, "b": torch.tensor(step > 2)}


FIGURES = [[(returned(step, rank), 1 + 2 * rank) for rank in range(2)] for step in range(6)]


def meters(saved, world, monkeypatch):
    """So many ranks' meters, and what does something on each of them, as if they ran at once."""
    monkeypatch.setattr(ranks, "world", lambda: world)

    def on(rank, call, gathered=None):
        monkeypatch.setattr(ranks, "rank", lambda: rank)
        monkeypatch.setattr(ranks, "is_first", lambda: rank == 0)
        monkeypatch.setattr(ranks, "gathered", lambda value: [value] if gathered is None else gathered)
        return call()

    made = [on(rank, lambda: Meter(saved, CPU)) for rank in range(world)]

    def together(call):
        """What the first rank's call gives, with the values that all of them gather."""
        values = []
        for rank, meter in enumerate(made):
            monkeypatch.setattr(ranks, "gathered", lambda value: values.append(value) or [value])
            monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
            call(meter)
        return on(0, lambda: call(made[0]), values)

    return made, together


def figures_of(worlds, monkeypatch):
    """The figures of a row of six steps, which is cut after each pair and goes on with another number of ranks."""
    saved = {}
    for part, world in enumerate(worlds):
        made, together = meters(saved, world, monkeypatch)
        for step in FIGURES[2 * part : 2 * part + 2]:
            for rank, (figures, size) in enumerate(step):
                logged = {}
                add_figures(logged, figures, size, ["loss"])
                made[rank % world].log(logged)
        saved = json.loads(json.dumps(together(lambda meter: meter.pending()), sort_keys=True, allow_nan=False))
        assert all(contents._is_sum(name, value) for name, value in saved.items())
    made, together = meters(saved, 1, monkeypatch)
    made[0].add({})
    return {name: value for name, value in made[0].row(8).items() if name in ("t", "f", "b")}


@pytest.mark.parametrize("worlds", [(2, 2, 2), (1, 1, 1), (1, 2, 1), (2, 1, 2)])
def test_figures_are_means_of_all_ranks_whatever_the_row_was_cut_into(worlds, monkeypatch):
    means = {}
    for name in ("t", "f", "b"):
        given = [(figures[name], size) for step in FIGURES for figures, size in step]
        means[name] = math.fsum(float(np.float32(v)) * size for v, size in given) / sum(size for _, size in given)
    found = figures_of(worlds, monkeypatch)
    assert found == pytest.approx(means, rel=1e-14)


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e300, torch.tensor(math.inf), torch.tensor(math.nan)])
def test_a_figure_that_is_not_finite_stays_what_it_is(value):
    logged = {}
    add_figures(logged, {"f": value, "fine": 0.5}, 2, ["loss"])
    meter = Meter({}, CPU)
    meter.log(logged)
    saved = json.loads(json.dumps(meter.pending(), allow_nan=False))
    assert contents._is_sum("figures", saved["figures"])
    resumed = Meter(saved, CPU)
    resumed.add({})
    row = resumed.row(8)
    assert row["f"] == pytest.approx(float(value), nan_ok=True) and row["fine"] == 0.5


@pytest.mark.parametrize(
    "wrong", [[1.0, 2], [[1.0], None, 0], [["a"], None, 1], ["all", None, 1], [[], [], 1], [[1e999], None, 1], 1]
)
def test_figures_that_no_checkpoint_has_are_damage(wrong):
    assert contents._is_sum("figures", [{"f": [[1.0], None, 1]}])
    assert not contents._is_sum("figures", [{"f": wrong}]) and not contents._is_sum("figures", wrong)
