"""A few real steps before the full run: they show that everything works, its cost, and whether it fits."""

import tempfile
from pathlib import Path

from lib.config import with_changes
from lib.errors import TrainingFailed
from lib.machine import memory
from lib.machine.memory import GIB
from lib.planner import FITS, fp16
from lib.prepared import Run
from lib.report.progress import choose_progress
from lib.text import aligned, duration
from lib.training import loop
from lib.training.loop import Outcome
from lib.training.session import start_session
from trainbook.launch import checks


def test(run: Run) -> str:
    """Trains some steps; returns memory and speed. Raises BadInput; TrainingFailed above 92 % of the card."""
    for doubt in checks.require(run.task, run.config):
        print(f"Warning: {doubt.value}", flush=True)
    outcome = few_steps(run)
    if outcome.state.precision == "fp16":
        finding = fp16.examine_fp16(run.task, run.config).finding
        if finding.verdict != "ok":
            print(f"Warning: {finding.value}. {finding.advice}", flush=True)
    _check_peak(outcome)
    return f"{_memory(run, outcome)}\n{_speed(run, outcome)}"


def _check_peak(outcome: Outcome) -> None:
    card = memory.card_bytes()
    peak = outcome.peak_bytes
    if card and peak > FITS * card:
        micro_batch = max(1, outcome.state.micro_batch // 2)
        raise TrainingFailed(
            f"The smoke test's peak is {peak / GIB:.2f} of the card's {card / GIB:.2f} GiB ({peak / card:.0%}); "
            f"above {FITS:.0%} a longer batch or the evaluation may run out. "
            f'Set OVERRIDES = {{"training.micro_batch": {micro_batch}}}, or recompute more layers '
            "(training.gradient_checkpointing)."
        )


def _memory(run: Run, outcome: Outcome) -> str:
    """Returns a table of measured memory, beside the prediction, if any."""
    measured = {**outcome.allocated, "peak": outcome.peak_bytes}
    rows = [["GiB", "measured"]]
    rows += [[phase, f"{size / GIB:.2f}"] for phase, size in measured.items()]
    if option := run.predicted:
        predicted = {**option.prediction.moments, "peak": option.prediction.peak_bytes}
        rows[0].append("predicted")
        for row, phase in zip(rows[1:], measured, strict=True):
            row.append(f"{predicted[phase] / GIB:.2f}" if phase in predicted else "")
    return aligned(rows)


def _speed(run: Run, outcome: Outcome) -> str:
    """Returns a sentence on the steps a second, and the time of the full run."""
    count = run.processes()
    where = ""
    on_all = ""
    if count > 1:
        where = f" on one of {count} GPUs, which share the work in the full run"
        on_all = f" on all {count}"
    expected = ""
    if option := run.predicted:
        fast, slow = (1 / seconds for seconds in option.step_seconds)
        expected = f" (predicted {slow:.2f} to {fast:.2f}{on_all})"
    state = outcome.state
    speed = outcome.steps_per_second
    total = run.config.training.max_steps
    whole = duration(total / max(speed * count, 1e-9))
    return (
        f"{state.step} steps in micro-batches of {state.micro_batch}, {state.precision}: "
        f"{speed:.2f} steps/s{where}{expected}. {total:,} steps take {whole} without evaluations."
    )


def few_steps(run: Run) -> Outcome:
    steps = run.config.training.smoke_steps
    changes = {
        "training.max_steps": steps,
        "training.evaluate_every_steps": steps,
        "training.log_every_steps": max(1, steps // 5),
        "checkpoint.keep_last": 0,
        "checkpoint.keep_best": 0,
    }
    config = with_changes(run.config, changes)
    session = start_session(config.session.minutes, config.session.margin_seconds)
    with tempfile.TemporaryDirectory() as folder:
        return loop.train(run.task, config, Path(folder), session, choose_progress())
