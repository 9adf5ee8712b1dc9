"""Figures: pictures with questions and answers, and where a network looks while it answers."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.report.figure import grid, save

_LINE = 34  # letters


@dataclass(frozen=True)
class Shown:
    """A picture with a question about it, the right answer, perhaps one that was given, and perhaps where it looked."""

    picture: np.ndarray  # (S, S, 3) uint8
    question: str
    right: str
    answer: str | None = None
    attention: np.ndarray | None = None  # (rows, columns) of patches, not negative


def samples(shown: Sequence[Shown], out: Path, columns: int = 4) -> Path:
    """Draws pictures with their texts; where attention is known a second one beside it, the brighter the more."""
    wide = 2 if any(one.attention is not None for one in shown) else 1
    rows = -(-len(shown) // columns)
    figure, axes = grid(rows, wide * min(columns, len(shown)), 2.6)
    places = axes.reshape(-1, wide)
    for one, place in zip(shown, places, strict=False):
        place[0].imshow(one.picture)
        place[0].set_title(_text(one), fontsize=8, color=_colour(one), loc="left")
        if one.attention is not None:
            side = one.picture.shape[0]
            place[1].imshow(one.picture.mean(-1), cmap="gray", vmin=0, vmax=255)
            heat = one.attention / max(float(one.attention.max()), 1e-9)
            place[1].imshow(
                heat, cmap="inferno", alpha=0.6, vmin=0, vmax=1, interpolation="bilinear",
                extent=(-0.5, side - 0.5, side - 0.5, -0.5),
            )  # fmt: skip
    return save(figure, out)


def _text(one: Shown) -> str:
    lines = [one.question, f"= {one.right}"]
    if one.answer is not None:
        lines.append(f"> {one.answer}")
    wrapped = "\n".join("\n".join(textwrap.wrap(line, _LINE)[:3]) for line in lines)
    return wrapped.replace("$", r"\$")  # which would begin a formula


def _colour(one: Shown) -> str:
    from workloads.vqa.scoring import exact

    return "black" if one.answer is None or exact(one.answer, one.right) else "#b03030"
