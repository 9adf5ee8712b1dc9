"""Judges answers tile by tile: counts, scores by scene, figures, and how much of the network counts beside boosting."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lib.task import Batch
from lib.text import aligned
from trainbook.outputs.figure import confusion, grid, save
from trainbook.outputs.result import write_table
from trainbook.supervised.intervals import least
from trainbook.supervised.scoring import Judged, by_class, of_classes
from workloads.glacier.settings import IGNORE

# Colours of classes, from the first again if there are more
COLOURS = (
    "#6b5b4b",
    "#7fc8f8",
    "#e0a030",
    "#1f3fbf",
    "#4f9d4f",
    "#b04fb0",
    "#d04f4f",
    "#404040",
)
_WORST = 5  # scenes that the report names
_SHOWN = 4  # tiles with most wrong pixels
# Weights of the network's log-probabilities, the rest is boosting's; .9 has rare classes that .75 loses
WEIGHTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_SURE = 0.975  # one-sided
_MOST_PIXELS = 50_000  # pixels of validation that choose
# A tile (bands, S, S), its mask (S, S) and perhaps a prediction (S, S)
Shown = tuple[np.ndarray, ...]


def sums_of(counts: np.ndarray) -> np.ndarray:
    """(..., classes, classes) counts -> (..., 3, classes) right, true and predicted pixels."""
    right = np.diagonal(counts, axis1=-2, axis2=-1)
    return np.stack([right, counts.sum(-1), counts.sum(-2)], -2)


def mcc(counts: np.ndarray) -> np.ndarray:
    """(..., classes, classes) counts -> (...) Matthews' correlation, as Gorodkin's R_K (Comp. Biol. Chem. 28, 2004)."""
    return of_classes(sums_of(counts))["mcc"]


def scores_of(matrix: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Returns `mcc`, `accuracy`, `mean_iou`, `mean_f1`; of each class `iou_x`, `precision_x`, `recall_x`, `f1_x`.

    `matrix` is (classes, classes) counts. A class without true pixels has no entries of its own, so that two methods on
    the same data have the same keys; if it was predicted, its 0 is part of the means. Without any pixel there are no
    scores.
    """
    if not matrix.sum():
        return {}
    sums = sums_of(matrix)
    right, true, predicted = sums
    f1, iou = by_class(sums)
    precision = right / np.maximum(predicted, 1)
    recall = right / np.maximum(true, 1)
    columns = {"iou": iou, "precision": precision, "recall": recall, "f1": f1}
    whole = of_classes(sums)
    scores = {name: float(whole[name]) for name in ("mcc", "accuracy", "mean_iou")}
    scores["mean_f1"] = float(whole["macro_f1"])
    for k in np.flatnonzero(true).tolist():
        for kind, column in columns.items():
            scores[f"{kind}_{names[k]}"] = float(column[k])
    return scores


def tile_counts(predicted: Tensor, truth: Tensor, classes: int) -> Tensor:
    """(B, ...) classes and (B, ...) classes or IGNORE -> (B, classes, classes) counts; rows are the truth."""
    cells = classes * classes
    cell = truth.long() * classes + predicted.long()
    cell = torch.where(truth == IGNORE, cells, cell).flatten(1)
    tiles = len(cell)
    first = (cells + 1) * torch.arange(tiles, device=cell.device)
    number = cell + first[:, None]
    counts = torch.bincount(number.flatten(), minlength=tiles * (cells + 1))
    return counts.view(-1, cells + 1)[:, :cells].reshape(-1, classes, classes)


def judged(counts: np.ndarray) -> Judged:
    """(tiles, classes, classes) counts -> each pair of classes that came in a tile, and how often."""
    tile, true, guess = counts.nonzero()
    return Judged(true, guess, counts[tile, true, guess], None, tile)


