"""Runs folds, seeds and grids in turn; what is left follows from their summaries and checkpoints."""

import contextlib
import dataclasses
import itertools
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import checkpoint
from lib.config import Config, with_changes
from lib.errors import BadInput, TrainingFailed
from lib.machine import disk, inputs, memory, platform
from lib.task import find_task, load_config
from lib.text import Criterion, aligned, duration
from lib.training import identity
from lib.training.session import start_session
from trainbook import launch
from trainbook.launch import smoke
from trainbook.launch.run import accepted_changes, as_run, prepare, processes, resolved
from trainbook.outputs.summary import Summary


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
        return platform.output_dir(self.config.output_dir) / self.name


def entries(path: Path, overrides: Mapping[str, object] | None = None) -> list[Entry]:
    """Returns the runs of `queue:`: those of `before` not completed yet, then all of grid, folds and seeds."""
    config = load_config(path, overrides)
    queue, (metric, better) = config.queue, find_task(config.task).selection
    if better == "min" and (queue.mean_at_least or queue.best_at_least):
        raise BadInput(
            f"Less {metric} is better: set queue.mean_at_least and queue.best_at_least to 0."
        )
    if queue.start_from and queue.start_from not in {Path(name).stem for name in queue.before}:
        raise BadInput(
            f"queue.start_from is {queue.start_from}. Name the configuration of that run in queue.before."
        )
    axes: dict[str, tuple[str, Sequence[Any], str]] = {
        key: (key, v, "queue.grid") for key, v in queue.grid.items()
    }
    axes |= {queue.fold_key: ("fold", range(queue.folds), "queue.folds")} if queue.folds else {}
    axes |= {"seed": ("seed", queue.seeds, "queue.seeds")} if queue.seeds else {}
    for key in axes.keys() & config.overridden:
        what = f"{key} was given as override, but {axes[key][2]} sets it in each run of the queue"
        raise BadInput(
            f"{what}. Override {axes[key][2]} too; with nothing in it there is a single run."
        )
    runs = [entry for name in queue.before for entry in _before(path.parent / name, config)]
    resumed = config.run.resume_from and inputs.find_input(
        config.run.resume_from, platform.detect()
    )
    for values in itertools.product(*(values for _, values, _ in axes.values())):
        changes: dict[str, Any] = dict(zip(axes, values, strict=True))
        words = [re.sub(r"[^A-Za-z0-9.+-]+", "_", str(value)) for value in values]
        suffixes = [
            f"-{short.rpartition('.')[2]}{w}"
            for (short, *_), w in zip(axes.values(), words, strict=True)
        ]
        name = changes["run.name"] = config.run.name + "".join(suffixes)
        changes["run.on_change"] = "stop"  # its runs are looked for by these names
        # A named earlier output may not hold every run: the others begin.
        changes["run.resume_from"] = (
            config.run.resume_from if resumed and (resumed / name).is_dir() else ""
        )
        # runs that differ in fold or seed alone take the same time
        kind = config.run.name + "".join(suffixes[: len(queue.grid)])
        runs.append(
            Entry(
                load_config(path, {**(overrides or {}), **changes}),
                kind,
                starts_from=queue.start_from,
            )
        )
    return runs


def _before(path: Path, config: Config) -> list[Entry]:
    """Returns the run of a configuration that comes before the others; none if it was completed earlier."""
    shared = {"output_dir": config.output_dir, "session.minutes": config.session.minutes}
    shared = {key: value for key, value in shared.items() if value}
    whole = load_config(path, shared)
    output_dir = platform.output_dir(config.output_dir)
    name, short = whole.run.name, f"{whole.run.name}-short"
    if folder := find_completed(name, output_dir, whole):
        print(f"{name} was completed earlier: {folder}.")
        return []
    if not config.queue.before_overrides:
        return [Entry(whole, name, is_earlier=True)]
    changed = ", ".join(f"{key} {value}" for key, value in config.queue.before_overrides.items())
    if folder := find_completed(short, output_dir):
        print(f"Only a small {name} was made earlier: {folder} (with {changed}).")
        return []
    advice = f"For the whole one run {path.name} first, and mount its output."
    print(
        f"No completed {name} was found, here or among the inputs: a small one is {short} ({changed}). {advice}"
    )
    small = load_config(path, {**shared, **config.queue.before_overrides, "run.name": short})
    return [Entry(small, short, is_earlier=True)]


