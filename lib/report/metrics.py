"""metrics.csv, a row a logged step, and events.csv, a row for whatever happened that nobody planned."""

import csv
import errno
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

Row = dict[str, str]

FIRST_COLUMNS = ["step", "split", "loss"]
LAST_COLUMNS = ["lr", "samples_per_second", "peak_memory_bytes", "micro_batch", "elapsed_seconds"]
# What the machine did; a column is there only where there is a value.
MACHINE_COLUMNS = ["gpu_use", "gpu_memory_bytes", "ram_share", "data_wait_share", "save_peak_memory_bytes"]
# Columns whose values a second run of the same configuration does not repeat.
VOLATILE_COLUMNS = {"samples_per_second", "peak_memory_bytes", "elapsed_seconds", *MACHINE_COLUMNS}


class MetricsLog:
    """Appends rows to metrics.csv. Rows past `step`, written by a session whose checkpoint was lost, are dropped."""

    def __init__(self, path: Path, step: int):
        self.path = path
        rows = [row for row in read(path) if int(row["step"]) <= step] if path.exists() else []
        self.columns = _columns(rows)
        _write(path, self.columns, rows)
        self._file = path.open("ab", buffering=0)
        self._waiting: list[Row] = []  # rows that the disk did not take yet
        self._warned = False

    def append(self, row: Mapping[str, float | int | str]) -> None:
        """Adds a row; a column that was not there before widens the table. A full disk costs a warning, not the run:
        the row waits for the next one."""
        self._waiting.append({name: _cell(value) for name, value in row.items()})
        try:
            if not set().union(*self._waiting) <= set(self.columns):
                self._widen()
            self._write_waiting()
        except OSError as error:
            if not self._warned:
                print(f"Warning: {self.path} cannot be written ({error}); its rows wait. Training goes on.", flush=True)
            self._warned = True

    def _widen(self) -> None:
        rows = read(self.path)
        columns = _columns([dict.fromkeys(self.columns, ""), *rows, *self._waiting])
        _write(self.path, columns, rows)
        self.columns = columns
        self._file.close()
        self._file = self.path.open("ab", buffering=0)

    def _write_waiting(self) -> None:
        text = _lines(self.columns, self._waiting).encode()
        end = self.path.stat().st_size
        if self._file.write(text) < len(text):  # the disk took a part
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._waiting.clear()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()


def read(path: Path) -> list[Row]:
    """The rows of a metrics.csv, cells as text; a line torn by a kill is left out."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if None not in row.values() and row.get("step", "").isdecimal()]


def series(rows: Sequence[Row], split: str, column: str) -> tuple[list[int], list[float]]:
    """Steps and values of one column of one split, rows without a value left out."""
    points = [(int(r["step"]), float(r[column])) for r in rows if r["split"] == split and r.get(column)]
    return [step for step, _ in points], [value for _, value in points]


def _columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    names = {name for row in rows for name in row}
    middle = names - {*FIRST_COLUMNS, *LAST_COLUMNS, *MACHINE_COLUMNS}
    machine = [name for name in MACHINE_COLUMNS if name in names]
    return [*FIRST_COLUMNS, *sorted(middle), *LAST_COLUMNS, *machine]


def _cell(value: float | int | str) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _lines(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writerows(rows)
    return text.getvalue()


def _write(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(",".join(columns) + "\n" + _lines(columns, rows), "utf-8")
    aside.replace(path)


COLUMNS = ["step", "kind", "before", "after", "text"]


def _say(text: str) -> None:
    print(text, flush=True)


class EventLog:
    """Says each event to the person, and appends it to `path` (None: it is only said).

    Nothing is held open and nothing waits in memory: events are rare, and the next one may be the end of the process.
    """

    def __init__(self, path: Path | None = None, say: Callable[[str], None] = _say):
        self.path, self.say = path, say

    def record(self, step: int, kind: str, before: float, after: float, text: str) -> None:
        """An event at a step that changed something from `before` to `after`. A full disk does not end the run."""
        self.say(text)
        if self.path is None:
            return
        try:
            fresh = not self.path.exists()
            with self.path.open("a", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([COLUMNS] if fresh else [])
                writer.writerow([step, kind, before, after, text])
        except OSError as error:
            self.say(f"The event could not be written to {self.path}: {error.strerror}.")
