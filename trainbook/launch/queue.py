"""Runs folds, seeds and grids in turn; the remaining runs follow from their summaries and checkpoints."""

import contextlib
import dataclasses
import itertools
import math
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import checkpoint
from lib.config import Config, Session, with_changes
from lib.errors import BadInput, TrainingFailed
from lib.machine import disk, inputs, memory, platform
from lib.prepared import as_run, in_steps
from lib.task import find_task, load_config, load_task
from lib.text import Criterion, aligned, duration
from lib.training import identity
from lib.training.session import start_session
from lib.training.summary import Summary
from trainbook import launch
from trainbook.launch import beside, smoke, together
from trainbook.launch.run import accepted_changes, prepare
from trainbook.outputs import packing


@dataclass(frozen=True)
class Entry:
    """One run of a queue. `kind` is the same for runs of the same speed: those that differ only in fold or seed."""

    config: Config
    kind: str
    is_earlier: bool = False  # one of `queue.before`, which only prepares the others
    starts_from: str = ""  # the run whose best weights it starts from

    @property
    def name(self) -> str:
        return self.config.run.name

    @property
    def folder(self) -> Path:
        return platform.output_dir(self.config.output_dir) / self.name


@dataclass(frozen=True)
class Axis:
    """A key that the runs of a queue differ in."""

    key: str
    values: Sequence[Any]
    option: str  # of the configuration that asks for it
    short: str  # in the names of runs

    def suffix(self, value: object) -> str:
        """Returns the part of a run's name for one value: "-fold0"."""
        word = re.sub(r"[^A-Za-z0-9.+-]+", "_", str(value))
        return f"-{self.short}{word}"


def entries(path: Path, overrides: Mapping[str, object] | None = None) -> list[Entry]:
    """Returns the runs of `queue:`, incomplete ones of `before` first.

    Raises BadInput.
    """
    config = load_config(path, overrides)
    _check(config)
    axes = _axes(config)
    runs = [entry for name in config.queue.before for entry in _before(path.parent / name, config)]
    for values in itertools.product(*(axis.values for axis in axes)):
        suffixes = [axis.suffix(value) for axis, value in zip(axes, values, strict=True)]
        name = config.run.name + "".join(suffixes)
        changes: dict[str, object] = {
            axis.key: value for axis, value in zip(axes, values, strict=True)
        }
        changes["run.name"] = name
        changes["run.on_change"] = "stop"  # its runs are looked for by these names
        changes["run.resume_from"] = _earlier_output(config, name)
        # Runs that differ only in fold or seed take the same time
        kind = config.run.name + "".join(suffixes[: len(config.queue.grid)])
        changed = load_config(path, {**(overrides or {}), **changes})
        runs.append(Entry(changed, kind, starts_from=config.queue.start_from))
    return runs


def _check(config: Config) -> None:
    queue = config.queue
    metric, better = find_task(config.task)(config).selection
    if better == "min" and (queue.mean_at_least or queue.best_at_least):
        raise BadInput(
            f"Less {metric} is better: set queue.mean_at_least and queue.best_at_least to 0."
        )
    if queue.start_from and queue.start_from not in {Path(name).stem for name in queue.before}:
        raise BadInput(
            f"queue.start_from is {queue.start_from}. Name the configuration of that run in queue.before."
        )


def _axes(config: Config) -> list[Axis]:
    """Returns the axes of a queue: grid, folds, seeds. Raises BadInput for one that is overridden."""
    queue = config.queue
    axes = {
        key: Axis(key, values, "queue.grid", key.rpartition(".")[2])
        for key, values in queue.grid.items()
    }
    if config.folds.number and config.folds.fold < 0:
        key = _fold_key(config)
        axes[key] = Axis(key, range(config.folds.number), "folds", "fold")
    if queue.seeds:
        axes["seed"] = Axis("seed", queue.seeds, "queue.seeds", "seed")
    for axis in axes.values():
        if axis.key in config.overridden:
            raise BadInput(
                f"{axis.key} was given as override, but {axis.option} sets it in each run of the queue. "
                f"Override {axis.option} too; with nothing in it there is a single run."
            )
    return list(axes.values())


def _fold_key(config: Config) -> str:
    """Returns the key that numbers the fold. Raises BadInput for a task that deals no folds."""
    task = find_task(config.task)
    if not task.fold_key:
        raise BadInput(
            f"folds is {config.folds.number}, and {task.__name__} deals no folds. Derive it from "
            "Supervised, or name the setting that numbers the fold in its attribute fold_key."
        )
    return task.fold_key


