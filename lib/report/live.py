"""Shows a run while it trains in a notebook: its progress and gauges every few seconds, its charts less often.

It reads metrics.csv, which the training writes anyway, so it is the same if ranks train in processes of their own.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import jinja2

from lib.machine import hardware
from lib.machine.memory import GIB
from lib.report import figure
from lib.report.metrics import MACHINE_COLUMNS, read
from lib.report.progress import Notebook, Progress, choose_progress
from lib.report.sampler import RAM_LIMIT, WAIT_LIMIT

_SHARE = 0.01  # of the time that drawing charts may take
_GPU_LIMIT = 0.92
_PAGE = jinja2.Environment(autoescape=True).from_string(Path(__file__).with_name("live.html").read_text("utf-8"))
_CHARTS = '<div style="display:flex;flex-wrap:wrap;gap:6px 24px;max-width:1200px">{}</div>'
_CHART = '<div style="flex:1 1 420px;min-width:0;max-width:640px">{}</div>'


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
        if total == self.watched.steps:
            self._done, self._text = done, text
        else:  # progress of a part, such as the test
            self._text = f"{done:,}/{total:,} {text}"
        self._display(draws=time.perf_counter() >= self._next)

    def close(self) -> None:
        """Leaves the charts of the whole table."""
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
            has_metrics = any(row.get(name) for row in rows for name in shown)

            def draw(names: Sequence[str], axes: Any) -> None:
                if names:
                    figure.draw_validation(axes, rows, watched.baseline, names)
                else:
                    figure.draw_losses(axes, rows)
                if watched.selection[0] in (names or ["loss"]):
                    figure.draw_best(axes, rows, *watched.selection)
                if axes.get_lines():
                    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize="small")

            charts = [_CHART.format(figure.svg(partial(draw, names))) for names in ([], shown)[: 1 + has_metrics]]
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


def progress_of(watched: Watched) -> Progress:
    """Returns the form in which the output of this process shows a run: in a notebook with charts of it."""
    plain = choose_progress()
    return Live(watched) if isinstance(plain, Notebook) else plain
