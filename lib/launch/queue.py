"""Folds, seeds and grids of settings as runs one after another, over as many sessions as it takes.

A queue has no state of its own: what is left to do follows from the summaries and checkpoints of its runs, in the
output folder or in a mounted earlier output. So the deadline may fall anywhere, and so may a kill.
"""

import contextlib
import io
import itertools
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import checkpoint, launch
from lib.config import Config, with_changes
from lib.errors import BadInput, TrainingFailed
from lib.launch import smoke, torchrun
from lib.launch.run import prepare
from lib.machine import inputs, memory, platform
from lib.report.summary import Summary
from lib.task import load_config
from lib.text import duration
from lib.training.session import start_session


@dataclass(frozen=True)
class Entry:
    """One run of a queue. `kind` is the same for runs of the same speed: those that differ in fold or seed alone."""

    config: Config
    kind: str
    is_earlier: bool = False  # one of `queue.before`, which only prepares the others
    starts_from: str = ""  # the run whose best weights it starts from

    @property
    def name(self) -> str:
        return self.config.run.name

    @property
    def folder(self) -> Path:
        return platform.output_dir(self.config) / self.name


@dataclass(frozen=True)
class State:
    """How far a run of a queue is. `score` is its best validation, `test` the same metric on the test."""

    state: str  # completed, stopped, failed, not started
    step: int = 0
    max_steps: int = 0
    score: float | None = None
    test: float | None = None
    steps_per_second: float = 0.0
    error: str = ""


def entries(path: Path, overrides: Mapping[str, object] | None = None) -> list[Entry]:
    """The runs of a configuration's `queue:` section, in the order in which they are worked off.

    Those of the configurations in `queue.before` come first; one that was completed earlier, here or in a mounted
    output, is left out and said, and one that has to be made here is as short as `queue.before_overrides` makes it.
    Then come all combinations of folds, seeds and grid. Raises BadInput.
    """
    config = load_config(path, overrides)
    queue = config.queue
    before = [entry for name in queue.before for entry in _before(path.parent / name, config)]
    if queue.start_from and queue.start_from not in {Path(name).stem for name in queue.before}:
        raise BadInput(
            f"queue.start_from is {queue.start_from}, which is no run of queue.before. Name its configuration there."
        )
    grid = [[(_grid_name(key, value), {key: value}) for value in values] for key, values in queue.grid.items()]
    folds = [[(f"-fold{fold}", {queue.fold_key: fold}) for fold in range(queue.folds)]] if queue.folds else []
    seeds = [[(f"-seed{seed}", {"seed": seed}) for seed in queue.seeds]] if queue.seeds else []
    found = list(before)
    for choices in itertools.product(*grid, *folds, *seeds):
        suffixes = [suffix for suffix, _ in choices]
        changes = {key: value for _, change in choices for key, value in change.items()}
        changes["run.name"] = config.run.name + "".join(suffixes)
        kind = config.run.name + "".join(suffixes[: len(grid)])
        changes["run.resume_from"] = _resume_from(config.run.resume_from, str(changes["run.name"]))
        found.append(Entry(with_changes(config, changes), kind, starts_from=queue.start_from))
    return found


def _resume_from(given: str, name: str) -> str:
    """The earlier output that was named, for those runs that it holds: the others begin."""
    holds = given and (inputs.find_input(given, platform.detect()) / name).is_dir()
    return given if holds else ""


def members(queue: Sequence[Entry], folds_of: str) -> list[Path]:
    """Returns the folders of the runs that vote: the completed folds of a workload's queue, then the runs of this one.

    The folds are those of the same size, `{folds_of}_small-fold0` for the small one, here or in a mounted earlier
    output. Returns none, and says so, while a run of this queue is not completed.
    """
    output_dir = platform.output_dir(queue[-1].config)
    own = [find_completed(entry.name, output_dir) for entry in queue if not entry.is_earlier]
    if not all(own):
        print("Not every run of the queue is completed: they vote when all are.")
        return []
    name = folds_of + ("_small" if queue[-1].kind.endswith("_small") else "")
    places = [output_dir, *inputs.mounted(platform.detect())]
    names = sorted({path.name for place in places for path in place.glob(f"{name}-fold*")})
    folds = [folder for fold in names if (folder := find_completed(fold, output_dir))]
    if not folds:
        print(f"No fold of {name} was found, here or among the inputs: the seeds vote alone.")
    return [*folds, *own]


def _grid_name(key: str, value: str) -> str:
    return f"-{key.rpartition('.')[2]}{re.sub(r'[^A-Za-z0-9.+-]+', '_', value)}"


