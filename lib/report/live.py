"""Shows a run while it trains in a notebook: one figure, drawn again in place, with bars for progress and memory.

It reads metrics.csv, which the training writes anyway, so that it is the same where ranks train in processes of their
own, and training does nothing for it.
"""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from lib.machine import hardware, platform
from lib.report.chart import COLOURS, DASHES, MARKS, POINTS, Best, Level, Line, chart, running_mean, thinned
from lib.report.metrics import MACHINE_COLUMNS, Tail
from lib.report.progress import Plain, Progress, Relayed, choose_progress
from lib.report.sampler import RAM_LIMIT, WAIT_LIMIT

_GIB = 2**30
_SHARE = 0.005  # of the time that drawing may take
_SECONDS = 3.0  # between two figures, while drawing takes less than that share of them
_WARNING = "#D55E00"


@dataclass(frozen=True)
class Watched:
    """A run to look at: its table, and what is drawn beside that."""

    table: Path
    title: str
    steps: int  # of the whole run
    shown: Sequence[str] = ()  # metrics of a validation
    selection: tuple[str, str] = ("loss", "min")
    baseline: Mapping[str, float] = field(default_factory=dict)
    gpu_bytes: int = 0  # of the card; 0 without one
    predicted_peak_bytes: int | None = None


class Live(Progress):
    """Draws the figure of a run in its cell, in place of the one before; the last one stays in a saved notebook."""

    interval = _SECONDS
    _handle: Any = None

    def __init__(self, watched: Watched):
        self.figure = Figure(watched)

    def _write(self, done: int, total: int, text: str) -> None:
        begin = time.perf_counter()
        self._handle = display(self.figure, done, total, text, self._handle)
        # so long that drawing takes less than its share, with a table of any length on a machine of any speed
        self.interval = max(_SECONDS, 1.2 * (time.perf_counter() - begin) / _SHARE)


class Batch(Plain):
    """Prints plain lines, and leaves the last figure in the notebook that a batch run saves."""

    _handle: Any = None
    _newest: tuple[int, int, str] | None = None

    def __init__(self, watched: Watched):
        self.figure = Figure(watched)

    def _write(self, done: int, total: int, text: str) -> None:
        self._newest = (done, total, text)
        self.figure.moved(done, total, text)
        super()._write(done, total, text)

    def close(self) -> None:
        super().close()
        if self._newest:
            with self._guard:
                self._handle = display(self.figure, *self._newest, self._handle)


def progress_of(watched: Watched) -> Progress:
    """Returns the form in which the output of this process shows a run: in a notebook with a figure of it."""
    chosen = choose_progress()
    if not platform.in_notebook() or isinstance(chosen, Relayed):
        return chosen
    return Batch(watched) if platform.detect().batch else Live(watched)


def display(figure: "Figure", done: int, total: int, text: str, handle: Any) -> Any:
    """Shows a figure in the cell, or in place of the one that `handle` showed; returns the handle.

    Where it cannot be drawn its line is shown with the reason: no run ends for a picture.
    """
    from IPython import display as notebook

    said, text = figure.moved(done, total, text)
    line = f"{said}  {text}"
    try:
        html = figure.html(said, text)
    except Exception as error:  # of whatever a task names and measures
        html = f"{escape(line)}<br>The figure cannot be drawn: {escape(f'{type(error).__name__}: {error}')}"
    bundle = {"text/html": html, "text/plain": line}
    if handle is None:
        return notebook.display(bundle, raw=True, display_id=True)
    handle.update(bundle, raw=True)
    return handle