class Gate:
    """Chooses method and weight on validation, whose tiles come in their order."""

    def __init__(self, boosted: Any, part: Any, groups: Any):
        """`groups` (tiles) are the scenes or squares of the tiles."""
        self.boosted = boosted
        self.part = part
        self.unit = np.unique(groups, return_inverse=True)[1]
        # (methods, B, classes, s, s) by number and size of a batch
        self._log_p: dict[tuple[int, int], Tensor] = {}

    def counted(self, first: int, batch: Batch, logits: Tensor) -> np.ndarray:
        """Returns (options, B, classes, classes) counts of some pixels of the tiles from a number on."""
        target = batch["target"]
        pixels = len(self.unit) * target[0].numel()
        every = max(1, math.isqrt(pixels // _MOST_PIXELS))
        places = slice(None, None, every), slice(None, None, every)
        target = target[:, *places]
        network = logits[..., *places].float().log_softmax(1)
        key = (first, len(target))
        if key not in self._log_p:
            image = batch["image"]
            methods = range(len(self.boosted.bias))
            each = [self.boosted.log_p(image, method, places) for method in methods]
            self._log_p[key] = torch.stack(each)
        counts = []
        for log_p in self._log_p[key]:
            for weight in WEIGHTS:
                mixture = (1 - weight) * log_p + weight * network
                counts.append(tile_counts(mixture.argmax(1), target, mixture.shape[1]))
        return torch.stack(counts).cpu().numpy()

    def choose(self, counts: np.ndarray) -> np.ndarray:
        """Sets method and weight by (options, tiles, classes, classes) counts; returns those of the answer.

        A step up, from pixels to surroundings, then to a share of the network, is taken if it surely gains.
        """
        sums = np.zeros((len(counts), self.unit.max() + 1, *counts.shape[2:]), np.int64)
        np.add.at(sums, (slice(None), self.unit), counts)
        best = 0
        steps = len(WEIGHTS)
        for method in range(1, len(self.boosted.bias)):
            best = _surer(sums, best, [method * steps])
        best = _surer(sums, best, range(best + 1, best + steps))
        self.boosted.method.fill_(best // steps)
        self.boosted.weight.fill_(WEIGHTS[best % steps])
        return counts[best]


def _surer(sums: np.ndarray, best: int, others: Sequence[int]) -> int:
    """Returns the one of `others` highest in MCC and mean IoU together, if one of them surely has more MCC.

    It must be above `best` in MCC too; else returns `best`. `sums` are (options, groups, classes, classes).
    """
    if not any(least_gain(sums[other], sums[best]) > 0 for other in others):
        return best
    scores = of_classes(sums_of(sums.sum(1)))
    correlation = scores["mcc"]
    above = [other for other in others if correlation[other] > correlation[best]]
    return max(above, key=(correlation + scores["mean_iou"]).__getitem__)


def least_gain(new: np.ndarray, old: np.ndarray) -> float:
    """(groups, classes, classes) counts of two answers -> the lower end of the gain of the first in MCC."""
    if len(new) < 2:
        return -math.inf
    new_total = new.sum(0)
    old_total = old.sum(0)
    whole = mcc(new_total) - mcc(old_total)
    others = mcc(new_total - new) - mcc(old_total - old)
    return float(least(whole, others, _SURE))


class Tested:
    """Counts of each tile, and the tiles with most wrong pixels."""

    def __init__(self, part: Any, classes: int):
        """`part` are the `Tiles`, which come in their order."""
        self.part = part
        self.classes = classes
        # (tiles, classes, classes), rows are the truth
        self.counts = np.zeros((0, classes, classes), np.int64)
        self._worst: list[tuple[int, Shown]] = []  # by wrong pixels, most first

    def add(self, batch: Batch, predicted: Tensor) -> None:
        """Takes the next tiles with their answers, (B, S, S)."""
        counts = tile_counts(predicted, batch["target"], self.classes).cpu().numpy()
        self.counts = np.concatenate([self.counts, counts])
        wrong = counts.sum((1, 2)) - np.trace(counts, axis1=1, axis2=2)
        values = (batch["image"], batch["target"], predicted)
        for place in np.argsort(-wrong, kind="stable")[:_SHOWN].tolist():
            tile = tuple(value[place].cpu().numpy() for value in values)
            self._worst.append((int(wrong[place]), tile))
        self._worst = sorted(self._worst, key=lambda item: -item[0])[:_SHOWN]

    def draw(self, classes: Sequence[str], folder: Path) -> None:
        """Writes confusion.csv into a folder and draws it and the worst tiles into its `plots`."""
        matrix = self.counts.sum(0)
        plots = folder / "plots"
        rows = [[cls, *row] for cls, row in zip(classes, matrix.tolist(), strict=True)]
        write_table(folder / "confusion.csv", [["true class", *classes], *rows])
        confusion(matrix, classes, plots / "confusion.png", unit="pixels")
        draw_tiles([tile for _, tile in self._worst], classes, plots / "worst.png")


def write_scenes(
    classes: Sequence[str], scenes: Sequence[str], counts: np.ndarray, folder: Path
) -> str:
    """Writes scenes.csv, a row a scene, the lowest mean IoU first; returns the worst rows as text.

    `scenes` (tiles) are names, `counts` (tiles, classes, classes).
    """
    names, scene = np.unique(scenes, return_inverse=True)
    matrices = np.zeros((len(names), *counts.shape[1:]), np.int64)
    np.add.at(matrices, scene, counts)
    sums = sums_of(matrices)
    scores = of_classes(sums)
    iou = by_class(sums)[1]
    iou = np.where(sums[:, 1:].any(1), iou, np.nan)
    pixels = sums[:, 1].sum(1)
    wrong = 1 - scores["accuracy"]
    columns = [wrong, scores["mcc"], scores["mean_iou"], *iou.T]
    head = ["scene", "pixels", "wrong", "mcc", "mean_iou", *(f"iou_{cls}" for cls in classes)]
    rows = []
    for k in np.argsort(scores["mean_iou"], kind="stable"):
        if pixels[k]:
            cells = [_cell(column[k]) for column in columns]
            rows.append([names[k], f"{pixels[k]}", *cells])
    write_table(folder / "scenes.csv", [head, *rows])
    more = ""
    if len(rows) > _WORST:
        more = f" of {len(rows):,}; scenes.csv has all"
    table = aligned([head, *rows[:_WORST]], left=[0])
    return f"The worst scenes by mean IoU{more}:\n{table}"


def _cell(score: float) -> str:
    return "absent" if math.isnan(score) else f"{score:.4f}"


def _composite(image: np.ndarray) -> np.ndarray:
    """(bands, S, S) -> (S, S, 3): three bands, the third as red, stretched from the 2nd to the 98th percentile."""
    picked = image[[2, 1, 0]] if len(image) >= 3 else image[[0, 0, 0]]
    low = high = 0.0
    if np.isfinite(picked).any():
        low, high = np.nanpercentile(picked, (2, 98))
    stretched = np.clip((picked - low) / max(high - low, 1e-9), 0, 1)
    return np.nan_to_num(stretched, nan=1.0).transpose(1, 2, 0)


def draw_tiles(tiles: Sequence[Shown], classes: Sequence[str], out: Path) -> Path:
    """Draws a row a tile: the image, the mask, and the prediction with its errors, if there is one."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    titles = ("tile", "mask", "prediction", "wrong")[: 2 if len(tiles[0]) == 2 else 4]
    figure, axes = grid(len(tiles), len(titles), 2.6)
    colours = [COLOURS[k % len(COLOURS)] for k in range(len(classes))]
    painted: dict[str, Any] = {"cmap": ListedColormap(colours), "interpolation": "nearest"}
    painted |= {"vmin": 0, "vmax": len(classes) - 1}
    for row, (image, target, *predicted) in zip(axes, tiles, strict=True):
        for ax, title in zip(row, titles, strict=True):
            ax.set_title(title, fontsize=9)
        unknown = target == IGNORE
        row[0].imshow(_composite(image))
        row[1].imshow(np.ma.array(target, mask=unknown), **painted)
        for answer in predicted:
            wrong = ~unknown & (answer != target)
            row[2].imshow(np.ma.array(answer, mask=unknown), **painted)
            row[3].imshow(wrong, cmap="gray_r", vmin=0, vmax=1)
    named = zip(colours, classes, strict=True)
    handles = [Patch(color=colour, label=name) for colour, name in named]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(classes), fontsize=9)
    return save(figure, out)
