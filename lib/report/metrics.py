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

Cells = Mapping[str, float | int | str]
on_row: list[Callable[[Cells], None]] = []  # called with each row of metrics.csv: trackers


class MetricsLog:
    """Appends rows to metrics.csv (None: nowhere).

    Drops torn rows, and those past `step`: their save was lost.
    """

    def __init__(self, path: Path | None, step: int, expected: int = 0):
        self.path = path
        self.rows = 0  # rows in the table and waiting
        self._waiting: list[Row] = []  # rows that the disk did not take yet
        self._columns: list[str] = []  # of the table; [] until it is written, or rewritten
        self._last: float = step  # of the rows that a rewrite keeps
        self._warned = False
        self.flush()
        if self._columns and self.rows < expected:
            print(
                f"{path} lacks {expected - self.rows} of its {expected} rows up to step {step:,}; "
                "the run goes on without them.",
                flush=True,
            )

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *error: object) -> None:
        self.flush()
        if count := len(self._waiting):
            print(
                f"Warning: the last {count} rows of {self.path} could not be written.", flush=True
            )

    def append(self, row: Cells) -> None:
        """Adds a row; a new column widens the table.

        On a full disk the row waits for the next write.
        """
        if self.path is not None:
            self._waiting.append({name: str(value) for name, value in row.items()})
            self.rows += 1
            self.flush()
            for call in on_row:
                call(row)

    def flush(self) -> int:
        """Writes the rows that wait; returns the number of all rows. A failure only warns, once."""
        if self.path is None:
            return 0
        try:
            if not self._columns or not set().union(*self._waiting) <= set(self._columns):
                self._write_whole(self.path)
            elif self._waiting:
                self._write_waiting(self.path)
            self._waiting = []
        except OSError as error:
            if not self._warned:
                print(
                    f"Warning: {self.path} cannot be written ({error}); its rows wait. "
                    "Training continues.",
                    flush=True,
                )
            self._warned = True
        return self.rows

    def _write_whole(self, path: Path) -> None:
        """Rewrites the table with the columns of the rows that wait. Raises OSError."""
        rows = read(path, self._last) if path.exists() else []
        rows += self._waiting
        names = set[str]().union(*rows)
        middle = sorted(names - {*FIRST_COLUMNS, *LAST_COLUMNS, *MACHINE_COLUMNS})
        machine = [name for name in MACHINE_COLUMNS if name in names]
        columns = [*FIRST_COLUMNS, *middle, *LAST_COLUMNS, *machine]
        disk.write_text(path, _csv(columns, rows, has_header=True))
        self.rows = len(rows)
        self._last = math.inf
        self._columns = columns

    def _write_waiting(self, path: Path) -> None:
        """Appends the rows that wait. Raises OSError."""
        columns = self._columns
        text = _csv(columns, self._waiting).encode()
        self._columns = []  # if this fails, the whole table is next
        with path.open("ab", buffering=0) as file:
            if file.write(text) < len(text):  # the disk took a part
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._columns = columns


class EventLog:
    """Prints events and keeps them in a table, once each.

    Drops rows past `step`: the run repeats them.
    """

    def __init__(
        self,
        path: Path | None = None,
        say: Callable[[str], None] | None = None,
        step: int | None = None,
    ):
        self.path = path
        self.say = say or _say
        self._waiting: list[Row] = []  # rows that the disk did not take yet
        if step is not None:
            self.flush(step)

    def record(self, step: int, kind: str, before: float, after: float, text: str) -> None:
        """Writes an event at a step that changed something from `before` to `after`.

        A full disk ends no run.
        """
        self.say(text)
        cells = (step, kind, before, after, " ".join(text.split()))
        self._waiting.append(dict(zip(EVENT_COLUMNS, map(str, cells), strict=True)))
        self.flush()

    def flush(self, last: float = math.inf) -> None:
        """Writes the events that wait, and drops rows past the step `last`."""
        if self.path is None or (not self._waiting and last == math.inf):
            return
        try:
            rows = read(self.path, last) if self.path.exists() else []
            rows += [row for row in self._waiting if row not in rows]
            if rows:
                disk.write_text(self.path, _csv(EVENT_COLUMNS, rows, has_header=True))
            else:
                self.path.unlink(missing_ok=True)
            self._waiting.clear()
        except OSError as error:
            self.say(f"The event could not be written to {self.path}: {error.strerror}. It waits.")


def _say(text: str) -> None:
    print(text, flush=True)


def _csv(columns: Sequence[str], rows: Iterable[Row], has_header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    if has_header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def sync(folder: Path) -> None:
    """Has the disk keep the tables of a run, before a checkpoint relies on them.

    A failure only warns.
    """
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
    """Reads the whole rows of a table up to the step `last`; leaves out torn and odd lines.

    Raises OSError.
    """
    lines = path.read_bytes().split(b"\n")[:-1]  # a line without its end is torn
    head, *body = [_cells(line) for line in lines] or [[]]
    rows = [dict(zip(head, cells, strict=True)) for cells in body if len(cells) == len(head)]
    return [row for row in rows if _is_up_to(last, row.get("step", ""))]


def _cells(line: bytes) -> list[str]:
    """Returns the cells of a line; [] if it is odd."""
    if b"\0" in line:
        return []
    try:
        return next(csv.reader([line.decode()], strict=True), [])
    except (UnicodeDecodeError, csv.Error):
        return []


def _is_up_to(last: float, step: str) -> bool:
    return _STEP.fullmatch(step) is not None and int(step) <= last


def series(rows: Sequence[Row], split: str, column: str) -> tuple[list[int], list[float]]:
    """Returns steps and values of one column of one split, without the rows that have no value."""
    points = [row for row in rows if row["split"] == split and row.get(column)]
    return [int(row["step"]) for row in points], [float(row[column]) for row in points]
