"""Answers on a part of the data, tile by tile, beside the baselines: scores by scene, paired gains, figures."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib.report.figure import confusion, grid, save
from lib.report.result import write_table
from lib.scores import IGNORE, Interval, concluded, mcc, paired, per_class, present, scores_of
from lib.task import Batch
from lib.text import aligned

MEASURES = ("mcc", "mean_iou")
COLOURS = ("#6b5b4b", "#7fc8f8", "#e0a030", "#1f3fbf", "#4f9d4f", "#b04fb0", "#d04f4f", "#404040")  # of classes, again
_NOTHING = "#ffffff"  # no data, or no label
_DRAWS = 2_000
_WORST = 5  # scenes that the report names
_SHOWN = 4  # tiles of each figure


def tile_counts(predicted: Tensor, truth: Tensor, classes: int) -> Tensor:
    """(B, ...) classes and (B, ...) classes or IGNORE -> (B, classes, classes) counts; rows are the truth."""
    cells = classes * classes
    number = torch.where(truth == IGNORE, cells, truth.long() * classes + predicted.long()).flatten(1)
    number = number + (cells + 1) * torch.arange(len(number), device=number.device)[:, None]
    counts = torch.bincount(number.flatten(), minlength=len(number) * (cells + 1))
    return counts.view(-1, cells + 1)[:, :cells].reshape(-1, classes, classes)


def measured(counts: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """(..., classes, classes) counts -> (..., 2): MCC and mean IoU, as `lib.scores` has them; 0 without any pixel.

    The mean is over the `known` classes (..., classes): by default those that are there or predicted.
    """
    counts = counts.astype(np.float64)
    right, true, predicted = np.diagonal(counts, axis1=-2, axis2=-1), counts.sum(-1), counts.sum(-2)
    total, hits = true.sum(-1), right.sum(-1)
    covariance = hits * total - (true * predicted).sum(-1)
    spread = (total**2 - (true**2).sum(-1)) * (total**2 - (predicted**2).sum(-1))
    correlation = np.divide(covariance, np.sqrt(spread), out=np.zeros_like(total), where=spread > 0)
    union = true + predicted - right
    iou = np.divide(right, union, out=np.zeros_like(union), where=union > 0)
    classes = np.maximum((present(counts) if known is None else known).sum(-1), 1)
    return np.stack([correlation, iou.sum(-1) / classes], -1)


def gains(counts: np.ndarray, reference: np.ndarray, units: Sequence[Any]) -> dict[str, Interval]:
    """Returns by how much each of MEASURES is above that of a reference: (tiles, classes, classes) counts of both.

    `units` (tiles) says what each tile belongs to; of these so many are drawn with replacement as there are.
    """
    both = (summed(units, method)[1] for method in (counts, reference))
    return dict(zip(MEASURES, paired(measured, *both, _DRAWS), strict=True))


def summed(units: Sequence[Any], counts: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """Returns the different units, sorted, and the sum of the counts of each."""
    names, unit = np.unique(np.asarray(units), return_inverse=True)
    total = np.zeros((len(names), *counts.shape[1:]), counts.dtype)
    np.add.at(total, unit, counts)
    return names.tolist(), total


def strongest(baselines: Mapping[str, np.ndarray]) -> str:
    """Returns the name of the method with the best MCC over all tiles."""
    return max(baselines, key=lambda name: mcc(baselines[name].sum(0)))


class Shown(NamedTuple):
    """A tile with its mask and prediction, as NumPy arrays: (bands, S, S), (S, S) and (S, S)."""

    image: np.ndarray
    target: np.ndarray
    predicted: np.ndarray


class Tested:
    """Counts of each tile, the first tiles as examples, and the tiles with most wrong pixels, one of a scene."""

    def __init__(self, part: Any, classes: int):
        """`part` are the `Tiles` that are met in their order."""
        self.part, self.classes = part, classes
        self.counts = np.zeros((0, classes, classes), np.int64)  # (tiles, classes, classes), rows are the truth
        self.examples: list[Shown] = []
        self._worst: dict[int, tuple[int, Shown]] = {}  # by the number of the scene, the worst first

    def add(self, batch: Batch, predicted: Tensor) -> None:
        """Takes the next tiles with their answers, (B, S, S)."""

        def shown(place: int) -> Shown:
            return Shown(*(value[place].cpu().numpy() for value in (batch["image"], batch["target"], predicted)))

        scenes = self.part.store.table.scene[self.part.chosen[len(self.counts) :][: len(predicted)]]
        counts = tile_counts(predicted, batch["target"], self.classes).cpu().numpy()
        self.counts = np.concatenate([self.counts, counts])
        self.examples += map(shown, range(len(predicted))[: _SHOWN - len(self.examples)])
        wrong = counts.sum((1, 2)) - np.trace(counts, axis1=1, axis2=2)
        for place, (scene, pixels) in enumerate(zip(scenes.tolist(), wrong.tolist(), strict=True)):
            least = min(count for count, _ in self._worst.values()) if len(self._worst) == _SHOWN else -1
            if pixels > self._worst.get(scene, (least,))[0]:
                self._worst[scene] = pixels, shown(place)
                self._worst = dict(sorted(self._worst.items(), key=lambda item: -item[1][0])[:_SHOWN])

    def draw(self, classes: Sequence[str], folder: Path) -> None:
        """Draws the confusion matrix, examples and the worst tiles into a folder."""
        confusion(self.counts.sum(0), classes, folder / "confusion.png", unit="pixels")
        draw_predictions(self.examples, classes, folder / "predictions.png")
        draw_predictions([tile for _, tile in self._worst.values()], classes, folder / "worst.png")


def compare(
    classes: Sequence[str], counts: np.ndarray, scenes: Sequence[str], units: Sequence[str], numbers: np.ndarray,
    baselines: Mapping[str, np.ndarray], folder: Path, name: str = "network",
) -> str:  # fmt: skip
    """Writes evaluation.csv, scenes.csv and baselines.csv; returns tables for a person, with gains and worst scenes.

    `counts` and `baselines` are (tiles, classes, classes), of the baselines those of the tiles `numbers` alone;
    `scenes` and `units` (tiles) are names.
    """
    matrix = zip(classes, counts.sum(0).tolist(), strict=True)
    write_table(folder / "evaluation.csv", [["true class", *classes], *([cls, *row] for cls, row in matrix)])
    head, *rows = _by_scene(classes, *summed(scenes, counts))
    write_table(folder / "scenes.csv", [head, *rows])
    more = f" of {len(rows):,}; scenes.csv has all" if len(rows) > _WORST else ""
    worst = f"The worst scenes by mean IoU{more}:\n{aligned([head, *rows[:_WORST]], left=[0])}"
    if not baselines:
        return worst
    scores = {n: scores_of(c.sum(0), classes) for n, c in {**baselines, name: counts[numbers]}.items()}
    columns = [*MEASURES, *(f"iou_{cls}" for cls in classes if f"iou_{cls}" in scores[name])]
    methods, precise = (
        [["method", *columns], *([n, *(f"{own[key]:.{digits}f}" for key in columns)] for n, own in scores.items())]
        for digits in (4, 6)
    )
    write_table(folder / "baselines.csv", precise)
    tested_units = [units[number] for number in numbers]
    by_name = {n: gains(counts[numbers], reference, tested_units) for n, reference in baselines.items()}
    gained = [[f"{name} less {n}", *(value.signed for value in gain.values())] for n, gain in by_name.items()]
    best, many = strongest(baselines), len(set(tested_units))
    some = f"{len(numbers):,} of {len(counts):,} tiles of the test"
    return (
        f"{some if len(numbers) < len(counts) else 'The test'}, {many:,} scenes or squares that the split keeps "
        f"together:\n{aligned(methods, left=[0])}\n\n{aligned([['gain', *MEASURES], *gained], left=[0])}\n"
        f"{concluded(f'The {name}', best, 'MCC', by_name[best]['mcc'], many, 'scene')}\n\n{worst}"
    )


def _by_scene(classes: Sequence[str], names: Sequence[str], counts: np.ndarray) -> list[list[str]]:
    """Returns the cells of a table: a row a scene, the lowest mean IoU first."""
    rows: list[tuple[float, list[str]]] = []
    for name, matrix in zip(names, counts, strict=True):
        if scores := scores_of(matrix, classes):
            iou = ["absent" if math.isnan(value) else f"{value:.4f}" for value in per_class(matrix)["iou"]]
            columns = f"{1 - scores['accuracy']:.4f}", f"{scores['mcc']:.4f}", f"{scores['mean_iou']:.4f}"
            rows.append((scores["mean_iou"], [name, f"{matrix.sum()}", *columns, *iou]))
    head = ["scene", "pixels", "wrong", *MEASURES, *(f"iou_{cls}" for cls in classes)]
    return [head, *(cells for _, cells in sorted(rows, key=lambda row: (row[0], row[1][0])))]


def _composite(image: np.ndarray) -> np.ndarray:
    """(bands, S, S) -> (S, S, 3): three bands, the third as red, stretched from the 2nd to the 98th percentile."""
    picked = image[[2, 1, 0]] if len(image) >= 3 else image[[0, 0, 0]]
    low, high = (np.nanpercentile(picked, q) if np.isfinite(picked).any() else 0.0 for q in (2, 98))
    return np.nan_to_num(np.clip((picked - low) / max(high - low, 1e-9), 0, 1), nan=1.0).transpose(1, 2, 0)


def draw_predictions(tiles: Sequence[Shown], classes: Sequence[str], out: Path) -> Path:
    """Draws a row a tile: the image, the mask, the prediction, and where the two differ."""
    titles = ("tile", "mask", "prediction", "wrong")
    figure, axes = grid(len(tiles), len(titles), 2.6)
    for row, tile in zip(axes, tiles, strict=True):
        valid = tile.target != IGNORE
        for ax, title in zip(row, titles, strict=True):
            ax.set_title(title, fontsize=9)
        row[0].imshow(_composite(tile.image))
        row[1].imshow(_painted(tile.target, classes))
        row[2].imshow(_painted(np.where(valid, tile.predicted, IGNORE), classes))
        row[3].imshow(np.where(valid, tile.predicted != tile.target, False), cmap="gray_r", vmin=0, vmax=1)
    return _save_with_legend(figure, classes, out)


def draw_tiles(pairs: Sequence[tuple[np.ndarray, np.ndarray]], classes: Sequence[str], out: Path) -> Path:
    """Draws (bands, S, S) tiles above their (S, S) masks."""
    figure, axes = grid(2, len(pairs), 2.4)
    for (image, target), above, below in zip(pairs, axes[0], axes[1], strict=True):
        above.imshow(_composite(image))
        below.imshow(_painted(target, classes))
    return _save_with_legend(figure, classes, out)


def draw_runs(scores: Mapping[str, Mapping[str, float]], metrics: Sequence[str], out: Path) -> Path:
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


def _save_with_legend(figure: Any, classes: Sequence[str], out: Path) -> Path:
    from matplotlib.patches import Patch

    handles = [Patch(color=COLOURS[k % len(COLOURS)], label=name) for k, name in enumerate(classes)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(classes), fontsize=9)
    return save(figure, out)