class Figure:
    """A run's figure, of the rows that its table has by now."""

    def __init__(self, watched: Watched):
        self.watched = watched
        self._tail = Tail(watched.table)
        self._series: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
        self._epoch_steps = 0.0
        self._done = 0
        self._machine: dict[str, float] = {}  # of the last row
        self._clear()

    def _clear(self) -> None:
        self._series = defaultdict(lambda: ([], []))
        self._machine = {}

    def look(self) -> None:
        """Takes the rows that are new."""
        is_other, rows = self._tail.look()
        if is_other:
            self._clear()
        names = {
            "train": ("loss",),
            "validation": dict.fromkeys(["loss", *self.watched.shown, self.watched.selection[0]]),
        }
        for row in rows:
            step, split = int(row["step"]), row.get("split", "")
            for name in names.get(split, ()):
                if (value := _number(row.get(name))) is not None:
                    steps, values = self._series[split, name]
                    steps.append(step)
                    values.append(value)
            if split == "train":
                known = {name: _number(row.get(name)) for name in (*MACHINE_COLUMNS, "peak_memory_bytes")}
                self._machine |= {name: value for name, value in known.items() if value is not None}
                self._epoch_steps = step / epoch if (epoch := _number(row.get("epoch")) or 0.0) > 0 else 0.0

    def moved(self, done: int, total: int, text: str) -> tuple[str, str]:
        """Takes what is done of the run, or of a part of it such as the test; returns both as the figure says them."""
        if total == self.watched.steps:
            self._done = done
        else:
            text = f"{done:,}/{total:,} {text}"
        share = self._done / max(self.watched.steps, 1)
        return f"{self._done:,} of {self.watched.steps:,} steps ({share:.0%})", text

    def html(self, said: str, text: str) -> str:
        """Returns the figure as HTML, with what `moved` said above it."""
        self.look()
        charts = [self._losses()]
        if metrics := [name for name in self.watched.shown if name != "loss" and self._series["validation", name][0]]:
            charts.append(self._metrics(metrics))
        each = "".join(f'<div style="flex:1 1 420px;min-width:0;max-width:640px">{one}</div>' for one in charts)
        share = self._done / max(self.watched.steps, 1)
        return (
            '<div style="max-width:1200px;font-size:13px;line-height:20px">'
            f"<div><b>{escape(self.watched.title)}</b>&ensp;{said}</div>"
            f"{_bar(share, 12, f'{share:.0%} of the steps are done')}<div>{escape(text)}</div>"
            f'<div style="display:flex;flex-wrap:wrap;gap:6px 24px;margin:8px 0">{each}</div>{self._gauges()}</div>'
        )

    def _losses(self) -> str:
        steps, values = self._series["train", "loss"]
        places = thinned(values)
        at = [steps[place] for place in places]
        logged = [values[place] for place in places]
        lines = [
            Line("train, as logged", at, logged, "#888888", width=1, counts=False),
            Line("train, running mean", at, running_mean(values, places)),
        ]
        lines += self._validation("loss", "validation", COLOURS[1], MARKS[0])
        return chart("loss", lines, self._levels(["loss"]), self._best("loss"), self._epoch_steps)

    def _metrics(self, names: Sequence[str]) -> str:
        lines = []
        for number, name in enumerate(names):
            lines += self._validation(name, name, *_look(number))
        best = self._best(self.watched.selection[0]) if self.watched.selection[0] in names else None
        return chart("validation", lines, self._levels(names), best, self._epoch_steps)

    def _validation(self, column: str, name: str, colour: str, mark: str) -> list[Line]:
        steps, values = self._series["validation", column]
        places = thinned(values, POINTS // 4)
        at, drawn = [steps[place] for place in places], [values[place] for place in places]
        return [Line(name, at, drawn, colour, mark)] if steps else []

    def _levels(self, names: Sequence[str]) -> list[Level]:
        known = [(number, name) for number, name in enumerate(names) if name in self.watched.baseline]
        colours = [COLOURS[1]] if list(names) == ["loss"] else [_look(number)[0] for number, _ in known]
        return [
            Level(f"{name}, trivial baseline (test)", self.watched.baseline[name], colour, DASHES[number % len(DASHES)])
            for (number, name), colour in zip(known, colours, strict=False)
        ]

    def _best(self, name: str) -> Best | None:
        """Returns the best validation by what the run selects its weights by, if that is this column."""
        steps, values = self._series["validation", name]
        finite = [(value, step) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
        if name != self.watched.selection[0] or not finite:
            return None
        highest = self.watched.selection[1] == "max"
        value, step = max(finite, key=lambda pair: (pair[0] if highest else -pair[0], -pair[1]))
        return Best(step, value, f"best: {value:.4g} at step {step:,}")

    def _gauges(self) -> str:
        """Returns a bar each for RAM, the card's memory, its use, and the time that training waits for data."""
        ram, machine = hardware.ram(), self._machine
        used = ram.total - ram.available
        gauges = [_gauge("RAM", used / ram.total, f"{_gib(used)} of {_gib(ram.total)} GiB", RAM_LIMIT)]
        if self.watched.gpu_bytes and "gpu_memory_bytes" in machine:
            gauges.append(self._card(machine))
        if "gpu_use" in machine:
            gauges.append(_gauge("GPU use", machine["gpu_use"], f"{machine['gpu_use']:.0%} of the time", math.inf))
        if "data_wait_share" in machine:
            waited = machine["data_wait_share"]
            gauges.append(_gauge("Waiting for data", waited, f"{waited:.0%} of the time", WAIT_LIMIT))
        return (
            '<div style="display:grid;grid-template-columns:repeat(auto-fit,minmax(min(230px,100%),1fr));'
            f'gap:6px 24px">{"".join(gauges)}</div>'
        )

    def _card(self, machine: Mapping[str, float]) -> str:
        total, peak = self.watched.gpu_bytes, machine.get("peak_memory_bytes", 0)
        reserved = machine.get("gpu_reserved_bytes", machine["gpu_memory_bytes"])
        allocated = machine.get("gpu_allocated_bytes", reserved)
        predicted = self.watched.predicted_peak_bytes
        said = f"allocated {_gib(allocated)}, reserved {_gib(reserved)}, peak {_gib(peak)}"
        said += f" (predicted {_gib(predicted)})" if predicted else ""
        marks = {"peak": peak / total, **({"predicted": predicted / total} if predicted else {})}
        return _gauge("GPU memory", allocated / total, f"{said} of {_gib(total)} GiB", 0.92, reserved / total, marks)


def _look(number: int) -> tuple[str, str]:
    """Returns the colour and the mark of a metric's line; those of many metrics come again in other pairs."""
    return COLOURS[number % len(COLOURS)], MARKS[(number + number // len(COLOURS)) % len(MARKS)]


def _number(cell: str | None) -> float | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f}"


def _gauge(
    name: str, share: float, text: str, limit: float, behind: float = 0.0, marks: Mapping[str, float] | None = None
) -> str:
    """Returns a name, a text and a bar; above `limit` the name says so in words as well as in colour."""
    is_high = max(share, behind) > limit
    warning = f' <b style="color:{_WARNING}">high</b>' if is_high else ""
    bar = _bar(share, 8, f"{name}: {text}", behind, marks or {}, _WARNING if is_high else COLOURS[0])
    return (
        f'<div style="min-width:0"><div>{escape(name)}{warning}</div>{bar}'
        f'<div style="font-size:12px;line-height:16px">{escape(text)}</div></div>'
    )


def _bar(
    share: float,
    height: int,
    label: str,
    behind: float = 0.0,
    marks: Mapping[str, float] | None = None,
    colour: str = COLOURS[0],
) -> str:
    """Returns a bar filled to `share`, lighter to `behind`, with a line at each of the marks; a dashed one last."""

    def filled(to: float, opacity: float) -> str:
        place = f"position:absolute;left:0;top:0;bottom:0;width:{100 * min(1.0, to):.2f}%"
        return f'<div style="{place};background:{colour};opacity:{opacity}"></div>' if to > 0 else ""

    lines = "".join(
        f'<div title="{name}" style="position:absolute;top:-3px;bottom:-3px;left:{100 * min(1.0, at):.2f}%;'
        f'border-left:2px {"dashed" if number else "solid"} currentColor"></div>'
        for number, (name, at) in enumerate((marks or {}).items())
    )
    return (
        f'<div role="img" aria-label="{escape(label, quote=True)}" style="position:relative;height:{height}px;'
        f'border:1px solid #888;border-radius:2px;background:#88888820;margin:3px 0">'
        f"{filled(behind, 0.4)}{filled(share, 1.0)}{lines}</div>"
    )
