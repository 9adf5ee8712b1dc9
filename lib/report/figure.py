"""Figures drawn without pyplot, whose backend belongs to the notebook; and the confusion matrix of any workload."""

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from lib.machine import disk

# Of Okabe and Ito's palette, which any kind of colour vision distinguishes, those that stand out from white and black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKS = ("o", "s", "D", "^")  # and in print without colour
_INK = "#010203"  # of text and axes in an SVG, where it becomes the colour of the page around it


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
    figure, ((ax,),) = grid(1, 1, max(4.2, 0.8 * len(classes)))
    ax.set_axis_on()
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), share in np.ndenumerate(shares):
        colour = "white" if share > 0.5 else "black"
        ax.text(column, row, f"{share:.1%}", ha="center", va="center", color=colour, fontsize=9)
    leaning = {"rotation": 40, "ha": "right"} if max(map(len, classes)) > (10 if len(classes) <= 5 else 5) else {}
    ax.set_xticks(range(len(classes)), classes, **leaning)
    ax.set_yticks(range(len(classes)), [f"{name}\n{n:,}" for name, n in zip(classes, matrix.sum(1), strict=True)])
    ax.set(xlabel="predicted", ylabel=f"true ({unit})")
    return save(figure, path)
