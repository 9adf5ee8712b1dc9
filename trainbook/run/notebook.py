"""`notebook.run(...)`: a command from a cell, with its output, its figures and a table as they grow."""

import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import IO, Any

from lib.config import environment
from lib.errors import BadInput
from lib.machine import clock, platform
from lib.report.metrics import FIRST_COLUMNS, LAST_COLUMNS, MACHINE_COLUMNS, METRICS, Row, read
from lib.report.progress import Live
from lib.text import aligned, as_html
from lib.training.summary import Summary
from trainbook.outputs import packing
from trainbook.run import cards, settings, several
from trainbook.run.child import die_with_parent
from trainbook.run.settings import Settings

PICTURE = Path("plots") / "metrics.png"
GIB = 2**30
_LINES = 12  # of output that a live notebook shows
_MOST_PANELS = 6
_COLUMNS = 3
_POLL_SECONDS = 0.2
_PRE = '<pre style="font-family:monospace;margin:0">'
_OWN = {*FIRST_COLUMNS[:2], *LAST_COLUMNS, *MACHINE_COLUMNS}
_MACHINE = {  # panels of the machine's columns, with their units
    "memory on all GPUs, GiB": (("gpu_memory_bytes",), GIB),
    "GPU use, RAM in use": (("gpu_use", "ram_share"), 1),
}


def run(
    config: str | Path = "",
    *,
    command: Sequence[str] = (),
    folder: str | Path = "",
    overrides: Mapping[str, Any] | None = None,
    whole_session: bool = False,
    **given: Any,
) -> Summary:
    """Runs a command as `trainbook run` does, and returns the summary of its session.

    `config` is a YAML file; `command` and keys such as keep="checkpoints" win over it, and so do
    `overrides` by dotted keys. The command works in `folder`; its run is kept below the working folder
    of the notebook. With `whole_session`, minutes count from
    the start of this process. Interrupting the cell ends the command, which may save. Raises BadInput.
    """
    changes = {**(overrides or {}), **given}
    if command:
        changes["command"] = [*command]
    chosen = settings.read(str(config), {}, [], changes)
    place = Path(folder or ".").resolve()
    output = platform.output_dir(chosen.output_dir).resolve()
    chosen = replace(chosen, output_dir=str(output))
    folders = [output / one.name for one in settings.parts(chosen) or [chosen]]
    print(cards.described(), flush=True)
    code = _Watched(chosen, place, folders, whole_session).run()
    if code not in several.EXIT_CODES.values():
        raise BadInput("The command was not run: the last lines of its output say why.")
    summaries = [summary for each in folders if (summary := Summary.read(each))]
    _show_end(folders, summaries)
    return _together(chosen, summaries)


class _Cell(Live):
    """Updates the last lines of a command, and the picture of its figures; both stay in a saved notebook."""

    interval = 1.0

    def _show(self, line: str) -> None:
        from IPython.display import display

        content = {"text/html": f"{_PRE}{escape(line)}</pre>", "text/plain": line}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
        if time.perf_counter() >= self._next:
            self._show_picture()


class _Watched:
    """A command in a separate process, with its output in this cell."""

    def __init__(self, chosen: Settings, place: Path, folders: list[Path], whole_session: bool):
        self.chosen, self.place, self.folders = chosen, place, folders
        self.lines: deque[str] = deque()
        self.last: deque[str] = deque(maxlen=_LINES)
        start = {environment.SESSION_START: clock.handed_down()} if whole_session else {}
        # `python` is the kernel's own: a kernel of an environment that is not active has another first
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self.variables = {**os.environ, **start, "PATH": path}
        is_live = platform.in_notebook() and not platform.detect().batch
        self.progress: _Cell | None = None
        if is_live:
            self.progress = _Cell(partial(curves, folders))

    def run(self) -> int:
        """Runs the command; returns the exit code of `trainbook run`."""
        with tempfile.TemporaryDirectory(prefix="trainbook-") as scratch:
            file = Path(scratch) / f"{self.chosen.name}.yaml"
            file.write_text(settings.as_yaml(self.chosen), "utf-8")
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trainbook.run", str(file)],
                cwd=self.place,
                env=self.variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupted kernel signals its whole group
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )
            output: IO[bytes] = process.stdout  # type: ignore[assignment]
            reader = threading.Thread(target=self._read, args=(output,), daemon=True)
            reader.start()
            while reader.is_alive():
                try:
                    reader.join(_POLL_SECONDS)
                    self._show()
                except KeyboardInterrupt:
                    process.send_signal(signal.SIGINT)
            self._show()
            if self.progress:
                self.progress.close()
            return process.wait()

    def _read(self, output: IO[bytes]) -> None:
        """Takes the lines of the output; a progress bar counts by its last state."""
        for line in output:
            self.lines.append(line.decode("utf-8", "replace").rstrip().rpartition("\r")[2])

    def _show(self) -> None:
        new = [self.lines.popleft() for _ in range(len(self.lines))]
        self.last.extend(new)
        if self.progress is None:
            for line in new:
                print(line, flush=True)
        elif new:
            self.progress.update(0, 0, "\n".join(self.last))