def _earlier_output(config: Config, name: str) -> str:
    """Returns the named earlier output if it holds this run: the other runs begin."""
    if not config.run.resume_from:
        return ""
    folder = inputs.find_input(config.run.resume_from, platform.detect())
    return config.run.resume_from if (folder / name).is_dir() else ""


def _before(path: Path, config: Config) -> list[Entry]:
    """Returns the run of a configuration in `queue.before`; empty if it was completed earlier."""
    shared: dict[str, object] = {}
    if config.output_dir:
        shared["output_dir"] = config.output_dir
    if config.session.minutes:
        shared["session.minutes"] = config.session.minutes
    whole = load_config(path, shared)
    output_dir = platform.output_dir(config.output_dir)
    name = whole.run.name
    short = f"{name}-short"
    if folder := find_completed(name, output_dir, whole):
        print(f"{name} was completed earlier: {folder}.")
        return []
    if not config.queue.before_overrides:
        return [Entry(whole, name, is_earlier=True)]
    overrides = config.queue.before_overrides
    changed = ", ".join(f"{key} {value}" for key, value in overrides.items())
    if folder := find_completed(short, output_dir):
        print(f"Only a small {name} was made earlier: {folder} (with {changed}).")
        return []
    print(
        f"No completed {name} was found, here or among the inputs: a small one is {short} ({changed}). "
        f"For the whole one run {path.name} first, and mount its output."
    )
    small = load_config(path, {**shared, **overrides, "run.name": short})
    return [Entry(small, short, is_earlier=True)]


def find_completed(name: str, output_dir: Path, config: Config | None = None) -> Path | None:
    """Returns a completed run with best weights, here or mounted. Raises BadInput if it is not of `config`."""
    for folder in (output_dir / name, *inputs.earlier_runs(name, platform.detect())):
        summary = Summary.read(folder)
        if summary and summary.reason == "completed" and checkpoint.steps(folder / "best"):
            if config and summary.identity:  # no data is read for that
                accepted = accepted_changes(config.run.accept_changes, folder)
                as_trained, _ = as_run(config, inputs.saved_facts("identity", folder))
                identity.check_settings(summary.identity, as_trained, folder, accepted)
            return folder
    return None


def newest(entry: Entry) -> Summary | None:
    """Returns how far a run is, by its folder or a mounted earlier output; None before its start."""
    for folder in (entry.folder, *inputs.earlier_runs(entry.name, platform.detect())):
        summary = Summary.read(folder)
        saved = checkpoint.steps(folder / "checkpoints")
        if summary or saved:  # a killed run may have no summary
            summary = summary or Summary(entry.name, entry.config.task, "interrupted")
            return dataclasses.replace(summary, step=max([summary.step, *saved]))
    return None


def run_queue(runs: Sequence[Entry]) -> int:
    """Trains the runs in turn; returns the exit code. A run that fails is left for the next call."""
    failures: list[str] = []
    for number, entry in enumerate(runs, 1):
        if not _may_begin(entry):
            print(
                f"The session ends: {entry.name} and the runs after it are left for the next one."
            )
            _write_unstarted(entry)
            return launch.EXIT_CODES["deadline"]
        left = [each for each in runs[number - 1 :] if not _is_completed(each)]
        if len(left) > 1 and _goes_beside(left):
            return _beside(left)
        print(f"\n--- {number} of {len(runs)}: {entry.name}", flush=True)
        try:
            summary = launch.train(prepare(_brought(entry)))
        except disk.Busy:  # a second call of this queue would only get in the way of the first
            raise
        except (TrainingFailed, BadInput) as error:
            failures.append(f"{entry.name}: {error}")
            print(
                f"{failures[-1]}\nThe queue continues with the others; the next call tries it again.",
                flush=True,
            )
            continue
        finally:
            memory.clear_memory()
        if summary.reason != "completed":
            return launch.EXIT_CODES[summary.reason]
    if failures:
        print(f"{len(failures)} of {len(runs)} runs failed:", *failures, sep="\n  ")
    return launch.EXIT_CODES["failed" if failures else "completed"]


def _may_begin(entry: Entry) -> bool:
    options = entry.config.session
    return not start_session(options.minutes, options.margin_seconds).stop_reason()