def find_completed(name: str, output_dir: Path, config: Config | None = None) -> Path | None:
    """Returns a completed run with best weights, here or mounted. Raises BadInput if it is not of `config`."""
    for folder in (output_dir / name, *inputs.earlier_runs(name, platform.detect())):
        summary = Summary.read(folder)
        if summary and summary.reason == "completed" and checkpoint.steps(folder / "best"):
            if config and summary.identity:  # no data is read for that
                accepted = accepted_changes(config.run.accept_changes, folder)
                identity.check_settings(
                    summary.identity, as_run(config, [folder])[0], folder, accepted
                )
            return folder
    return None


def newest(entry: Entry) -> Summary | None:
    """Returns how far a run is, by its folder or a mounted earlier output; None before its start."""
    for folder in (entry.folder, *inputs.earlier_runs(entry.name, platform.detect())):
        summary = Summary.read(folder)
        saved = checkpoint.steps(folder / "checkpoints")
        if summary or saved:  # a run that was killed before it could write a summary has none
            summary = summary or Summary(entry.name, entry.config.task, "interrupted")
            return dataclasses.replace(summary, step=max([summary.step, *saved]))
    return None


def run_queue(runs: Sequence[Entry]) -> int:
    """Trains the runs in turn; returns the exit code. A run that fails is left for the next call."""
    failures: list[str] = []
    for number, entry in enumerate(runs, 1):
        options = entry.config.session
        if start_session(options.minutes, options.margin_seconds).stop_reason():
            print(
                f"The session ends: {entry.name} and the runs after it are left for the next one."
            )
            if not newest(entry):  # for a chain of sessions, which reads only summaries
                entry.folder.mkdir(parents=True, exist_ok=True)
                max_steps = entry.config.training.max_steps
                Summary(entry.name, entry.config.task, "deadline", max_steps=max_steps).write(
                    entry.folder
                )
            return launch.EXIT_CODES["deadline"]
        print(f"\n--- {number} of {len(runs)}: {entry.name}", flush=True)
        try:
            summary = launch.train(prepare(_brought(entry)))
        except (
            disk.Busy
        ):  # a second call of this queue, which would only get in the way of the first
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


def _brought(entry: Entry) -> Config:
    """Copies a run completed in a mounted output; returns the configuration with its initial weights."""
    output_dir = platform.output_dir(entry.config.output_dir)
    origin = find_completed(entry.name, output_dir, entry.config)
    if origin and not entry.folder.exists():
        with disk.whole(entry.folder) as aside:
            shutil.copytree(
                origin,
                aside,
                ignore=shutil.ignore_patterns("checkpoints", "*.tmp", "*.del", "*.old"),
            )
    if not entry.starts_from:
        return entry.config
    for name in (entry.starts_from, f"{entry.starts_from}-short"):
        if folder := find_completed(name, output_dir):
            return with_changes(entry.config, {"run.initial_weights": str(folder)})
    raise BadInput(f"It starts from the weights of {entry.starts_from}, which is not completed.")


def measure(runs: Sequence[Entry]) -> dict[str, float]:
    """Returns steps per second of each kind of run: from finished runs, else from a few steps that are thrown away."""
    rates = _rates(runs)
    for entry in runs:
        if entry.kind not in rates:
            print(
                f"Measuring the speed of {entry.kind} in {entry.config.training.smoke_steps} steps.",
                flush=True,
            )
            prepared = prepare(entry.config)
            rates[entry.kind] = smoke.few_steps(prepared).steps_per_second * processes(
                prepared.config
            )
            memory.clear_memory()
    return rates