def _show_end(folders: Sequence[Path], summaries: Sequence[Summary]) -> None:
    """Draws the metrics of each run into its folder, and shows them and a table."""
    drawn = [each for each in folders if _rows(each)]
    for each in drawn:
        (each / PICTURE).parent.mkdir(exist_ok=True)
        (each / PICTURE).write_bytes(curves([each]))
    if drawn:
        packing.package(drawn[0].parent)
    if drawn and platform.in_notebook() and platform.detect().batch:
        from IPython.display import Image, display

        display(Image(curves(drawn), format="png"))
    show(table(summaries))


def show(text: str) -> None:
    """Prints a text; a notebook shows its tables as HTML."""
    if not platform.in_notebook():
        print(text)
        return
    from IPython.display import display

    display({"text/html": as_html(text), "text/plain": text}, raw=True)


def table(summaries: Sequence[Summary]) -> str:
    """Returns a row for each run: how its session ended, and its latest figures."""
    names = list(dict.fromkeys(name for each in summaries for name in each.metrics))
    rows = [["run", "session", "ended", "step", *names]]
    for each in summaries:
        figures = [f"{each.metrics[name]:.4g}" if name in each.metrics else "" for name in names]
        rows.append([each.run, str(each.session), each.reason, f"{each.step:,}", *figures])
    errors = [f"{each.run}: {each.error}" for each in summaries if each.error]
    return "\n".join([aligned(rows, left={0, 2}), *errors])


def _together(chosen: Settings, summaries: Sequence[Summary]) -> Summary:
    """Returns the one summary, or what several commands have together: the worst reason, all steps."""
    if len(summaries) == 1 and not chosen.sets:
        return summaries[0]
    return Summary(
        run=chosen.name,
        task=" ".join(chosen.command),
        reason=several.worst(summaries),
        step=sum(each.step for each in summaries),
        session=max(each.session for each in summaries),
        error="\n".join(each.error for each in summaries if each.error),
        metrics={f"{s.run}/{name}": value for s in summaries for name, value in s.metrics.items()},
        members=[each.run for each in summaries],
    )


def _rows(folder: Path) -> list[Row]:
    path = folder / METRICS
    return read(path) if path.is_file() else []


def curves(folders: Sequence[Path]) -> bytes:
    """Draws the figures of runs by their steps, and the use of the machine; returns a PNG.

    A dashed line is the beginning of a later session.
    """
    from matplotlib.figure import Figure  # half a second that only a drawing needs

    tables = {folder.name: rows for folder in folders if (rows := _rows(folder))}
    panels = _panels([row for rows in tables.values() for row in rows])
    across = min(_COLUMNS, len(panels))
    down = -(-len(panels) // across)
    drawing = Figure(figsize=(4 * across, 3.2 * down), layout="constrained")
    for number, (name, (columns, unit)) in enumerate(panels.items(), 1):
        ax = drawing.add_subplot(down, across, number)
        for run_name, rows in tables.items():
            _draw(ax, rows, columns, unit, run_name if len(tables) > 1 else "")
        ax.set(title=name, xlabel="step")
        ax.grid(alpha=0.25)
        if name in _MACHINE:
            ax.set_ylim(0, 1.05 * ax.get_ylim()[1])
    png = io.BytesIO()
    drawing.savefig(png, format="png", dpi=80)
    return png.getvalue()


def _panels(rows: Sequence[Row]) -> dict[str, tuple[Sequence[str], int]]:
    """Returns the columns of each panel, with their unit: of figures, then of the machine."""
    names = dict.fromkeys(name for row in rows for name in row if row[name])
    own = [name for name in names if name not in _OWN][:_MOST_PANELS]
    panels: dict[str, tuple[Sequence[str], int]] = {name: ((name,), 1) for name in own}
    machine = {
        title: part for title, part in _MACHINE.items() if not names.keys().isdisjoint(part[0])
    }
    return {**panels, **machine} or {"no figures yet": ((), 1)}


def _draw(ax: Any, rows: Sequence[Row], columns: Sequence[str], unit: int, run_name: str) -> None:
    for column in columns:
        points = [row for row in rows if row.get(column)]
        label = " ".join([run_name, *([column] if len(columns) > 1 else [])]).strip()
        steps = [int(row["step"]) for row in points]
        values = [float(row[column]) / unit for row in points]
        if points:
            ax.plot(steps, values, marker="." if len(points) < 2 else "", label=label)
    for step in _begins(rows):
        ax.axvline(step, color="0.5", linestyle="--", linewidth=1)
    if any(ax.get_legend_handles_labels()[1]):
        ax.legend(fontsize="small")


def _begins(rows: Sequence[Row]) -> list[int]:
    """Returns the first steps of later sessions, whose time counts from zero again."""
    seconds = [float(row["elapsed_seconds"]) for row in rows]
    places = [place for place in range(1, len(rows)) if seconds[place] < seconds[place - 1]]
    return [int(rows[place]["step"]) for place in places]