def _before(path: Path, config: Config) -> list[Entry]:
    """The run of a configuration that comes before the others; none where it is there already."""
    shared = {"output_dir": config.output_dir, "session.minutes": config.session.minutes}
    shared = {key: value for key, value in shared.items() if value}
    whole = load_config(path, shared)
    if folder := find_completed(whole.run.name, platform.output_dir(config)):
        print(f"{whole.run.name} was completed earlier: {folder}.")
        return []
    if not config.queue.before_overrides:
        return [Entry(whole, whole.run.name, is_earlier=True)]
    short = _short(whole.run.name)
    changed = ", ".join(f"{key} {value}" for key, value in config.queue.before_overrides.items())
    if folder := find_completed(short, platform.output_dir(config)):
        print(f"Only a small {whole.run.name} was made earlier: {folder} (with {changed}).")
        return []
    print(
        f"No completed {whole.run.name} was found, neither in the output folder nor among the inputs: a small one is "
        f"made here as {short} ({changed}). For the whole one run {path.name} first, and mount its output."
    )
    small = load_config(path, {**shared, **config.queue.before_overrides, "run.name": short})
    return [Entry(small, short, is_earlier=True)]


def _short(name: str) -> str:
    return f"{name}-short"


def find_completed(name: str, output_dir: Path) -> Path | None:
    """The folder of a completed run with its best weights: in the output folder, else in a mounted earlier output."""
    places = [output_dir, *inputs.mounted(platform.detect())]
    for folder in (place / name for place in places):
        summary = Summary.read(folder)
        if summary and summary.reason == "completed" and checkpoint.steps(folder / "best"):
            return folder
    return None


def state_of(entry: Entry) -> State:
    """How far a run is, out of what lies in its folder or in a mounted earlier output."""
    places = [entry.folder, *(mount / entry.name for mount in inputs.mounted(platform.detect()))]
    for folder in places:
        summary = Summary.read(folder)
        saved = checkpoint.steps(folder / "checkpoints")
        if summary is None and not saved:
            continue
        summary = summary or Summary(entry.name, entry.config.task, "interrupted")  # killed before it could write one
        return State(
            state=summary.reason if summary.reason in ("completed", "failed") else "stopped",
            step=max([summary.step, *saved]),
            max_steps=summary.max_steps,
            score=summary.best.get("value"),
            test=summary.metrics.get(summary.best.get("metric", "")),
            steps_per_second=summary.steps_per_second,
            error=summary.error,
        )
    return State("not started")


def run_queue(found: Sequence[Entry]) -> int:
    """Works off a queue's runs until all are done or the session ends; returns the exit code of the whole.

    A run that fails is said and left for the next session, and the others go on. Each resumes by itself. 0: all are
    completed; 75: the session ended; 130: interrupted; 1: at least one failed.
    """
    failures: list[str] = []
    for number, entry in enumerate(found, 1):
        _bring_along(entry)
        if not _has_time(entry.config):
            print(f"The session ends: {entry.name} and what follows are for the next one.")
            _leave_word(entry)
            return launch.EXIT_CODES["deadline"]
        print(f"\n--- {number} of {len(found)}: {entry.name}", flush=True)
        try:
            summary = launch.train(prepare(_with_weights(entry)))
        except (TrainingFailed, BadInput) as error:
            failures.append(f"{entry.name}: {error}")
            print(f"{failures[-1]}\nThe queue goes on with the others; the next call tries this one again.", flush=True)
            continue
        finally:
            memory.clear_memory()
        if summary.reason != "completed":
            return launch.EXIT_CODES[summary.reason]
    if failures:
        print(f"{len(failures)} of {len(found)} runs failed:", *failures, sep="\n  ")
        return launch.EXIT_CODES["failed"]
    return launch.EXIT_CODES["completed"]


def _leave_word(entry: Entry) -> None:
    """A summary of a run that the deadline kept from beginning: whoever reads only summaries sees that work is left."""
    if state_of(entry).state == "not started":
        entry.folder.mkdir(parents=True, exist_ok=True)
        pending = Summary(entry.name, entry.config.task, "deadline", max_steps=entry.config.training.max_steps)
        pending.write(entry.folder)


