"""Judges answers tile by tile: scores, tables by scene, figures, and the gate between network and boosting."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lib.task import Batch
from lib.text import aligned
from trainbook import IGNORED, Judged
from trainbook.outputs.figure import confusion, grid, save
from trainbook.outputs.result import write_table
from trainbook.supervised.intervals import least
from trainbook.supervised.scoring import by_class, of_classes, tallied_classes

# Colours of classes, repeated for more classes
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
# Answers with an encoder: the share of boosting on encoder beside boosting with surroundings, and the deviation in
# pixels of a Gaussian of the probabilities
_SIGMAS = (0.0, 0.75, 1.5)
MIXED = tuple(itertools.product((0.5, 0.75, 1.0), _SIGMAS))
_SURE = 0.975  # one-sided
_MOST_PIXELS = 50_000  # pixels of validation that choose
Tile = tuple[np.ndarray, ...]  # image (bands, S, S), classes (S, S) and perhaps a prediction (S, S)


def sums_of(counts: np.ndarray) -> np.ndarray:
    """(..., classes, classes) counts -> (..., 3, classes) right, true and predicted pixels."""
    right = np.diagonal(counts, axis1=-2, axis2=-1)
    return np.stack([right, counts.sum(-1), counts.sum(-2)], -2)


def mcc(sums: np.ndarray) -> np.ndarray:
    """(..., 3, classes) -> (...) Matthews correlation, as Gorodkin's R_K (Comp. Biol. Chem. 28, 2004)."""
    return of_classes(sums)["mcc"]


