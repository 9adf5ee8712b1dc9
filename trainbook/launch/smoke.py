"""A few real steps before the full run: they show that everything works, what it takes, and whether there is room."""

import tempfile
from pathlib import Path

from lib.config import with_changes
from lib.errors import TrainingFailed
from lib.machine import memory
from lib.machine.memory import GIB
from lib.planner import FITS, fp16
from lib.report.progress import choose_progress
from lib.text import aligned, duration
from lib.training import loop
from lib.training.loop import Outcome
from lib.training.session import start_session
from trainbook.launch import checks
from trainbook.launch.run import Run, processes


def test(run: Run) -> str:
    """Trains some steps; returns memory and speed. Raises BadInput; TrainingFailed above 92 % of the card."""
    for doubt in checks.require(run.task, run.config):
        print(f"Warning: {doubt.value}", flush=True)
    outcome = few_steps(run)
    card = memory.card_bytes()
    if outcome.state.precision == "fp16":
        finding = fp16.examine_fp16(run.task, run.config).finding
        if finding.verdict != "ok":
            print(f"Warning: {finding.value}. {finding.advice}", flush=True)
    if card and outcome.peak_bytes > FITS * card:
        smaller = (
            f'Set OVERRIDES = {{"training.micro_batch": {max(1, outcome.state.micro_batch // 2)}}}'
        )
        peak = f"{outcome.peak_bytes / GIB:.2f} of the card's {card / GIB:.2f} GiB ({outcome.peak_bytes / card:.0%})"
        why = f"above {FITS:.0%} a longer batch or the evaluation may run out"
        advice = f"{smaller}, or recompute more layers (training.gradient_checkpointing)."
        raise TrainingFailed(f"The smoke test's peak is {peak}; {why}. {advice}")
    measured = {**outcome.allocated, "peak": outcome.peak_bytes}
    rows = [
        ["GiB", "measured"],
        *([phase, f"{size / GIB:.2f}"] for phase, size in measured.items()),
    ]
    count = processes(run.config)
    state = outcome.state
    total = run.config.training.max_steps
    expected = ""
    where = f" on one of {count} GPUs, which share the work in the full run" if count > 1 else ""
    if option := run.predicted:
        predicted = {**option.prediction.moments, "peak": option.prediction.peak_bytes}
        cells = (
            f"{predicted[phase] / GIB:.2f}" if phase in predicted else "" for phase in measured
        )
        rows = [[*row, cell] for row, cell in zip(rows, ["predicted", *cells], strict=True)]
        fast, slow = (1 / seconds for seconds in option.step_seconds)
        expected = f" (predicted {slow:.2f} to {fast:.2f}{f' on all {count}' if count > 1 else ''})"
    whole = duration(total / max(outcome.steps_per_second * count, 1e-9))
    return (
        f"{aligned(rows)}\n{state.step} steps in micro-batches of {state.micro_batch}, {state.precision}: "
        f"{outcome.steps_per_second:.2f} steps/s{where}{expected}. {total:,} steps take {whole} without evaluations."
    )


def few_steps(run: Run) -> Outcome:
    steps = run.config.training.smoke_steps
    changes = dict.fromkeys(("training.max_steps", "training.evaluate_every_steps"), steps)
    changes |= {
        "training.log_every_steps": max(1, steps // 5),
        "checkpoint.keep_last": 0,
        "checkpoint.keep_best": 0,
    }
    session = start_session(run.config.session.minutes, run.config.session.margin_seconds)
    with tempfile.TemporaryDirectory() as folder:
        return loop.train(
            run.task, with_changes(run.config, changes), Path(folder), session, choose_progress()
        )
