"""metrics.csv, a row for each logged step, and events.csv, a row for everything that happened unplanned."""

import csv
import errno
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from lib.machine.disk import whole

Row = dict[str, str]

FIRST_COLUMNS = ["step", "split", "loss"]
LAST_COLUMNS = ["lr", "samples_per_second", "peak_memory_bytes", "micro_batch", "elapsed_seconds"]
# What the machine did; a column is there only where there is a value.
MACHINE_COLUMNS = ["gpu_use", "gpu_memory_bytes", "ram_share", "data_wait_share", "save_peak_memory_bytes"]
EVENT_COLUMNS = ["step", "kind", "before", "after", "text"]


class MetricsLog:
    """Appends rows to metrics.csv (None: nowhere, on ranks that are not the first).

    Rows past `step`, written by a session whose checkpoint was lost, are dropped.
    """

    def __init__(self, path: Path | None, step: int):
        self.path = path
        if path is None:
            return
        self._file: io.FileIO | None = None
        rows = [row for row in read(path) if int(row["step"]) <= step] if path.exists() else []
        self._rewrite(rows, _columns(rows))
        self._waiting: list[Row] = []  # rows that the disk did not take yet
        self._warned = False

    def append(self, row: Mapping[str, float | int | str]) -> None:
        """Adds a row; a column that was not there before widens the table.

        A full disk costs a warning, not the run: the row waits for the next one.
        """
        if self.path is None:
            return
        self._waiting.append({name: str(value) for name, value in row.items()})
        try:
            if not set().union(*self._waiting) <= set(self.columns):
                rows = read(self.path)
                self._rewrite(rows, _columns([dict.fromkeys(self.columns, ""), *rows, *self._waiting]))
            self._write_waiting()
        except OSError as error:
            if not self._warned:
                print(
                    f"Warning: {self.path} cannot be written ({error}); its rows wait. Training continues.", flush=True
                )
            self._warned = True

    def _rewrite(self, rows: Sequence[Row], columns: list[str]) -> None:
        """Replaces the table by these rows and columns, and opens it for the rows to come."""
        with whole(self.path) as aside:
            aside.write_text(_csv([columns, *_cells(rows, columns)]), "utf-8")
        self.columns = columns
        if self._file:
            self._file.close()
        self._file = self.path.open("ab", buffering=0)

    def _write_waiting(self) -> None:
        text = _csv(_cells(self._waiting, self.columns)).encode()
        end = self.path.stat().st_size
        if self._file.write(text) < len(text):  # the disk took a part
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._waiting.clear()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.path:
            self._file.close()


def read(path: Path) -> list[Row]:
    """Reads the rows of a metrics.csv, cells as text, and leaves out a line that a kill tore."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if None not in row.values() and row.get("step", "").isdecimal()]


def series(rows: Sequence[Row], split: str, column: str) -> tuple[list[int], list[float]]:
    """Returns steps and values of one column of one split, without the rows that have no value."""
    points = [(int(r["step"]), float(r[column])) for r in rows if r["split"] == split and r.get(column)]
    return [step for step, _ in points], [value for _, value in points]


def _columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    names = {name for row in rows for name in row}
    middle = names - {*FIRST_COLUMNS, *LAST_COLUMNS, *MACHINE_COLUMNS}
    machine = [name for name in MACHINE_COLUMNS if name in names]
    return [*FIRST_COLUMNS, *sorted(middle), *LAST_COLUMNS, *machine]


def _cells(rows: Sequence[Row], columns: Sequence[str]) -> list[list[str]]:
    return [[row.get(column, "") for column in columns] for row in rows]


def _csv(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class EventLog:
    """Prints each event, and appends it to `path` unless that is None.

    It holds no file open and keeps nothing in memory: events are rare, and the next one may be the end of the process.
    """

    def __init__(self, path: Path | None = None, say: Callable[[str], None] | None = None):
        self.path, self.say = path, say or (lambda text: print(text, flush=True))

    def record(self, step: int, kind: str, before: float, after: float, text: str) -> None:
        """Writes an event at a step that changed something from `before` to `after`. A full disk ends no run."""
        self.say(text)
        if self.path is None:
            return
        row = [step, kind, before, after, text]
        try:
            rows = [row] if self.path.exists() else [EVENT_COLUMNS, row]
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_csv(rows))
        except OSError as error:
            self.say(f"The event could not be written to {self.path}: {error.strerror}.")
