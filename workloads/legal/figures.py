"""Figures of the data: how often each role comes, and how long the inputs are."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lib.report.figure import grid, save

_COLOURS = ("#0072B2", "#E69F00", "#009E73")  # of Okabe and Ito, for any kind of colour vision


def classes(counts: Mapping[str, np.ndarray], names: Sequence[str], out: Path) -> Path:
    """Draws the share of each role in each part of the data."""
    figure, axes = grid(1, 1, 5.0)
    ax = axes[0][0]
    ax.set_axis_on()
    height = 0.8 / len(counts)
    for number, (part, own) in enumerate(counts.items()):
        places = np.arange(len(names)) + (number - (len(counts) - 1) / 2) * height
        label = f"{part}: {own.sum():,} sentences"
        ax.barh(places, own / max(1, own.sum()), height, color=_COLOURS[number % len(_COLOURS)], label=label)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel("share of the sentences")
    ax.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0))  # above, where no bar is
    return save(figure, out)


def lengths(tokens: np.ndarray, most: int, out: Path) -> Path:
    """Draws how many tokens the training inputs have, with the most that an input may have as a line."""
    figure, axes = grid(1, 1, 4.2)
    ax = axes[0][0]
    ax.set_axis_on()
    ax.hist(tokens, bins=min(60, max(10, int(tokens.max()))), color=_COLOURS[0])
    ax.axvline(most, color="black", linestyle="--", linewidth=1, label=f"workload.context.length: {most}")
    ax.set_xlabel("tokens of an input")
    ax.set_ylabel("training sentences")
    ax.legend(fontsize="small")
    return save(figure, out)