def _rates(runs: Sequence[Entry]) -> dict[str, float]:
    return {
        entry.kind: s.steps_per_second
        for entry in runs
        if (s := newest(entry)) and s.steps_per_second
    }


def table(runs: Sequence[Entry], rates: Mapping[str, float] | None = None) -> str:
    """Returns a line a run with its time left, by `rates` or finished runs, and the sum in sessions."""
    rows: list[tuple[str, ...]] = [("run", "state", "step", "validation", "test", "left")]
    seconds = 0.0
    unknown = 0
    rates = rates or _rates(runs)
    for entry in runs:
        summary = newest(entry) or Summary(entry.name, "", "deadline")
        ended = summary.reason if summary.reason in ("completed", "failed") else "stopped"
        state = ended if summary.task else "not started"
        steps = summary.max_steps or entry.config.training.max_steps
        if not steps:  # a length in epochs; where the data cannot be read, training reports it
            with contextlib.suppress(BadInput), contextlib.redirect_stdout(sys.stderr):
                steps = resolved(entry.config)[1].training.max_steps
        rate = summary.steps_per_second or rates.get(entry.kind, 0.0)
        if state == "completed":
            left = 0.0
        else:
            left = (steps - summary.step) / rate if steps and rate else None
        unknown += left is None
        seconds += left or 0.0
        values = summary.best.get("value"), summary.metrics.get(summary.best.get("metric", ""))
        scores = ("" if value is None else f"{value:.4f}" for value in values)
        if steps:
            step = f"{summary.step:,}/{steps:,}"
        else:
            step = f"{summary.step:,}/?"
        rows.append((entry.name, state, step, *scores, "?" if left is None else duration(left)))
    options = runs[0].config.session
    sentence = f"About {duration(seconds)} of training is left"
    if minutes := options.minutes or platform.detect().session_minutes:
        usable = max(1.0, 60 * minutes - options.margin_seconds)
        sentence += f", {max(1, -(-seconds // usable)):.0f} sessions of {duration(60 * minutes)}"
    sentence += (
        f"{f'; {unknown} runs are not yet measured' if unknown else ''}. Evaluations come on top."
    )
    if not seconds:
        sentence = (
            f"{unknown} runs are left, of unknown speed."
            if unknown
            else "Nothing is left to train."
        )
    return f"{aligned(rows, left={0, 1})}\n{sentence}"


def scores(runs: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """Returns, for each completed run that is no earlier stage, its best `validation` and its `test` in one metric."""
    values: dict[str, dict[str, float]] = {}
    for entry in runs:
        summary = None if entry.is_earlier else newest(entry)
        if (
            summary
            and summary.reason == "completed"
            and (best := summary.best.get("value")) is not None
        ):
            test = summary.metrics.get(summary.best.get("metric", ""))
            values[entry.name] = {"validation": best} | ({} if test is None else {"test": test})
    return values


def verdict(runs: Sequence[Entry]) -> str:
    """Returns mean, best and worst validation of the runs, and the criteria, judged once all runs are completed."""
    reached = {name: values["validation"] for name, values in scores(runs).items()}
    if not reached:
        return "No run of the queue is completed yet."
    queue, (metric, better) = runs[-1].config.queue, find_task(runs[-1].config.task).selection
    ranked = sorted(reached, key=lambda name: reached[name], reverse=better == "max")
    best = ranked[0]
    worst = ranked[-1]
    mean = sum(reached.values()) / len(reached)
    direction = "larger" if better == "max" else "smaller"
    first = f"{len(reached)} runs by {metric} ({direction} is better): mean {mean:.4f}, "
    first += f"best {reached[best]:.4f} ({best}), worst {reached[worst]:.4f} ({worst})."
    judged = (("mean", mean, queue.mean_at_least), ("best", reached[best], queue.best_at_least))
    criteria = [str(Criterion(name, value, limit)) for name, value, limit in judged if limit]
    if criteria and (left := sum(not entry.is_earlier for entry in runs) - len(reached)):
        criteria = [f"{left} runs are not completed; the criteria are judged once all are."]
    return "\n".join([first, *criteria])
