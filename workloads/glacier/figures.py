"""Figures of tiles, masks, predictions and runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from lib.report.figure import grid, save
from lib.scores import IGNORE
from lib.task import Batch

COLOURS = ("#6b5b4b", "#7fc8f8", "#e0a030", "#1f3fbf", "#4f9d4f", "#b04fb0", "#d04f4f", "#404040")  # of classes, again
_NOTHING = "#ffffff"  # no data, or no label


class Shown(NamedTuple):
    """A tile with its mask and prediction, as NumPy arrays."""

    image: np.ndarray  # (bands, S, S)
    target: np.ndarray  # (S, S)
    predicted: np.ndarray  # (S, S)


def shown(batch: Batch, predicted: Tensor, numbers: slice) -> list[Shown]:
    """Copies some tiles of a batch to the host; `predicted` is (B, S, S)."""
    arrays = (value[numbers].cpu().numpy() for value in (batch["image"], batch["target"], predicted))
    return [Shown(*tile) for tile in zip(*arrays, strict=True)]


def composite(image: np.ndarray) -> np.ndarray:
    """(bands, S, S) -> (S, S, 3): three bands, the third as red, stretched from the 2nd to the 98th percentile."""
    picked = image[[2, 1, 0]] if len(image) >= 3 else image[[0, 0, 0]]
    low, high = (np.nanpercentile(picked, q) if np.isfinite(picked).any() else 0.0 for q in (2, 98))
    return np.nan_to_num(np.clip((picked - low) / max(high - low, 1e-9), 0, 1), nan=1.0).transpose(1, 2, 0)


def predictions(tiles: Sequence[Shown], classes: Sequence[str], out: Path) -> Path:
    """Draws a row a tile: the image, the mask, the prediction, and where the two differ."""
    titles = ("tile", "mask", "prediction", "wrong")
    figure, axes = grid(len(tiles), len(titles), 2.6)
    for row, tile in zip(axes, tiles, strict=True):
        valid = tile.target != IGNORE
        for ax, title in zip(row, titles, strict=True):
            ax.set_title(title, fontsize=9)
        row[0].imshow(composite(tile.image))
        row[1].imshow(_painted(tile.target, classes))
        row[2].imshow(_painted(np.where(valid, tile.predicted, IGNORE), classes))
        row[3].imshow(np.where(valid, tile.predicted != tile.target, False), cmap="gray_r", vmin=0, vmax=1)
    _add_legend(figure, classes)
    return save(figure, out)


def tiles(pairs: Sequence[tuple[np.ndarray, np.ndarray]], classes: Sequence[str], out: Path) -> Path:
    """Draws (bands, S, S) tiles above their (S, S) masks."""
    figure, axes = grid(2, len(pairs), 2.4)
    for (image, target), above, below in zip(pairs, axes[0], axes[1], strict=True):
        above.imshow(composite(image))
        below.imshow(_painted(target, classes))
    _add_legend(figure, classes)
    return save(figure, out)


def runs(scores: Mapping[str, Mapping[str, float]], metrics: Sequence[str], out: Path) -> Path:
    """Draws bars of some metrics for each run, with the mean of the runs as a line."""
    figure, axes = grid(1, len(metrics), 3.2)
    for ax, metric in zip(axes[0], metrics, strict=True):
        named = {name: values[metric] for name, values in scores.items() if metric in values}
        ax.set_axis_on()
        ax.bar(range(len(named)), list(named.values()), color="#7fa8d8")
        if named:
            mean = float(np.mean(list(named.values())))
            ax.axhline(mean, color="black", linestyle="--", linewidth=1)
            ax.set_title(f"{metric}: mean {mean:.3f}", fontsize=10)
        ax.set_xticks(range(len(named)), list(named), rotation=60, fontsize=7, ha="right")
        ax.set_ylim(1.05 * min([0, *named.values()]), 1)  # MCC is below 0 where answers are worse than chance
    return save(figure, out)


def _painted(classes_of: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """(S, S) classes -> (S, S, 3) colours."""
    from matplotlib.colors import to_rgb

    palette = np.full((256, 3), to_rgb(_NOTHING))
    palette[: len(classes)] = [to_rgb(COLOURS[k % len(COLOURS)]) for k in range(len(classes))]
    return palette[classes_of]


def _add_legend(figure: Any, classes: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=COLOURS[k % len(COLOURS)], label=name) for k, name in enumerate(classes)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(classes), fontsize=9)
