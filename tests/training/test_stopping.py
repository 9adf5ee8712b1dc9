"""Stopping early: after so many validations without gain, the same after a kill, and never undone in silence."""

import math

import pytest

from lib.config import Training
from lib.report.metrics import read
from lib.training import optimization
from lib.training.stopping import Stopping
from lib.training.summary import Summary
from tests.training.test_loop import StopAfter, check_resume, fit, newest
from trainbook import launch
from trainbook.notebook import ended
from trainbook.outputs import packing

pytestmark = pytest.mark.usefixtures("quick")
EARLY = {
    "training.stop_after_evaluations": 3, "training.evaluate_every_steps": 2, "training.max_steps": 40,
    "optimizer.lr": 0.05, "scheduler.name": "constant", "scheduler.warmup_steps": 0,
}  # fmt: skip


@pytest.fixture
def learns_until(monkeypatch):
    """learns_until(n): from step n on the rate is 0, so no validation is better than the one before it."""

    def put(last):
        rate = lambda config, step, plateau: config.optimizer.lr * (step < last)  # noqa: E731
        monkeypatch.setattr(optimization, "learning_rate", rate)

    put(4)
    return put


def test_it_counts_validations_without_gain_in_either_direction():
    settings = Training(effective_batch=1, stop_after_evaluations=3)
    values = [3.0, 2.0, math.nan, 2.0, 1.9, math.inf, 1.95]
    for sign, direction in ((1, "min"), (-1, "max")):
        stopping = Stopping(settings, "loss", direction)
        waited = []
        for number, value in enumerate(values):
            stopping.observe(sign * value, number)
            waited.append(stopping.waited)
        assert waited == [0, 0, 1, 2, 0, 1, 2]
        assert stopping.best == (sign * 1.9)
        assert stopping.best_step == 4
        assert not stopping.is_over
        stopping.observe(sign * 2.0, 7)
        assert stopping.is_over


def test_a_run_stopped_anywhere_stops_early_at_the_same_step_with_the_same_bytes(
    toy, tmp_path, learns_until
):
    config = toy(EARLY)
    whole = fit(config, tmp_path / "whole")
    assert whole.reason == "completed"
    assert whole.state.step == 10
    assert whole.state.stopping.best_step == 4
    end = check_resume(config, tmp_path, 9)
    assert end.state["stopping"]["waited"] == 3
    (event,) = read(tmp_path / "cut-9" / "events.csv")
    assert event["step"] == "10"
    assert event["kind"] == "stopped_early"
    assert event["before"] == "40"
    assert event["after"] == "10"
    again = fit(
        config, tmp_path / "whole", resume=newest(tmp_path / "whole")
    )  # killed before its summary
    assert again.reason == "completed"
    assert again.state.step == 10
    assert again.state.stopping.early(10, 40)["evaluations"] == 3


def test_switched_on_later_it_counts_from_there_and_takes_its_own_facts_alone(
    toy, tmp_path, learns_until
):
    without = toy({**EARLY, "training.stop_after_evaluations": 0})
    fit(without, tmp_path, StopAfter(12))
    saved = newest(tmp_path)
    assert "stopping" not in saved.state
    saved.state["stopping"] = {
        "best": None,
        "best_step": 0,
        "waited": 0,
        "after": 1,
        "observe": 1,
    }  # a stranger's
    strange = fit(without, tmp_path / "strange", resume=saved)
    assert strange.state.step == 40
    del saved.state["stopping"]
    end = fit(toy(EARLY), tmp_path, resume=saved)
    assert end.state.step == 18
    assert end.state.stopping.best_step == 4


def test_it_is_completed_said_in_summary_archive_and_notebook_and_stays_so(
    toy, tmp_path, learns_until, capsys
):
    run = launch.prepare(toy(EARLY))
    summary = launch.train(run)
    text = "It stopped early, at step 10 of 40: in 3 validations in a row loss was not better than"
    assert summary.reason == "completed"
    assert summary.step == 10
    assert summary.max_steps == 40
    assert summary.metrics
    assert summary.best["step"] == 4
    assert summary.why_early.startswith(text)
    assert Summary.read(run.folder) == summary
    assert text in capsys.readouterr().out
    assert packing.is_current(tmp_path / "runs")
    assert text in ended(summary)
    files = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    longer = launch.prepare(toy({**EARLY, "training.max_steps": 60}))
    assert launch.train(longer) == summary
    assert (
        "A larger training.stop_after_evaluations, or 0, continues it." in capsys.readouterr().out
    )
    assert {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()} == files
    saved = newest(run.folder)
    learns_until(99)
    on = launch.prepare(toy({**EARLY, "training.stop_after_evaluations": 0}))
    assert fit(on.config, run.folder, resume=saved).state.step == 40