def _write_unstarted(entry: Entry) -> None:
    """Writes a summary for a chain of sessions, which reads nothing else."""
    if not newest(entry):
        entry.folder.mkdir(parents=True, exist_ok=True)
        steps = entry.config.training.max_steps
        unstarted = Summary(entry.name, entry.config.task, "deadline", max_steps=steps)
        unstarted.write(entry.folder)


def _is_completed(entry: Entry) -> bool:
    summary = Summary.read(entry.folder)
    return summary is not None and summary.reason == "completed" and not summary.missing


def _goes_beside(runs: Sequence[Entry]) -> bool:
    """Returns whether each card trains a run of its own: of two folds on two cards none waits for the other's sums."""
    has_order = any(entry.is_earlier or entry.config.device.processes for entry in runs)
    return not has_order and len(beside.cards()) > 1


def _beside(runs: Sequence[Entry]) -> int:
    """Trains runs side by side, one a card; returns the worst exit code."""
    cards = beside.cards()
    print(f"{len(runs)} runs on {len(cards)} cards, one on each at a time.", flush=True)
    configs = [_brought(entry) for entry in runs]
    codes = beside.train(configs, cards, lambda: _may_begin(runs[0]))
    for entry in runs:
        if entry.name not in codes:
            print(f"{entry.name} is left for the next session.")
            _write_unstarted(entry)
            codes[entry.name] = launch.EXIT_CODES["deadline"]
    wrong = [name for name, code in codes.items() if code not in launch.EXIT_CODES.values()]
    failures = [name for name, code in codes.items() if code == launch.EXIT_CODES["failed"]]
    if wrong or failures:
        print(f"Failed, as the lines above say: {', '.join([*failures, *wrong])}.")
        return launch.EXIT_CODES["failed"]
    for reason in ("interrupted", "deadline"):
        if launch.EXIT_CODES[reason] in codes.values():
            return launch.EXIT_CODES[reason]
    return launch.EXIT_CODES["completed"]


def _brought(entry: Entry) -> Config:
    """Copies a run completed in a mounted output; returns the configuration with its initial weights."""
    output_dir = platform.output_dir(entry.config.output_dir)
    origin = find_completed(entry.name, output_dir, entry.config)
    if origin and not entry.folder.exists():
        left_out = shutil.ignore_patterns("checkpoints", "*.tmp", "*.del", "*.old")
        with disk.whole(entry.folder) as aside:
            shutil.copytree(origin, aside, ignore=left_out)
    if not entry.starts_from:
        return entry.config
    for name in (entry.starts_from, f"{entry.starts_from}-short"):
        if folder := find_completed(name, output_dir):
            return with_changes(entry.config, {"run.initial_weights": str(folder)})
    raise BadInput(f"It starts from the weights of {entry.starts_from}, which is not completed.")


def measure(runs: Sequence[Entry]) -> dict[str, float]:
    """Returns steps per second of each kind of run: from finished runs, otherwise from a few trial steps."""
    rates = _rates(runs)
    for entry in runs:
        if entry.kind not in rates:
            print(
                f"Measuring the speed of {entry.kind} in {entry.config.training.smoke_steps} steps.",
                flush=True,
            )
            run = prepare(entry.config)
            rates[entry.kind] = smoke.few_steps(run).steps_per_second * run.processes()
            memory.clear_memory()
    return rates


def _rates(runs: Sequence[Entry]) -> dict[str, float]:
    rates = {}
    for entry in runs:
        summary = newest(entry)
        if summary and summary.steps_per_second:
            rates[entry.kind] = summary.steps_per_second
    return rates


def table(runs: Sequence[Entry], rates: Mapping[str, float] | None = None) -> str:
    """Returns a line a run with its time left, by `rates` or finished runs, and the sum in sessions."""
    rates = rates or _rates(runs)
    rows: list[Sequence[str]] = [("run", "state", "step", "validation", "test", "left")]
    times: list[float | None] = []
    for entry in runs:
        cells, left = _row(entry, rates)
        rows.append(cells)
        times.append(left)
    return f"{aligned(rows, left={0, 1})}\n{_time_left(times, runs[0].config.session)}"


