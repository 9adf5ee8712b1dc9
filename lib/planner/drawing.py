"""A prediction as a picture: who holds the memory in the course of a step, and what each layer takes."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from lib.errors import BadInput
from lib.machine.memory import GIB
from lib.planner.log import CATEGORIES, Layer, Timeline, folded
from lib.planner.prediction import Prediction
from lib.report.figure import save

# Okabe and Ito's palette, which any kind of colour vision distinguishes, and a hatch for print without colour.
COLOURS = dict(zip(CATEGORIES, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#F0E442", "#CC79A7"), strict=True))
_HATCHES = dict(zip(CATEGORIES, ("", "////", "....", "\\\\\\\\", "xxxx", "++++"), strict=True))
_SHADES = 48  # six colours, black on them, and what softens their edges
_ROWS = 16  # layers that are drawn, the largest ones


def draw(prediction: Prediction, out: Path, title: str) -> Path:
    """Draws a prediction as a PNG and returns its path. Raises BadInput for one without a course."""
    return save(_figure(prediction, title), out)


def as_png(prediction: Prediction, title: str) -> bytes:
    """Returns the same picture as bytes, few enough for a notebook."""
    from PIL import Image  # which matplotlib brings

    drawn, small = BytesIO(), BytesIO()
    _figure(prediction, title).savefig(drawn, format="png", dpi=90)
    Image.open(drawn).convert("RGB").quantize(_SHADES).save(small, format="PNG", optimize=True)
    return small.getvalue()


def _figure(prediction: Prediction, title: str) -> Any:
    from matplotlib.figure import Figure  # half a second that only a drawing needs

    if prediction.timeline is None:
        raise BadInput(f"There is nothing to draw of {title}: no tensor was allocated in what was traced.")
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    figure.suptitle(title)
    course, layers = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_course(course, prediction.timeline)
    rows = list(prediction.layers) if len(prediction.layers) <= _ROWS else folded(prediction.layers)
    rows = sorted(sorted(rows, key=_size)[-_ROWS:], key=rows.index)
    _draw_layers(layers, rows)
    figure.legend(*course.get_legend_handles_labels(), loc="outside lower center", ncols=8, fontsize="small")
    return figure


def _draw_course(axes: Any, course: Timeline) -> None:
    steps = range(len(course.points))
    columns = [[point[number] / GIB for point in course.points] for number in range(len(CATEGORIES))]
    held = [(name, column) for name, column in zip(CATEGORIES, columns, strict=True) if any(column)]
    pieces = axes.stackplot(
        steps, *(column for _, column in held), labels=[name for name, _ in held],
        colors=[COLOURS[name] for name, _ in held], edgecolor="0.2", linewidth=0.3, step="mid",
    )  # fmt: skip
    for (name, _), piece in zip(held, pieces, strict=True):
        piece.set_hatch(_HATCHES[name])
    axes.plot(steps, [size / GIB for size in course.reserved], color="black", linewidth=1, label="reserved")
    peak = sum(course.points[course.peak]) / GIB
    axes.plot([course.peak], [peak], "v", color="black", label=f"peak, {peak:.2f} GiB")
    for name, at in course.moments:
        axes.axvline(at, color="0.3", linestyle=":", linewidth=1)
        axes.annotate(
            name, (at, 0.98), xycoords=("data", "axes fraction"), rotation=90, fontsize="x-small", ha="right", va="top"
        )  # fmt: skip
    axes.set_title("the step with the peak")
    axes.set_xlabel("operators, in their order")
    axes.set_ylabel("GiB")
    axes.set_xlim(0, max(1, len(course.points) - 1))
    axes.set_ylim(0, 1.25 * max(max(course.reserved) / GIB, peak))  # names of the moments stand above
    axes.set_xticks([])


def _draw_layers(axes: Any, rows: Sequence[Layer]) -> None:
    left = [0.0] * len(rows)
    for name in CATEGORIES[:4]:
        sizes = [getattr(row, name) / GIB for row in rows]
        axes.barh(
            range(len(rows)), sizes, left=left, label=name, color=COLOURS[name], hatch=_HATCHES[name], edgecolor="0.2",
            linewidth=0.3,
        )  # fmt: skip
        left = [before + size for before, size in zip(left, sizes, strict=True)]
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize="small")
    axes.invert_yaxis()
    axes.set_title("what each layer takes")
    axes.set_xlabel("GiB")


def _size(row: Layer) -> int:
    return row.weights + row.gradients + row.optimizer + row.activations
