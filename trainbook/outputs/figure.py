"""Draws metrics.csv and other figures, without pyplot, whose backend belongs to the notebook."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.machine import disk
from lib.machine.memory import GIB
from lib.report.metrics import Row, read, series

# Colours of Okabe and Ito's palette, which any kind of colour vision distinguishes, visible on white and black
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKS = ("o", "s", "D", "^")  # and in print without colour
_WIDTH = 12.0  # inches
_MEMORY = {  # of metrics.csv
    "peak_memory_bytes": "peak of a step",
    "gpu_allocated_bytes": "allocated",
    "gpu_reserved_bytes": "reserved by the allocator",
    "gpu_memory_bytes": "taken on the GPU by all",
}
_PANELS = {  # title: columns with their labels
    "samples per second": {"samples_per_second": ""},
    "learning rate": {"lr": ""},
    "memory, GiB": _MEMORY,
    "shares": {
        "ram_share": "RAM in use",
        "gpu_use": "GPU use",
        "data_wait_share": "time that waits for data",
    },
}


def grid(rows: int, columns: int, inches: float) -> tuple[Any, np.ndarray]:
    """Returns a figure and its (rows, columns) axes, each `inches` wide and high and without ticks."""
    from matplotlib.figure import Figure  # half a second that only a drawing needs

    figure = Figure(figsize=(inches * columns, inches * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    return figure, axes


def save(figure: Any, path: Path) -> Path:
    """Writes a figure as a PNG, whole or not at all; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk.whole(path) as aside:
        figure.savefig(aside, format="png", dpi=110)
    return path


def confusion(
    matrix: np.ndarray, classes: Sequence[str], path: Path, unit: str = "samples"
) -> Path:
    """Draws a (classes, classes) confusion matrix, rows the truth; colours and numbers are shares of a row."""
    shares = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    figure, axes = grid(1, 1, max(4.2, 2 + 0.5 * len(classes)))
    ax = axes[0, 0]
    ax.set_axis_on()
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.argwhere(matrix):
        share = shares[row, column]
        colour = "white" if share > 0.5 else "black"
        centred = {"ha": "center", "va": "center"}
        ax.text(column, row, f"{share:.1%}", color=colour, fontsize=8, **centred)
    ticks = range(len(classes))
    room = 10 if len(classes) <= 5 else 5  # letters of a name that is not slanted
    slanted = {"rotation": 40, "ha": "right"} if max(map(len, classes)) > room else {}
    ax.set_xticks(ticks, classes, **slanted)
    counts = matrix.sum(1)
    ax.set_yticks(ticks, [f"{classes[tick]}\n{counts[tick]:,}" for tick in ticks])
    ax.set(xlabel="predicted", ylabel=f"true ({unit})")
    return save(figure, path)


def draw_metrics(
    csv_path: Path, out: Path, title: str, baseline: Mapping[str, float], shown: Sequence[str]
) -> Path:
    """Draws losses, the metrics in `shown` beside baselines, and small panels of all else, into the PNG `out`."""
    rows = read(csv_path)
    panels = []
    for name, columns in _PANELS.items():
        steps = [series(rows, "train", column)[0] for column in columns]
        if any(steps):
            panels.append(name)
    return save(_drawn(rows, title, baseline, shown, panels), out)


def curves(
    csv_path: Path, title: str, baseline: Mapping[str, float], shown: Sequence[str]
) -> bytes:
    """Draws losses and the metrics in `shown` as far as a run is; returns a PNG."""
    picture = io.BytesIO()
    rows = read(csv_path) if csv_path.exists() else []
    _drawn(rows, title, baseline, shown, []).savefig(picture, format="png", dpi=80)
    return picture.getvalue()


def _drawn(
    rows: Sequence[Row],
    title: str,
    baseline: Mapping[str, float],
    shown: Sequence[str],
    panels: Sequence[str],
) -> Any:
    from matplotlib.figure import Figure  # half a second that only a drawing needs

    heights = (3.6, 2.3) if panels else (3.6,)  # inches
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    figure.suptitle(title, parse_math=False)
    parts = figure.add_gridspec(len(heights), len(_PANELS), height_ratios=heights)
    _draw_losses(figure.add_subplot(parts[0, :2]), rows)
    _draw_validation(figure.add_subplot(parts[0, 2:]), rows, baseline, shown)
    for number, name in enumerate(panels):
        _draw_panel(figure.add_subplot(parts[1, number]), rows, name)
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.set_xlabel("step")
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="small")
    return figure


def _draw_losses(axes: Any, rows: Sequence[Row]) -> None:
    """Draws the losses of training, with their trailing mean over a twentieth of the points, and validation."""
    steps, values = series(rows, "train", "loss")
    window = max(1, round(len(values) * 0.05))
    numbers = np.asarray(values, dtype=float)
    means = []
    for end in range(1, len(values) + 1):
        start = max(0, end - window)
        means.append(float(numbers[start:end].mean()))
    _draw_line(axes, steps, values, color="0.6", linewidth=1, label="train, as logged")
    _draw_line(axes, steps, means, color=COLOURS[0], linewidth=2, label="train, running mean")
    steps, values = series(rows, "validation", "loss")
    _draw_line(axes, steps, values, color=COLOURS[1], marker=MARKS[0], label="validation")
    axes.set_title("loss")


def _draw_validation(
    axes: Any, rows: Sequence[Row], baseline: Mapping[str, float], shown: Sequence[str]
) -> None:
    """Draws metrics of the validation, each with the baseline that is known, dashed."""
    for number, name in enumerate(shown):
        colour = COLOURS[number % len(COLOURS)]
        mark = MARKS[number % len(MARKS)]
        _draw_line(axes, *series(rows, "validation", name), color=colour, marker=mark, label=name)
        if name in baseline:
            label = f"{name}, baseline (test)"
            axes.axhline(baseline[name], color=colour, linestyle="--", label=label)
    has_baseline = not baseline.keys().isdisjoint(shown)
    axes.set_title("validation (dashed: baseline)" if has_baseline else "validation")


def _draw_panel(axes: Any, rows: Sequence[Row], name: str) -> None:
    unit = GIB if name == "memory, GiB" else 1
    for column, label in _PANELS[name].items():
        steps, values = series(rows, "train", column)
        _draw_line(axes, steps, np.divide(values, unit), label=label)
    axes.set_title(name)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def _draw_line(
    axes: Any, steps: Sequence[int], values: Sequence[float] | np.ndarray, **look: Any
) -> None:
    """Draws a line through points, if any; a single one gets a marker."""
    if len(steps) == 1:
        look = {"marker": "o", **look}
    if steps:
        axes.plot(steps, values, **look)