def _row(entry: Entry, rates: Mapping[str, float]) -> tuple[list[str], float | None]:
    """Returns the cells of a run, and the seconds that are left, None if its speed is unknown."""
    summary = newest(entry) or Summary(entry.name, "", "deadline")
    if not summary.task:
        state = "not started"
    elif summary.reason in ("completed", "failed"):
        state = summary.reason
    else:
        state = "stopped"
    steps = summary.max_steps or entry.config.training.max_steps
    if not steps:  # a length in epochs; training reports unreadable data
        with contextlib.suppress(BadInput), contextlib.redirect_stdout(sys.stderr):
            _, config, _ = in_steps(entry.config)
            steps = config.training.max_steps
    rate = summary.steps_per_second or rates.get(entry.kind, 0.0)
    left = None
    if state == "completed":
        left = 0.0
    elif steps and rate:
        left = (steps - summary.step) / rate
    validation = summary.best.get("value")
    test = summary.metrics.get(summary.best.get("metric", ""))
    scores = ["" if value is None else f"{value:.4f}" for value in (validation, test)]
    step = f"{summary.step:,}/{f'{steps:,}' if steps else '?'}"
    time = "?" if left is None else duration(left)
    return [entry.name, state, step, *scores, time], left


def _time_left(times: Sequence[float | None], options: Session) -> str:
    """Returns a sentence on the sum of the seconds left in each run, None for one of unknown speed."""
    unknown = times.count(None)
    seconds = sum(filter(None, times))
    if not seconds:
        return (
            f"{unknown} runs are left, of unknown speed."
            if unknown
            else "Nothing is left to train."
        )
    sentence = f"About {duration(seconds)} of training is left"
    minutes = options.minutes or platform.detect().session_minutes
    if minutes:
        usable = max(1.0, 60 * minutes - options.margin_seconds)
        sessions = max(1, math.ceil(seconds / usable))
        sentence += f", {sessions} sessions of {duration(60 * minutes)}"
    if unknown:
        sentence += f"; {unknown} runs are not yet measured"
    return f"{sentence}. Evaluations come on top."


def scores(runs: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """Returns, for each completed run that is no earlier stage, its best `validation` and its `test` in one metric."""
    values: dict[str, dict[str, float]] = {}
    for entry in runs:
        summary = None if entry.is_earlier else newest(entry)
        if summary is None or summary.reason != "completed" or summary.best.get("value") is None:
            continue
        values[entry.name] = {"validation": summary.best["value"]}
        test = summary.metrics.get(summary.best.get("metric", ""))
        if test is not None:
            values[entry.name]["test"] = test
    return values


def conclude(runs: Sequence[Entry], show: Callable[[str], None]) -> None:
    """Shows what completed folds and seeds are together, lets their task hand it in, and packs it.

    A task hands in by its method `submit`, if it has one. Nothing is done while some are missing.
    """
    is_joined = False
    for kind in dict.fromkeys(entry.kind for entry in runs if not entry.is_earlier):
        entries = [entry for entry in runs if entry.kind == kind]
        summaries = [Summary.read(entry.folder) for entry in entries]
        if not all(summary and summary.reason == "completed" for summary in summaries):
            continue
        members = [
            together.Member(entry.folder, entry.config.folds.fold, entry.config.seed)
            for entry in entries
        ]
        report = together.report(kind, entries[0].config, members)
        if not report:
            continue
        show(report)
        is_joined = True
        task = load_task(entries[0].config)
        if hasattr(task, "submit"):
            task.submit(kind, entries[0].folder.parent)
    if is_joined:
        packing.package(runs[-1].folder.parent)


def verdict(runs: Sequence[Entry]) -> str:
    """Returns mean, best and worst validation of the runs, and the criteria, judged once all runs are completed."""
    reached = {name: values["validation"] for name, values in scores(runs).items()}
    if not reached:
        return "No run of the queue is completed yet."
    config = runs[-1].config
    metric, better = find_task(config.task)(config).selection
    ranked = sorted(reached, key=reached.__getitem__, reverse=better == "max")
    best = f"best {reached[ranked[0]]:.4f} ({ranked[0]})"
    worst = f"worst {reached[ranked[-1]]:.4f} ({ranked[-1]})"
    mean = sum(reached.values()) / len(reached)
    direction = "larger" if better == "max" else "smaller"
    first = f"{len(reached)} runs by {metric} ({direction} is better): mean {mean:.4f}, {best}, {worst}."
    criteria = [
        Criterion("mean", mean, config.queue.mean_at_least),
        Criterion("best", reached[ranked[0]], config.queue.best_at_least),
    ]
    lines = [str(criterion) for criterion in criteria if criterion.wanted]
    left = sum(not entry.is_earlier for entry in runs) - len(reached)
    if lines and left:
        lines = [f"{left} runs are not completed; the criteria are judged once all are."]
    return "\n".join([first, *lines])
