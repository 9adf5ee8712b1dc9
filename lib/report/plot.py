"""Draws metrics.csv: the picture that a run saves, and the charts that a notebook shows while it trains."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.report.figure import COLOURS, MARKS, save
from lib.report.metrics import Row, read, series
from lib.report.sampler import WAIT_LIMIT

_GIB = 2**30
_WIDTH, _IN_A_ROW = 10.0, 3  # inches, which on paper or a narrow screen are six: letters of 6 points
_POINTS = 500  # of a line: as many as its pixels show
_DASHES = ("-", "--", ":", "-.")  # which tell lines apart in print
_DASHED = ("--", ":", "-.", (0, (8, 2, 1, 2, 1, 2)))  # the baselines'
_MEMORY = {  # of metrics.csv
    "peak_memory_bytes": "peak of a step",
    "gpu_allocated_bytes": "allocated",
    "gpu_reserved_bytes": "reserved by the allocator",
    "gpu_memory_bytes": "taken on the GPU by all",
}
_PANELS = {  # title: the colour of the first line, its column or several with their labels
    "samples per second": (2, {"samples_per_second": ""}),
    "learning rate": (3, {"lr": ""}),
    "memory, GiB": (0, _MEMORY),
    "RAM in use": (0, {"ram_share": ""}),
    "GPU use": (2, {"gpu_use": ""}),
    "share of the time that waits for data": (1, {"data_wait_share": ""}),
}


def draw_metrics(csv_path: Path, out: Path, title: str, baseline: Mapping[str, float], shown: Sequence[str]) -> Path:
    """Draws losses, the validation metrics in `shown` beside their baselines, and a small panel for each other series.

    Writes a PNG to `out`, whose folder it makes, and returns `out`.
    """
    from matplotlib.figure import Figure  # half a second that only a drawing needs

    rows = read(csv_path)
    panels = [name for name, (_, columns) in _PANELS.items() if any(series(rows, "train", c)[0] for c in columns)]
    height = max(1, -(-len(panels) // _IN_A_ROW))
    figure = Figure(figsize=(_WIDTH, 3.6 + 2.3 * height), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(2, 1, height_ratios=(3.6, 2.3 * height))
    losses, metrics = grid[0].subgridspec(1, 2).subplots()
    small = grid[1].subgridspec(height, _IN_A_ROW)
    draw_losses(losses, rows)
    draw_validation(metrics, rows, baseline, shown)
    for number, name in enumerate(panels):
        axes = figure.add_subplot(small[divmod(number, _IN_A_ROW)])
        _draw_panel(axes, rows, name)
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
        finish(axes, rows)
    for axes in (losses, metrics):
        if axes.get_lines():
            axes.legend(fontsize="small")
        _mark_stages(axes, rows)
    return save(figure, out)


def draw_losses(axes: Any, rows: Sequence[Row]) -> None:
    """Draws the losses of training and validation."""
    steps, values = series(rows, "train", "loss")
    if steps:
        axes.plot(*_thinned(steps, values), color="0.6", linewidth=1, label="train, as logged")
        means = _running_mean(values)
        axes.plot(*_thinned(steps, means), color=COLOURS[0], linewidth=2, label="train, running mean")
    _draw_metric(axes, rows, "loss", "validation", 1, 0)
    axes.set_title("loss")
    finish(axes, rows)
    _set_single_value(axes)


def draw_validation(axes: Any, rows: Sequence[Row], baseline: Mapping[str, float], shown: Sequence[str]) -> None:
    """Draws metrics of the validation, each with the baseline that is known, dashed."""
    for number, name in enumerate(shown):
        _draw_metric(axes, rows, name, name, number, number + number // len(COLOURS))
        if name in baseline:
            colour, dashes = COLOURS[number % len(COLOURS)], _DASHED[number % len(_DASHED)]
            axes.axhline(baseline[name], color=colour, linestyle=dashes, label=f"{name}, trivial (test)")
    dashed = any(name in baseline for name in shown)
    axes.set_title("validation (dashed: trivial baseline)" if dashed else "validation")
    finish(axes, rows)
    _set_single_value(axes)


def draw_best(axes: Any, rows: Sequence[Row], metric: str, mode: str) -> None:
    """Draws a ring around the best validation, the first one of several."""
    points = [(value, step) for step, value in zip(*series(rows, "validation", metric), strict=True)]
    if points := [point for point in points if math.isfinite(point[0])]:
        value, step = min(points, key=lambda point: (-point[0] if mode == "max" else point[0], point[1]))
        ring = {"marker": "o", "markersize": 12, "markerfacecolor": "none", "linestyle": "none"}
        ink = axes.spines["left"].get_edgecolor()
        axes.plot([step], [value], color=ink, label=f"best: {value:.4g} at step {step:,}", **ring)


def _draw_metric(axes: Any, rows: Sequence[Row], column: str, label: str, colour: int, mark: int) -> None:
    steps, values = series(rows, "validation", column)
    if steps:
        look = {"color": COLOURS[colour % len(COLOURS)], "marker": MARKS[mark % len(MARKS)]}
        axes.plot(*_thinned(steps, values), label=label, **look)


def _draw_panel(axes: Any, rows: Sequence[Row], name: str) -> None:
    colour, columns = _PANELS[name]
    lines = [(label, *series(rows, "train", column)) for column, label in columns.items()]
    for number, (label, steps, values) in enumerate(line for line in lines if line[1]):
        look = {"color": COLOURS[(colour + number) % len(COLOURS)], "linestyle": _DASHES[number % len(_DASHES)]}
        sizes = [value / _GIB for value in values] if columns is _MEMORY else values
        axes.plot(*_thinned(steps, sizes), label=label, **look)
    if "data_wait_share" in columns:
        axes.axhline(WAIT_LIMIT, color="0.4", linestyle="--", label=f"{WAIT_LIMIT:.0%}: too long")
    if any(not line.get_label().startswith("_") for line in axes.get_lines()):
        axes.legend(fontsize="small")
    if columns.keys() & {"ram_share", "gpu_use", "data_wait_share"}:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title(name)


def _mark_stages(axes: Any, rows: Sequence[Row]) -> None:
    """Draws a line at the last row before a stage of the run, with its name, if the run has stages."""
    former, step = "", 0
    for row in rows:
        if row["split"] == "train" and (name := row.get("stage", "")) != former:
            former, place = name, {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "bottom"}
            axes.axvline(step, color="grey", linestyle=":", linewidth=1)
            axes.annotate(name, (step, 0.02), fontsize="x-small", color="grey", **place)
        step = int(row["step"])


def finish(axes: Any, rows: Sequence[Row]) -> None:
    """Gives axes the whole run, also below a single point, which gets a marker, and epochs above it."""
    axes.grid(alpha=0.25)
    axes.set_xlabel("step")
    for line in axes.get_lines():
        if len(line.get_xdata()) == 1 and line.get_marker() == "None":
            line.set_marker("o")
    if last := max((int(row["step"]) for row in rows), default=0):
        axes.set_xlim(-0.02 * last, 1.02 * last)
        steps, epochs = series(rows, "train", "epoch")
        if steps and epochs[-1] > 1:
            each = steps[-1] / epochs[-1]
            top = axes.secondary_xaxis("top", functions=(lambda step: step / each, lambda epoch: epoch * each))
            top.set_xlabel("epoch")


def _set_single_value(axes: Any) -> None:
    """Lets the axis of a single value begin at 0: a narrow range around it would look like a measurement."""
    values = {float(value) for line in axes.get_lines() for value in line.get_ydata() if math.isfinite(value)}
    if len(values) == 1 and any(values):
        beyond = 1.1 * values.pop()
        axes.set_ylim(min(0.0, beyond), max(0.0, beyond))


def _thinned(steps: Sequence[float], values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Returns an even choice of the points, the first and the last among them."""
    places = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _POINTS)).astype(int))
    return np.asarray(steps)[places], np.asarray(values)[places]


def _running_mean(values: Sequence[float]) -> list[float]:
    """Returns the trailing mean over a twentieth of the points, one value for each."""
    window = max(1, round(len(values) * 0.05))
    numbers = np.asarray(values, dtype=float)
    return [float(numbers[max(0, i + 1 - window) : i + 1].mean()) for i in range(len(values))]