def scores_of(sums: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Returns `mcc`, `accuracy`, `mean_iou`, `mean_f1`; by class `iou_x`, `precision_x`, `recall_x`, `f1_x`.

    `sums` (3, classes) are right, true and predicted pixels. A class without true pixels gets no scores of its own, so
    that all methods have the same keys; pixels predicted as it lower the means. Without pixels returns {}.
    """
    right, true, predicted = sums
    if not true.any():
        return {}
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


def tile_counts(predicted: Tensor, labels: Tensor, classes: int) -> np.ndarray:
    """(B, ...) classes and (B, ...) labels -> (B, classes, classes) counts; rows are the truth."""
    tile = torch.arange(len(labels), device=labels.device)
    tile = tile.view(-1, *[1] * (labels.dim() - 1))
    cell = (tile * classes + labels) * classes + predicted
    counts = torch.bincount(cell[labels != IGNORED], minlength=len(labels) * classes**2)
    return counts.view(-1, classes, classes).cpu().numpy()


def judged(counts: np.ndarray) -> Judged:
    """(tiles, classes, classes) counts -> each pair of classes in a tile, with its count."""
    tile, true, guess = counts.nonzero()
    return Judged(true, guess, counts[tile, true, guess], None, tile)


class Gate:
    """Chooses method and weight on a validation, whose tiles are added in their order."""

    def __init__(self, boosted: Any, groups: Sequence[str], log_p: dict[tuple[int, int], Tensor]):
        """`groups` (tiles) name scenes or map squares.

        `log_p` keeps boosting's (answers, B, classes, s, s) by number and size of a batch for later validations.
        """
        self.boosted = boosted
        self.log_p = log_p
        self.unit = np.unique(np.array(groups), return_inverse=True)[1]
        classes = boosted.bias.shape[1]
        shape = (boosted.number * len(WEIGHTS), self.unit.max() + 1, classes, classes)
        self._counts = np.zeros(shape, np.int64)  # by option and group
        self._done = 0  # tiles

    def add(self, batch: Batch, logits: Tensor) -> None:
        """Counts the answer of each option at some pixels of the next tiles."""
        labels = batch["labels"]
        pixels = len(self.unit) * labels[0].numel()
        every = max(1, math.isqrt(pixels // _MOST_PIXELS))
        places = slice(None, None, every), slice(None, None, every)
        if self.boosted.encoded is not None and every > 1:
            # A Gaussian needs neighbours: the middle of the tile, of twice the side
            size = labels.shape[-1]
            side = min(size, 2 * size // every)
            start = (size - side) // 2
            places = slice(start, start + side), slice(start, start + side)
        labels = labels[:, *places]
        network = logits[..., *places].float().log_softmax(1)
        key = (self._done, len(labels))
        if key not in self.log_p:
            self.log_p[key] = self.boosted.answers(batch["image"], places)
        options = itertools.product(self.log_p[key], WEIGHTS)
        unit = self.unit[self._done : self._done + len(labels)]
        for counts, (log_p, weight) in zip(self._counts, options, strict=True):
            mixture = (1 - weight) * log_p + weight * network
            np.add.at(counts, unit, tile_counts(mixture.argmax(1), labels, mixture.shape[1]))
        self._done += len(labels)

    def choose(self) -> np.ndarray:
        """Sets method and weight; returns (3, classes) the answer's right, true and predicted pixels.

        A step up, from pixels to surroundings, to a Gaussian, then to a share of the network, is taken if it surely
        gains. Boosting on encoder sees more than that with surroundings, so its best share is taken if it is better.
        """
        sums = sums_of(self._counts)
        best = 0
        steps = len(WEIGHTS)
        plain = self.boosted.number
        if self.boosted.encoded is not None:
            plain -= len(MIXED)
        for method in range(1, plain):
            best = _surer(sums, best, [method * steps])
        shares = range(plain, self.boosted.number, len(_SIGMAS))
        correlation = mcc(sums.sum(1))
        best = max([best, *(method * steps for method in shares)], key=correlation.__getitem__)
        if best >= plain * steps:
            best = _surer(sums, best, [best + place * steps for place in range(1, len(_SIGMAS))])
        best = _surer(sums, best, range(best + 1, best + steps))
        self.boosted.method.fill_(best // steps)
        self.boosted.weight.fill_(WEIGHTS[best % steps])
        return sums[best].sum(0)


def _surer(sums: np.ndarray, best: int, others: Sequence[int]) -> int:
    """Returns the option of `others` with the highest sum of MCC and mean IoU, if one of them surely gains in MCC.

    Its MCC must be above that of `best`; otherwise returns `best`. `sums` are (options, groups, 3, classes).
    """
    if not any(least_gain(sums[other], sums[best]) > 0 for other in others):
        return best
    scores = of_classes(sums.sum(1))
    correlation = scores["mcc"]
    above = [other for other in others if correlation[other] > correlation[best]]
    return max(above, key=(correlation + scores["mean_iou"]).__getitem__)


def least_gain(new: np.ndarray, old: np.ndarray) -> float:
    """(groups, 3, classes) sums of two answers -> the lower end of the gain of the first in MCC."""
    if len(new) < 2:
        return -math.inf
    new_total = new.sum(0)
    old_total = old.sum(0)
    whole = mcc(new_total) - mcc(old_total)
    others = mcc(new_total - new) - mcc(old_total - old)
    return float(least(whole, others, _SURE))


def about_gate(boosted: Any) -> str:
    """Returns sentences on how far the gate is open, and on the encoder's part."""
    if boosted.weight:
        text = (
            f"The gate is open: the answer has {float(boosted.weight):g} of the network's log-probabilities, "
            "the rest is boosting's."
        )
    else:
        text = (
            "The gate is shut: validation shows no sure gain of the network, so boosting answers."
        )
    if boosted.encoded is None:
        return text
    share, sigma = boosted.mixture
    if not share:
        return f"{text} Boosting on encoder is not used: on validation it is no better."
    smoothed = f", smoothed by a Gaussian of {sigma:g} pixels" if sigma else ""
    return f"{text} Of boosting, {share:.0%} is boosting on encoder{smoothed}."


class Tested:
    """Counts of each tile, and the tiles with most wrong pixels."""

    def __init__(self, boosted: Any = None):
        """With `boosted` the answer is its mixture with the network."""
        self.boosted = boosted
        self._counts: list[
            np.ndarray
        ] = []  # by batch (tiles, classes, classes), rows are the truth
        self._worst: list[tuple[int, Tile]] = []  # by wrong pixels, most first

    def add(self, batch: Batch, scores: Tensor) -> None:
        """Takes the next tiles with their scores, (B, classes, S, S) logits or probabilities."""
        if self.boosted is not None:
            scores = self.boosted.answer(batch["image"], scores.float().log_softmax(1))
        predicted = scores.argmax(1)
        counts = tile_counts(predicted, batch["labels"], scores.shape[1])
        self._counts.append(counts)
        wrong = counts.sum((1, 2)) - np.trace(counts, axis1=1, axis2=2)
        values = (batch["image"], batch["labels"], predicted)
        for place in np.argsort(-wrong, kind="stable")[:_SHOWN].tolist():
            tile = tuple(value[place].cpu().numpy() for value in values)
            self._worst.append((int(wrong[place]), tile))
        self._worst = sorted(self._worst, key=lambda item: -item[0])[:_SHOWN]

    @property
    def worst(self) -> list[Tile]:
        return [tile for _, tile in self._worst]

    @property
    def judged(self) -> Judged:
        return judged(np.concatenate(self._counts))

    @property
    def sums(self) -> np.ndarray:
        """(3, classes) right, true and predicted pixels."""
        return sums_of(np.concatenate(self._counts).sum(0))


def draw_confusion(judged: Judged, classes: Sequence[str], folder: Path) -> None:
    """Writes confusion.csv into a folder, and draws it into its `plots`."""
    assert judged.counts is not None
    matrix = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(matrix, (judged.true, judged.guess), judged.counts)
    rows = [[cls, *row] for cls, row in zip(classes, matrix.tolist(), strict=True)]
    write_table(folder / "confusion.csv", [["true class", *classes], *rows])
    confusion(matrix, classes, folder / "plots" / "confusion.png", unit="pixels")


def write_scenes(
    judged: Judged, scenes: Sequence[str], classes: Sequence[str], folder: Path
) -> str:
    """Writes scenes.csv, a row a scene, the lowest mean IoU first; returns the worst rows as text.

    `scenes` (tiles) are names.
    """
    names, scene = np.unique(scenes, return_inverse=True)
    sums = tallied_classes(judged, scene[judged.sample], len(names), len(classes))
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
            rows.append([names[k], f"{pixels[k]:.0f}", *cells])
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


def draw_tiles(tiles: Sequence[Tile], classes: Sequence[str], out: Path) -> Path:
    """Draws a row a tile: image, mask, and if given the prediction with its errors."""
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
        unknown = ~np.isin(target, range(len(classes)))
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
