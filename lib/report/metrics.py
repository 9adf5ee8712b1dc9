"""metrics.csv, a row for each logged step, and events.csv, a row for each unplanned event."""

import contextlib
import csv
import errno
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from lib.machine import disk

Row = dict[str, str]

METRICS = "metrics.csv"
EVENTS = "events.csv"
FIRST_COLUMNS = ["step", "split", "loss"]
LAST_COLUMNS = ["lr", "samples_per_second", "peak_memory_bytes", "micro_batch", "elapsed_seconds"]
# What the machine did; a column exists only if it has a value.
MACHINE_COLUMNS = [
    "gpu_use", "gpu_memory_bytes", "gpu_allocated_bytes", "gpu_reserved_bytes", "ram_share", "data_wait_share"
]  # fmt: skip
EVENT_COLUMNS = ["step", "kind", "before", "after", "text"]
_STEP = re.compile("[0-9]{1,18}")

on_row: list[
    Callable[[Mapping[str, float | int | str]], None]
] = []  # called with each row of metrics.csv: trackers


class MetricsLog:
    """Appends rows to metrics.csv (None: nowhere). Drops torn rows, and those past `step`: their save was lost."""

    def __init__(self, path: Path | None, step: int, expected: int = 0):
        self.path = path
        self.rows = 0  # rows in the table and waiting
        self._waiting: list[Row] = []  # rows that the disk did not take yet
        self._columns: list[str] = []  # of the table; none until it is written, or written anew
        self._last: float = step  # of the rows that a rewrite keeps
        self._warned = False
        self.flush()
        if self._columns and self.rows < expected:
            lost = f"{expected - self.rows} of its {expected} rows up to step {step:,}"
            print(f"{path} lacks {lost}; the run goes on without them.", flush=True)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *error: object) -> None:
        self.flush()
        if self._waiting:
            print(
                f"Warning: the last {len(self._waiting)} rows of {self.path} could not be written.",
                flush=True,
            )

    def append(self, row: Mapping[str, float | int | str]) -> None:
        """Adds a row; a new column widens the table. On a full disk the row waits for the next write."""
        if self.path is not None:
            self._waiting.append({name: str(value) for name, value in row.items()})
            self.rows += 1
            self.flush()
            for call in on_row:
                call(row)

    def flush(self) -> int:
        """Writes the rows that still wait; returns how many there are with them. A failure only warns, once."""
        if self.path is None:
            return 0
        try:
            columns = self._columns
            if not columns or not set().union(*self._waiting) <= set(columns):  # the whole table
                rows = [
                    *(read(self.path, self._last) if self.path.exists() else []),
                    *self._waiting,
                ]
                names = {name for row in rows for name in row}
                middle = sorted(names - {*FIRST_COLUMNS, *LAST_COLUMNS, *MACHINE_COLUMNS})
                columns = [
                    *FIRST_COLUMNS,
                    *middle,
                    *LAST_COLUMNS,
                    *(name for name in MACHINE_COLUMNS if name in names),
                ]
                disk.write_text(self.path, _csv(columns, rows, has_header=True))
                self.rows = len(rows)
                self._last = math.inf
            elif self._waiting:
                text = _csv(columns, self._waiting).encode()
                self._columns = []  # if this fails, the whole table is next
                with self.path.open("ab", buffering=0) as file:
                    if file.write(text) < len(text):  # the disk took a part
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._columns = columns
            self._waiting = []
        except OSError as error:
            if not self._warned:
                why = f"cannot be written ({error}); its rows wait. Training continues."
                print(f"Warning: {self.path} {why}", flush=True)
            self._warned = True
        return self.rows


class EventLog:
    """Prints events and keeps them in a table, once each. Drops rows past `step`: the run repeats them."""

    def __init__(
        self,
        path: Path | None = None,
        say: Callable[[str], None] | None = None,
        step: int | None = None,
    ):
        self.path, self.say = path, say or (lambda text: print(text, flush=True))
        self._waiting: list[Row] = []  # rows that the disk did not take yet
        if step is not None:
            self.flush(step)

    def record(self, step: int, kind: str, before: float, after: float, text: str) -> None:
        """Writes an event at a step that changed something from `before` to `after`. A full disk ends no run."""
        self.say(text)
        cells = (str(value) for value in (step, kind, before, after, " ".join(text.split())))
        self._waiting.append(dict(zip(EVENT_COLUMNS, cells, strict=True)))
        self.flush()

    def flush(self, last: float = math.inf) -> None:
        """Writes the events that still wait for room on the disk, and drops rows past the step `last`."""
        if self.path is None or (not self._waiting and last == math.inf):
            return
        try:
            rows = read(self.path, last) if self.path.exists() else []
            if rows := [*rows, *(row for row in self._waiting if row not in rows)]:
                disk.write_text(self.path, _csv(EVENT_COLUMNS, rows, has_header=True))
            else:
                self.path.unlink(missing_ok=True)
            self._waiting.clear()
        except OSError as error:
            self.say(f"The event could not be written to {self.path}: {error.strerror}. It waits.")


def _csv(columns: Sequence[str], rows: Iterable[Row], has_header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    if has_header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def sync(folder: Path) -> None:
    """Has the disk keep the tables of a run, before a checkpoint relies on them. A failure only warns."""
    try:
        for name in (METRICS, EVENTS):
            with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as file:
                disk.calls.sync(file.fileno(), folder / name)
        disk.calls.sync_folder(folder)
    except OSError as error:
        print(
            f"Warning: the tables in {folder} could not be synced ({error}). Training continues.",
            flush=True,
        )


def read(path: Path, last: float = math.inf) -> list[Row]:
    """Reads the whole rows of a table up to the step `last`; leaves out torn and odd lines. Raises OSError."""
    lines = []
    for line in path.read_bytes().split(b"\n")[:-1] or [b""]:  # a line without its end is torn
        try:
            lines.append(
                [] if b"\0" in line else next(csv.reader([line.decode()], strict=True), [])
            )
        except (UnicodeDecodeError, csv.Error):
            lines.append([])
    rows = (
        dict(zip(lines[0], cells, strict=True))
        for cells in lines[1:]
        if len(cells) == len(lines[0])
    )
    return [
        row for row in rows if _STEP.fullmatch(row.get("step", "")) and int(row["step"]) <= last
    ]


def series(rows: Sequence[Row], split: str, column: str) -> tuple[list[int], list[float]]:
    """Returns steps and values of one column of one split, without the rows that have no value."""
    points = [
        (int(r["step"]), float(r[column])) for r in rows if r["split"] == split and r.get(column)
    ]
    return [step for step, _ in points], [value for _, value in points]