def _bring_along(entry: Entry) -> None:
    """Copies a run that was completed in a mounted earlier output, without its checkpoints, so that this session's
    output holds the whole queue: the next one may mount nothing else."""
    origin = find_completed(entry.name, platform.output_dir(entry.config))
    if origin is None or entry.folder.exists():
        return
    aside = entry.folder.with_name(entry.folder.name + ".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(origin, aside, ignore=shutil.ignore_patterns("checkpoints", "*.tmp", "*.del", "*.old"))
    aside.rename(entry.folder)


def _has_time(config: Config) -> bool:
    session = start_session(config.session.minutes, config.session.margin_seconds)
    return session.stop_reason() is None


def _with_weights(entry: Entry) -> Config:
    """The run's configuration with the weights that it starts from. Raises BadInput where these are not there yet."""
    if not entry.starts_from:
        return entry.config
    output_dir = platform.output_dir(entry.config)
    for name in (entry.starts_from, _short(entry.starts_from)):
        if folder := find_completed(name, output_dir):
            return with_changes(entry.config, {"run.initial_weights": str(folder)})
    raise BadInput(f"It starts from the weights of {entry.starts_from}, which is not completed.")


# --- what a person sees -----------------------------------------------------------------------------------------------


def measure(found: Sequence[Entry]) -> dict[str, float]:
    """Steps per second of each kind of run: from runs of this queue, else from a few steps that are thrown away."""
    rates: dict[str, float] = {}
    for entry in found:
        if rate := state_of(entry).steps_per_second:
            rates[entry.kind] = rate
    for entry in found:
        if entry.kind not in rates:
            print(f"Measuring the speed of {entry.kind} in {entry.config.training.smoke_steps} steps.", flush=True)
            prepared = prepare(entry.config)
            rates[entry.kind] = smoke.few_steps(prepared).steps_per_second * torchrun.processes(prepared.config)
            memory.clear_memory()
    return rates


def table(found: Sequence[Entry], rates: Mapping[str, float] | None = None) -> str:
    """A line a run: its state, step, best validation and test, hours left; then the sum in hours and in sessions.

    Hours come from `rates` of `measure`, evaluations aside; without them from speeds that finished runs had.
    """
    lines = [f"{'run':<34}{'state':<13}{'step':>16}{'validation':>12}{'test':>8}{'left':>10}"]
    total, unknown = 0.0, 0
    for entry in found:
        state = state_of(entry)
        steps = state.max_steps or (_steps(entry) if rates is not None else 0)
        left = 0.0 if state.state == "completed" else _seconds_left(entry, state, steps, rates or {})
        unknown += left is None
        total += left or 0.0
        lines.append(
            f"{entry.name:<34}{state.state:<13}{f'{state.step:,}/{steps:,}' if steps else f'{state.step:,}/?':>16}"
            f"{_figure(state.score):>12}{_figure(state.test):>8}{'?' if left is None else duration(left):>10}"
        )
    return "\n".join([*lines, _projection(found, total, unknown)])


def _steps(entry: Entry) -> int:
    if entry.config.training.max_steps:
        return entry.config.training.max_steps
    with contextlib.redirect_stdout(io.StringIO()):  # what is said of the data was said where they were shown
        return prepare(entry.config).config.training.max_steps


def _seconds_left(entry: Entry, state: State, steps: int, rates: Mapping[str, float]) -> float | None:
    rate = state.steps_per_second or rates.get(entry.kind, 0.0)
    return (steps - state.step) / rate if steps and rate else None


def _projection(found: Sequence[Entry], seconds: float, unknown: int) -> str:
    if not found:
        return "The queue is empty."
    config = found[0].config
    minutes = config.session.minutes or platform.detect().session_minutes
    if not seconds and not unknown:
        return "Nothing is left to train."
    told = f"About {duration(seconds)} of training is left"
    if minutes:
        usable = max(1.0, 60 * minutes - config.session.margin_seconds)
        told += f", {max(1, -(-seconds // usable)):.0f} sessions of {duration(60 * minutes)}"
    return f"{told}{f'; {unknown} runs are not yet measured' if unknown else ''}. Evaluations come on top."


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def scores(found: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """For each completed run that is no earlier stage: `validation`, its best one, and `test`, in the same metric."""
    told: dict[str, dict[str, float]] = {}
    for entry in found:
        state = state_of(entry)
        if state.state == "completed" and state.score is not None and not entry.is_earlier:
            told[entry.name] = {"validation": state.score}
            if state.test is not None:
                told[entry.name]["test"] = state.test
    return told


def verdict(found: Sequence[Entry]) -> str:
    """The queue's criteria beside what its runs reached in validation: judged with advice, never enforced."""
    reached = [values["validation"] for values in scores(found).values()]
    if not found or not reached:
        return "No run of the queue is completed yet."
    queue = found[-1].config.queue
    mean, best = sum(reached) / len(reached), max(reached)
    lines = [f"{len(reached)} runs: mean {mean:.4f}, best {best:.4f}, worst {min(reached):.4f}."]
    for what, value, wanted in (("mean", mean, queue.mean_at_least), ("best", best, queue.best_at_least)):
        if wanted:
            lines.append(
                f"Criterion {what} >= {wanted:.2f}: {value:.4f}, {'reached' if value >= wanted else 'missed'}."
            )
    if any("missed" in line for line in lines):
        lines.append(
            "A mean that misses while the best does not speaks for uneven folds or unlucky seeds: look at the worst "
            "run. Where both miss, train longer or start from better weights."
        )
    return "\n".join(lines)


def summary(found: Sequence[Entry]) -> dict[str, Any]:
    """The queue's states and scores, for scripts."""
    return {"runs": {entry.name: state_of(entry).__dict__ for entry in found}, "scores": scores(found)}
