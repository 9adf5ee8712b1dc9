"""Shows progress: a bar in a terminal, a line or charts in a notebook, plain lines in a batch run."""

import contextlib
import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import jinja2

from lib.config import environment
from lib.machine import hardware, platform
from lib.machine.memory import GIB
from lib.report import figure
from lib.report.metrics import MACHINE_COLUMNS, read
from lib.report.printing import Informing
from lib.report.sampler import RAM_LIMIT, WAIT_LIMIT
from lib.text import duration

Item = TypeVar("Item")
Text = str | Callable[[], str]  # a function is called only if its text is shown
MARK = "\x1e"  # ASCII's record separator: before a line of standard output that is progress
_SHARE = 0.01  # of the time that drawing charts may take
_GPU_LIMIT = 0.92
_PAGE = jinja2.Environment(autoescape=True).from_string(Path(__file__).with_name("live.html").read_text("utf-8"))
_CHARTS = '<div style="display:flex;flex-wrap:wrap;gap:6px 24px;max-width:1200px">{}</div>'
_CHART = '<div style="flex:1 1 420px;min-width:0;max-width:640px">{}</div>'


class Progress:
    """One way to show progress, at most once in `interval` seconds."""

    interval = 0.2
    _last = -math.inf
    _ended = False
    _pending: tuple[int, int, Text] | None = None  # the last call, if it was not shown

    def __init__(self) -> None:
        self._guard = Informing("the display of progress")

    def update(self, done: int, total: int, text: Text) -> None:
        """Shows that `done` of `total` (0: unknown) are done; may be called as often as you like."""
        now, ended = time.monotonic(), bool(total) and done == total
        self._pending = done, total, text
        if now - self._last >= self.interval or (ended and not self._ended):
            self._last = now
            self._show_pending()
        self._ended = ended

    def note(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        self._show_pending()

    def _show_pending(self) -> None:
        if self._pending:
            (done, total, text), self._pending = self._pending, None
            with self._guard:
                self._write(done, total, text() if callable(text) else text)

    def _write(self, done: int, total: int, text: str) -> None:
        self._show(f"{done:,}/{total:,} ({done / total:.0%})  {text}" if total else text)

    def _show(self, line: str) -> None:
        print(line, flush=True)


class Plain(Progress):
    """Prints a flushed line a minute, which a log file or Kaggle's batch run keeps."""

    interval = 60.0  # a log of twelve hours stays readable: 720 lines


class Relayed(Progress):
    """Prints marked lines for the process that started this one, which shows them in its own way."""

    def _write(self, done: int, total: int, text: str) -> None:
        print(MARK + json.dumps([done, total, text]), flush=True)


class Terminal(Progress):
    """Draws a bar on the last line of a terminal, as far as it fits; other output stays above it."""

    _drawn = ""

    def _write(self, done: int, total: int, text: str) -> None:
        bar = f"[{'#' * (24 * done // total):.<24}] {done:,}/{total:,} ({done / total:.0%})  " if total else ""
        self._drawn = (bar + text)[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{self._drawn}", end="", flush=True)

    def note(self, text: str) -> None:
        print(f"\r\x1b[K{text}\n{self._drawn}" if self._drawn else f"{text}\n", end="", flush=True)

    def close(self) -> None:
        super().close()
        print("\n" if self._drawn else "", end="", flush=True)
        self._drawn = ""


class Notebook(Progress):
    """Updates one line in place, which survives in the saved notebook."""

    interval = 1.0
    _handle: Any = None

    def _show(self, line: str) -> None:
        from IPython.display import Pretty, display

        if self._handle is None:
            self._handle = display(Pretty(line), display_id=True)
        else:
            self._handle.update(Pretty(line))


def choose_progress(watched: "Watched | None" = None) -> Progress:
    """Returns the form that fits the output of this process: in a notebook with charts of a run."""
    if environment.RELAY in os.environ:
        return Relayed()
    if platform.in_notebook() and not platform.detect().batch:
        return Live(watched) if watched else Notebook()
    return Terminal() if sys.stdout.isatty() else Plain()


class Within:
    """Progress of a part, such as a validation, shown in the line of the whole."""

    def __init__(self, whole: Progress, done: int, total: int):
        self.whole, self.done, self.total = whole, done, total

    def update(self, done: int, total: int, text: Text) -> None:
        line = lambda: f"{done:,}/{total:,} {text() if callable(text) else text}"  # noqa: E731
        self.whole.update(self.done, self.total, line)


def time_left(name: str) -> Callable[[int, int], str]:
    """Returns what writes, for (done, total), the time left by the time that items have taken since this call."""
    begin = time.monotonic()
    return lambda done, total: f"{name}, {duration((time.monotonic() - begin) / max(done, 1) * (total - done))} left"


def counted(items: Iterable[Item], name: str, total: int = 0) -> Iterator[Item]:
    """Yields the items, and shows how many of them are done and the time left; `total` if they have no length."""
    progress, text, total = choose_progress(), time_left(name), len(items) if isinstance(items, Sized) else total
    for number, item in enumerate(items, 1):
        yield item
        progress.update(number, total, partial(text, number, total))
    progress.close()


@contextlib.contextmanager
def working(name: str) -> Iterator[None]:
    """Prints what the block does once it has taken a second, for work that has no steps to count."""
    timer = threading.Timer(1.0, print, (f"{name} ...",), {"flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
    """Draws a run in its cell, in place of the drawing before; the last one stays in a saved notebook."""

    interval = 3.0  # progress and gauges take a millisecond

    def __init__(self, watched: Watched):
        super().__init__()
        self.watched = watched
        self._done, self._text = 0, ""
        self._machine: dict[str, float] = {}  # the newest value of each column on the machine
        self._handles: list[Any] = [None, None]  # of the progress, and of the charts
        self._next = -math.inf  # when charts are drawn again

    def _write(self, done: int, total: int, text: str) -> None:
        is_whole = total == self.watched.steps  # or of a part, such as the test
        self._done, self._text = (done, text) if is_whole else (self._done, f"{done:,}/{total:,} {text}")
        self._display(draws=time.perf_counter() >= self._next)

    def close(self) -> None:
        super().close()
        with self._guard:
            if self._handles[0] is not None:
                self._display(draws=True)

    def _display(self, draws: bool) -> None:
        from IPython import display

        begin = time.perf_counter()
        charts = self.charts() if draws else ""
        share = self._done / max(self.watched.steps, 1)
        state = f"{self._done:,} of {self.watched.steps:,} steps ({share:.0%})"
        facts = {"title": self.watched.title, "state": state, "text": self._text, "share": share}
        head = _PAGE.render(facts, gauges=self._gauges())
        for place, html, text in ((0, head, f"{state}  {self._text}"), (1, charts, "")):
            bundle, handle = {"text/html": html, "text/plain": text}, self._handles[place]
            if html and handle is None:
                self._handles[place] = display.display(bundle, raw=True, display_id=True)
            elif html:
                handle.update(bundle, raw=True)
        if draws:  # so long that drawing takes less than its share, with a table of any length
            self._next = time.perf_counter() + 1.2 * (time.perf_counter() - begin) / _SHARE

    def charts(self) -> str:
        """Reads the table and returns its charts as HTML, or why they cannot be drawn."""
        watched = self.watched
        try:
            rows = read(watched.table) if watched.table.exists() else []
            cells = [item for row in rows if row["split"] == "train" for item in row.items()]
            machine = {*MACHINE_COLUMNS, "peak_memory_bytes"}
            self._machine = {name: float(value) for name, value in cells if name in machine and value}
            shown = [name for name in watched.shown if name != "loss"]

            def draw(names: Sequence[str], axes: Any) -> None:
                if names:
                    figure.draw_validation(axes, rows, watched.baseline, names)
                else:
                    figure.draw_losses(axes, rows)
                if watched.selection[0] in (names or ["loss"]):
                    figure.draw_best(axes, rows, *watched.selection)
                if axes.get_lines():
                    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize="small")

            names = [[], shown] if shown else [[]]  # both from the start: a second that arrives moves the page
            charts = [_CHART.format(figure.svg(partial(draw, each))) for each in names]
            return _CHARTS.format("".join(charts))
        except Exception as error:  # of whatever a task names and measures
            return escape(f"The charts cannot be drawn: {type(error).__name__}: {error}")

    def _gauges(self) -> Iterator[tuple[str, float, float, str]]:
        """Yields name, share, limit and text: RAM, the card's memory and use, and the wait for data."""
        ram, machine, total = hardware.ram(), self._machine, self.watched.gpu_bytes
        used = ram.total - ram.available
        yield "RAM", used / ram.total, RAM_LIMIT, f"{used / GIB:.1f} of {ram.total / GIB:.1f} GiB"
        if total and (taken := machine.get("gpu_memory_bytes")) is not None:
            reserved = machine.get("gpu_reserved_bytes", taken)
            sizes = {"allocated": machine.get("gpu_allocated_bytes", reserved), "reserved": reserved}
            sizes |= {"peak": machine.get("peak_memory_bytes", 0)}
            sizes |= {"predicted peak": self.watched.predicted_peak_bytes or 0}
            words = ", ".join(f"{name} {size / GIB:.1f}" for name, size in sizes.items() if size)
            yield "GPU memory", reserved / total, _GPU_LIMIT, f"{words} of {total / GIB:.1f} GiB"
        for column, name, limit in (("gpu_use", "GPU use", 1.0), ("data_wait_share", "Waiting for data", WAIT_LIMIT)):
            if column in machine:
                yield name, machine[column], limit, f"{machine[column]:.0%} of the time"
