"""Charts of lines as SVG, for a figure that is drawn every few seconds: 3 ms each, where matplotlib takes 150.

Text and axes have the colour of the page around them, so that they are read on a light and on a dark one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

# Of Okabe and Ito's palette, which any kind of colour vision distinguishes, those that stand out from white and black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKS = ("circle", "square", "diamond", "triangle")  # and in print without colour
DASHES = ("6 4", "2 3", "8 3 2 3", "10 3 2 3 2 3")  # of levels; the first one's are the lines of a single metric
POINTS = 250  # of a line: more than its pixels would show
_TINY = 1e-300  # what differs by less has no ticks
_WIDTH, _HEIGHT = 480, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 22, 34, 36  # margins


@dataclass(frozen=True)
class Line:
    """A line of values over steps; `mark` tells it from others without colour."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    colour: str = COLOURS[0]
    mark: str = ""
    width: float = 2.0
    counts: bool = True  # for the ends of the axis; a noisy line may be cut off


@dataclass(frozen=True)
class Level:
    """A value that does not change, drawn dashed over the whole width."""

    name: str
    value: float
    colour: str
    dashes: str = DASHES[0]


@dataclass(frozen=True)
class Best:
    """The point with a ring around it; the legend has its text."""

    step: float
    value: float
    text: str


def thinned(values: Sequence[float], most: int = POINTS) -> np.ndarray:
    """Returns the positions of an even choice of the values, the first and the last among them."""
    return np.unique(np.linspace(0, max(0, len(values) - 1), min(len(values), most)).astype(int))


def running_mean(values: Sequence[float], places: Sequence[int]) -> list[float]:
    """Returns the trailing mean over a twentieth of the values at these places alone."""
    window, numbers = max(1, round(len(values) * 0.05)), np.asarray(values, dtype=float)
    return [float(numbers[max(0, place + 1 - window) : place + 1].mean()) for place in places]


def chart(
    title: str, lines: Sequence[Line], levels: Sequence[Level] = (), best: Best | None = None, epoch_steps: float = 0.0
) -> str:
    """Returns the chart with its legend below it, as HTML; `epoch_steps`: steps of an epoch (0: no second axis)."""
    ends = _ends([value for line in lines if line.counts for value in line.values], [level.value for level in levels])
    last = max((line.steps[-1] for line in lines if len(line.steps)), default=0) or 1

    def x(step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / last

    def y(value: float) -> float:
        share = (value - ends[0]) / (ends[1] - ends[0])
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(1.02, max(-0.02, share)))

    parts = [*_axes(last, ends, x, y, epoch_steps)]
    for level in levels:
        if math.isfinite(level.value):
            parts.append(_path([(x(0), y(level.value)), (x(last), y(level.value))], level.colour, 1.5, level.dashes))
    for line in lines:
        parts += _drawn(line, x, y)
    if best and math.isfinite(best.value):
        parts.append(_ring(x(best.step), y(best.value), 7))
    label = escape(f"{title}: " + "; ".join(_in_words(line) for line in lines if line.counts), quote=True)
    picture = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}" style="width:100%;height:auto;'
        f'display:block" font-size="11" font-family="sans-serif" fill="currentColor">'
        f'<text x="{_LEFT}" y="12" font-size="13" font-weight="bold">{escape(title)}</text>{"".join(parts)}</svg>'
    )
    return f'{picture}<div style="font-size:12px;line-height:18px">{"".join(_legend(lines, levels, best))}</div>'


