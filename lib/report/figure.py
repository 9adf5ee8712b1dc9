"""Draws metrics.csv and other figures, without pyplot, whose backend belongs to the notebook."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from lib.machine import disk
from lib.machine.memory import GIB
from lib.report.metrics import Row, read, series
from lib.report.sampler import WAIT_LIMIT

# Of Okabe and Ito's palette, which any kind of colour vision distinguishes, those that stand out from white and black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKS = ("o", "s", "D", "^")  # and in print without colour
_INK = "#010203"  # of text and axes in an SVG, where it becomes the colour of the page around it
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


def svg(draw: Callable[[Any], None]) -> str:
    """Returns what `draw(axes)` draws as SVG for a page that is light or dark; 0.1 s of CPU."""
    import matplotlib
    from matplotlib.figure import Figure

    ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    options: Any = dict.fromkeys(ink, _INK) | {"axes.facecolor": "none"}
    options |= {"svg.fonttype": "none", "text.parse_math": False, "legend.frameon": False}
    with matplotlib.rc_context(options):
        figure, text = Figure(figsize=(6.0, 3.6), facecolor="none"), io.StringIO()
        figure.subplots_adjust(0.11, 0.27, 0.98, 0.8)  # "constrained" takes twice as long
        axes: Any = figure.subplots()
        draw(axes)
        figure.savefig(text, format="svg", metadata={"Date": None})
    lines = [(line.get_label(), line.get_ydata()[-1:]) for line in axes.get_lines()]
    label = f"{axes.get_title()}: " + "; ".join(f"{name} {value:.4g}" for name, last in lines for value in last)
    size = f'role="img" aria-label="{escape(label)}" style="width:100%;height:auto;overflow:visible"'
    shown = re.sub(r"<style.*?</style>", "", text.getvalue(), flags=re.S)  # which would reach the whole page
    shown = re.sub(r'width="\S+" height="\S+"', lambda _: size, shown[shown.index("<svg") :], count=1)
    return shown.replace(_INK, "currentColor")


def confusion(matrix: np.ndarray, classes: Sequence[str], path: Path, unit: str = "samples") -> Path:
    """Draws a (classes, classes) confusion matrix, rows the truth; colours and numbers are shares of a row."""
    shares = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    figure, ((ax,),) = grid(1, 1, max(4.2, 2 + 0.5 * len(classes)))
    ax.set_axis_on()
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.argwhere(matrix):
        colour = "white" if shares[row, column] > 0.5 else "black"
        ax.text(column, row, f"{shares[row, column]:.1%}", ha="center", va="center", color=colour, fontsize=8)
    leaning = {"rotation": 40, "ha": "right"} if max(map(len, classes)) > (10 if len(classes) <= 5 else 5) else {}
    ax.set_xticks(range(len(classes)), classes, **leaning)
    ax.set_yticks(range(len(classes)), [f"{name}\n{n:,}" for name, n in zip(classes, matrix.sum(1), strict=True)])
    ax.set(xlabel="predicted", ylabel=f"true ({unit})")
    return save(figure, path)


def draw_metrics(csv_path: Path, out: Path, title: str, baseline: Mapping[str, float], shown: Sequence[str]) -> Path:
    """Draws losses, the metrics in `shown` beside baselines, and small panels of all else, into the PNG `out`."""
    from matplotlib.figure import Figure  # half a second that only a drawing needs

    rows = read(csv_path)
    panels = [name for name, (_, columns) in _PANELS.items() if any(series(rows, "train", c)[0] for c in columns)]
    height = max(1, -(-len(panels) // _IN_A_ROW))
    figure = Figure(figsize=(_WIDTH, 3.6 + 2.3 * height), layout="constrained")
    figure.suptitle(title)
    parts = figure.add_gridspec(2, 1, height_ratios=(3.6, 2.3 * height))
    (losses, metrics), small = parts[0].subgridspec(1, 2).subplots(), parts[1].subgridspec(height, _IN_A_ROW)
    draw_losses(losses, rows)
    draw_validation(metrics, rows, baseline, shown)
    for axes in (losses, metrics):
        former, step = "", 0
        for row in rows:  # a line at the last row before each stage
            if row["split"] == "train" and (stage := row.get("stage", "")) != former:
                former, place = stage, {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "bottom"}
                axes.axvline(step, color="grey", linestyle=":", linewidth=1)
                axes.annotate(stage, (step, 0.02), fontsize="x-small", color="grey", **place)
            step = int(row["step"])
    for number, name in enumerate(panels):
        _draw_panel(figure.add_subplot(small[divmod(number, _IN_A_ROW)]), rows, name)
    for axes in figure.axes:
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="small")
    return save(figure, out)


def draw_losses(axes: Any, rows: Sequence[Row]) -> None:
    """Draws the losses of training, with their trailing mean over a twentieth of the points, and validation."""
    steps, values = series(rows, "train", "loss")
    window, numbers = max(1, round(len(values) * 0.05)), np.asarray(values, dtype=float)
    means = [float(numbers[max(0, end - window) : end].mean()) for end in range(1, len(values) + 1)]
    _draw_line(axes, steps, values, color="0.6", linewidth=1, label="train, as logged")
    _draw_line(axes, steps, means, color=COLOURS[0], linewidth=2, label="train, running mean")
    _draw_line(axes, *series(rows, "validation", "loss"), color=COLOURS[1], marker=MARKS[0], label="validation")
    axes.set_title("loss")
    _finish(axes, rows)


def draw_validation(axes: Any, rows: Sequence[Row], baseline: Mapping[str, float], shown: Sequence[str]) -> None:
    """Draws metrics of the validation, each with the baseline that is known, dashed."""
    for number, name in enumerate(shown):
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[(number + number // len(COLOURS)) % len(MARKS)]
        _draw_line(axes, *series(rows, "validation", name), color=colour, marker=mark, label=name)
        if name in baseline:
            dashes = _DASHED[number % len(_DASHED)]
            axes.axhline(baseline[name], color=colour, linestyle=dashes, label=f"{name}, baseline (test)")
    axes.set_title(f"validation{' (dashed: baseline)' if baseline.keys() & {*shown} else ''}")
    _finish(axes, rows)


def draw_best(axes: Any, rows: Sequence[Row], metric: str, mode: str) -> None:
    points = zip(*series(rows, "validation", metric), strict=True)
    if finite := [(value, step) for step, value in points if math.isfinite(value)]:
        value, step = min(finite, key=lambda point: (-point[0] if mode == "max" else point[0], point[1]))
        ring = {"marker": "o", "markersize": 12, "markerfacecolor": "none", "linestyle": "none"}
        ink = axes.spines["left"].get_edgecolor()
        axes.plot([step], [value], color=ink, label=f"best: {value:.4g} at step {step:,}", **ring)


def _draw_panel(axes: Any, rows: Sequence[Row], name: str) -> None:
    colour, columns = _PANELS[name]
    lines = [(label, *series(rows, "train", column)) for column, label in columns.items()]
    for number, (label, steps, values) in enumerate(line for line in lines if line[1]):
        look = {"color": COLOURS[(colour + number) % len(COLOURS)], "linestyle": _DASHES[number % len(_DASHES)]}
        _draw_line(axes, steps, np.divide(values, GIB if columns is _MEMORY else 1), label=label, **look)
    if "data_wait_share" in columns:
        axes.axhline(WAIT_LIMIT, color="0.4", linestyle="--", label=f"{WAIT_LIMIT:.0%}: too long")
    if columns.keys() & {"ram_share", "gpu_use", "data_wait_share"}:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title(name)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    _finish(axes, rows)


def _draw_line(axes: Any, steps: Sequence[int], values: Sequence[float] | np.ndarray, **look: Any) -> None:
    """Draws an even choice of the points, the first and the last among them; a single one gets a marker."""
    if steps:
        places = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _POINTS)).astype(int))
        look = ({"marker": "o"} if len(steps) == 1 else {}) | look
        axes.plot(np.asarray(steps)[places], np.asarray(values)[places], **look)


def _finish(axes: Any, rows: Sequence[Row]) -> None:
    """Gives axes the whole run, also below a single point, and epochs above it; shows a single value from 0 on."""
    axes.grid(alpha=0.25)
    axes.set_xlabel("step")
    values = {float(value) for line in axes.get_lines() for value in line.get_ydata() if math.isfinite(value)}
    if len(values) == 1 and any(values):  # a narrow range around it would look like a measurement
        beyond = 1.1 * values.pop()
        axes.set_ylim(min(0.0, beyond), max(0.0, beyond))
    if last := max((int(row["step"]) for row in rows), default=0):
        axes.set_xlim(-0.02 * last, 1.02 * last)
        steps, epochs = series(rows, "train", "epoch")
        if steps and epochs[-1] > 1:
            each = steps[-1] / epochs[-1]
            top = axes.secondary_xaxis("top", functions=(lambda step: step / each, lambda epoch: epoch * each))
            top.set_xlabel("epoch")
