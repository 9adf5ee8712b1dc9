"""metrics.csv and the picture of it."""

import csv
import errno
import io
import os
from collections.abc import Mapping, Sequence
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


def plot(csv_path: Path, out: Path, title: str, baseline: Mapping[str, float], shown: Sequence[str]) -> Path:
    """Draws losses, the validation metrics in `shown` beside their baselines, and learning rate and speed."""
    # Imported here: half a second that a run needs only when it draws. The object interface leaves the notebook's
    # own pyplot backend alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = read(csv_path)
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    losses, metric_axes, speed = figure.subplots(1, 3)
    _draw_losses(losses, rows)
    _draw_metrics(metric_axes, rows, baseline, shown)
    _draw_speed(speed, rows)
    for axes in (losses, metric_axes, speed):
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(out.name + ".tmp")
    figure.savefig(aside, format="png", dpi=110)
    aside.replace(out)
    return out


def _draw_losses(axes, rows: Sequence[Row]) -> None:
    steps, values = series(rows, "train", "loss")
    axes.plot(steps, values, alpha=0.3, color="C0", label="train, as logged")
    axes.plot(steps, _smoothed(values), color="C0", label="train, running mean")
    steps, values = series(rows, "validation", "loss")
    if steps:
        axes.plot(steps, values, "o-", color="C1", label="validation")
    axes.set_title("loss")
    axes.legend()


def _draw_metrics(axes, rows: Sequence[Row], baseline: Mapping[str, float], shown: Sequence[str]) -> None:
    for number, name in enumerate(shown):
        steps, values = series(rows, "validation", name)
        axes.plot(steps, values, "o-", color=f"C{number}", label=name)
        if name in baseline:
            axes.axhline(baseline[name], color=f"C{number}", linestyle="--", alpha=0.7, label=f"{name}, trivial (test)")
    axes.set_title("validation (dashed: trivial baseline)")
    if shown:
        axes.legend(fontsize="small")


def _draw_speed(axes, rows: Sequence[Row]) -> None:
    steps, rates = series(rows, "train", "samples_per_second")
    axes.plot(steps, rates, color="C2")
    axes.set_title("speed and learning rate")
    axes.set_ylabel("samples per second", color="C2")
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    other.plot(*series(rows, "train", "lr"), color="C3")
    other.set_ylabel("learning rate", color="C3")
    other.set_ylim(bottom=0)


def _smoothed(values: Sequence[float], share: float = 0.05) -> list[float]:
    """Trailing mean over `share` of the points."""
    window = max(1, round(len(values) * share))
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))]