def _ends(values: Sequence[float], levels: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of the vertical axis: all finite values, with a little room."""
    finite = [value for value in [*values, *levels] if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    room = 0.05 * (high - low)
    return (low - room, high + room) if room > _TINY else axis_of_one(high)


def axis_of_one(value: float) -> tuple[float, float]:
    """Returns the ends of an axis of a single value: 0 and a little beyond it."""
    beyond = 1.1 * value if math.isfinite(1.1 * value) else value
    return (min(0.0, beyond), max(0.0, beyond)) if abs(value) > _TINY else (-1.0, 1.0)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Returns round numbers between two ends, at most so many steps apart."""
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _axes(last: float, ends: tuple[float, float], x: Callable, y: Callable, epoch_steps: float) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in _ticks(*ends, 4):
        at = f"{y(value):.1f}"
        yield f'<path d="M{_LEFT},{at}H{right}" stroke="currentColor" stroke-opacity=".15"/>'
        yield f'<text x="{_LEFT - 6}" y="{at}" dy="4" text-anchor="end">{value:.4g}</text>'
    for step in _ticks(0, last, 4):
        yield f'<path d="M{x(step):.1f},{bottom}v4" stroke="currentColor"/>'
        yield f'<text x="{x(step):.1f}" y="{bottom + 16}" text-anchor="middle">{step:,.0f}</text>'
    yield f'<path d="M{_LEFT},{_TOP}V{bottom}H{right}" fill="none" stroke="currentColor" stroke-opacity=".6"/>'
    yield f'<text x="{right}" y="{bottom + 30}" text-anchor="end" opacity=".75">step</text>'
    if epoch_steps > 0 and last > epoch_steps:
        yield f'<path d="M{_LEFT},{_TOP}H{right}" stroke="currentColor" stroke-opacity=".3"/>'
        for epoch in _ticks(0, last / epoch_steps, 4):
            yield f'<path d="M{x(epoch * epoch_steps):.1f},{_TOP}v-4" stroke="currentColor" stroke-opacity=".6"/>'
            yield f'<text x="{x(epoch * epoch_steps):.1f}" y="{_TOP - 7}" text-anchor="middle">{epoch:g}</text>'
        yield f'<text x="{right}" y="12" text-anchor="end" opacity=".75">epoch</text>'


def _drawn(line: Line, x: Callable, y: Callable) -> Iterator[str]:
    """Yields the pieces of a line, which ends where a value is not finite, and its marks."""
    piece: list[tuple[float, float]] = []
    pieces = [piece]
    for step, value in zip(line.steps, line.values, strict=True):
        if math.isfinite(value):
            piece.append((x(step), y(value)))
        elif piece:
            pieces.append(piece := [])
    for points in pieces:
        if len(points) > 1:
            yield _path(points, line.colour, line.width)
        for at in points if line.mark else points[:1] if len(points) == 1 else ():
            yield _mark(*at, line.mark or "circle", line.colour)


def _path(points: Sequence[tuple[float, float]], colour: str, width: float, dashes: str = "") -> str:
    way = "M" + "L".join(f"{across:.1f},{down:.1f}" for across, down in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _mark(across: float, down: float, mark: str, colour: str, size: float = 3.5) -> str:
    shapes = {
        "square": f"M{-size},{-size}H{size}V{size}H{-size}z",
        "diamond": f"M0,{-1.3 * size}L{1.3 * size},0L0,{1.3 * size}L{-1.3 * size},0z",
        "triangle": f"M0,{-1.2 * size}L{1.2 * size},{size}H{-1.2 * size}z",
        "circle": f"M{-size},0a{size},{size} 0 1 0 {2 * size},0a{size},{size} 0 1 0 {-2 * size},0z",
    }
    return f'<path d="{shapes[mark]}" transform="translate({across:.1f},{down:.1f})" fill="{colour}"/>'


def _legend(lines: Sequence[Line], levels: Sequence[Level], best: Best | None) -> Iterator[str]:
    for line in lines:
        sample = _path([(0, 6), (26, 6)], line.colour, line.width)
        yield _entry(sample + (_mark(13, 6, line.mark, line.colour) if line.mark else ""), line.name)
    for level in levels:
        yield _entry(_path([(0, 6), (26, 6)], level.colour, 1.5, level.dashes), level.name)
    if best:
        yield _entry(_ring(13, 6, 5), best.text)


def _ring(across: float, down: float, radius: float) -> str:
    place = f'cx="{across:.1f}" cy="{down:.1f}" r="{radius}"'
    return f'<circle {place} fill="none" stroke="currentColor" stroke-width="1.5"/>'


def _entry(sample: str, name: str) -> str:
    return (
        '<span style="display:inline-block;margin-right:14px;white-space:nowrap"><svg width="26" height="12" '
        f'aria-hidden="true" style="margin-right:5px;vertical-align:middle;display:inline">{sample}</svg>'
        f"{escape(name)}</span>"
    )


def _in_words(line: Line) -> str:
    last = next((value for value in reversed(line.values) if math.isfinite(value)), None)
    return f"{line.name} {last:.4g}" if last is not None else f"{line.name}: none yet"
