"""Answers on a part of the data, tile by tile, beside the baselines: scores by scene, paired gains, figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lib.report import figure
from lib.report.result import write_table
from lib.scores import IGNORE, Confusion, Interval, concluded, mcc, paired, per_class, present, scores_of
from lib.task import Batch
from lib.text import aligned
from workloads.glacier import figures
from workloads.glacier.figures import Shown

MEASURES = ("mcc", "mean_iou")
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
    names, unit = np.unique(np.asarray(units), return_inverse=True)
    both = np.zeros((2, len(names), *counts.shape[1:]))
    np.add.at(both, (slice(None), unit), np.stack([counts, reference]))
    return dict(zip(MEASURES, paired(measured, *both, _DRAWS), strict=True))


def strongest(baselines: Mapping[str, np.ndarray]) -> str:
    """Returns the name of the method with the best MCC over all tiles."""
    return max(baselines, key=lambda name: mcc(baselines[name].sum(0)))


class Tested:
    """Counts of each tile, the first tiles as examples, and the tiles with most wrong pixels, one of a scene."""

    def __init__(self, part: Any, classes: int):
        """`part` are the `Tiles` that are met in their order."""
        self.part, self.classes = part, classes
        self.counts = np.zeros((0, classes, classes), np.int64)  # (tiles, classes, classes), rows are the truth
        self.confusion, self.examples = Confusion(classes), list[Shown]()
        self._worst: dict[int, tuple[int, Shown]] = {}  # by the number of the scene, the worst first

    def add(self, batch: Batch, predicted: Tensor) -> None:
        """Takes the next tiles with their answers, (B, S, S)."""
        chosen = self.part.chosen[len(self.counts) : len(self.counts) + len(predicted)]
        counts = tile_counts(predicted, batch["target"], self.classes).cpu().numpy()
        self.counts = np.concatenate([self.counts, counts])
        self.confusion.add(predicted.cpu(), batch["target"].cpu())
        self.examples += figures.shown(batch, predicted, slice(_SHOWN - len(self.examples)))
        wrong = counts.sum((1, 2)) - np.trace(counts, axis1=1, axis2=2)
        scenes = self.part.store.table.scene[chosen]
        for number, (scene, pixels) in enumerate(zip(scenes.tolist(), wrong.tolist(), strict=True)):
            least = min(count for count, _ in self._worst.values()) if len(self._worst) == _SHOWN else -1
            if pixels > self._worst.get(scene, (least,))[0]:
                self._worst[scene] = pixels, figures.shown(batch, predicted, slice(number, number + 1))[0]
                self._worst = dict(sorted(self._worst.items(), key=lambda item: -item[1][0])[:_SHOWN])

    @property
    def worst(self) -> list[Shown]:
        """The tiles with most wrong pixels, each of another scene, the worst first."""
        return [tile for _, tile in self._worst.values()]

    def draw(self, classes: tuple[str, ...], folder: Path) -> None:
        """Draws the confusion matrix, examples and the worst tiles into `plots`."""
        figure.confusion(self.confusion.matrix, classes, folder / "plots" / "confusion.png", unit="pixels")
        figures.predictions(self.examples, classes, folder / "plots" / "predictions.png")
        figures.predictions(self.worst, classes, folder / "plots" / "worst.png")


@dataclass(frozen=True)
class Judged:
    """What a network and its baselines reached on the tiles of a part, all (tiles, classes, classes) counts.

    The baselines are scored on the tiles `numbers` alone. `scenes` and `units` (tiles) are names.
    """

    classes: Sequence[str]
    counts: np.ndarray
    baselines: Mapping[str, np.ndarray]
    numbers: np.ndarray
    scenes: Sequence[str]
    units: Sequence[str]
    name: str = "network"

    def text(self) -> str:
        """Returns tables for a person: every method, the gains over each baseline, and the worst scenes."""
        head, *rows = self._scenes()
        more = f" of {len(rows):,}; scenes.csv has all" if len(rows) > _WORST else ""
        worst = f"The worst scenes by mean IoU{more}:\n{aligned([head, *rows[:_WORST]], left=[0])}"
        if not self.baselines:
            return worst
        units = [self.units[number] for number in self.numbers]
        by_name = {name: gains(self.counts[self.numbers], counts, units) for name, counts in self.baselines.items()}
        best, many = strongest(self.baselines), len(set(units))
        some = f"{len(self.numbers):,} of {len(self.counts):,} tiles of the test"
        where = some if len(self.numbers) < len(self.counts) else "The test"
        gained = [[f"{self.name} less {n}", *(one.signed for one in gain.values())] for n, gain in by_name.items()]
        return (
            f"{where}, {many:,} scenes or squares that the split keeps together:\n"
            f"{aligned(self._methods(digits=4), left=[0])}\n\n{aligned([['gain', *MEASURES], *gained], left=[0])}\n"
            f"{concluded(f'The {self.name}', best, 'MCC', by_name[best]['mcc'], many, 'scene')}\n\n{worst}"
        )

    def write(self, folder: Path) -> None:
        """Writes baselines.csv, a row a method, and scenes.csv, a row a scene, the worst first."""
        write_table(folder / "scenes.csv", self._scenes())
        if self.baselines:
            write_table(folder / "baselines.csv", self._methods(digits=6))

    def _methods(self, digits: int) -> list[list[str]]:
        """Returns the cells of a table: a row a method with its scores on the tiles that all were scored on."""
        every = {**self.baselines, self.name: self.counts[self.numbers]}
        by_name = {name: scores_of(counts.sum(0), self.classes) for name, counts in every.items()}
        columns = [*MEASURES, *(f"iou_{cls}" for cls in self.classes if f"iou_{cls}" in by_name[self.name])]
        rows = [[name, *(f"{scores[key]:.{digits}f}" for key in columns)] for name, scores in by_name.items()]
        return [["method", *columns], *rows]

    def _scenes(self) -> list[list[str]]:
        """Returns the cells of a table: a row a scene, the lowest mean IoU first."""
        names, of = np.unique(np.asarray(self.scenes), return_inverse=True)
        by_scene = np.zeros((len(names), *self.counts.shape[1:]), np.int64)
        np.add.at(by_scene, of, self.counts)
        rows: list[tuple[float, list[str]]] = []
        for name, counts in zip(names.tolist(), by_scene, strict=True):
            if scores := scores_of(counts, self.classes):
                iou = ["absent" if math.isnan(value) else f"{value:.4f}" for value in per_class(counts)["iou"]]
                head = [f"{counts.sum()}", f"{1 - scores['accuracy']:.4f}", f"{scores['mcc']:.4f}"]
                rows.append((scores["mean_iou"], [name, *head, f"{scores['mean_iou']:.4f}", *iou]))
        columns = ["scene", "pixels", "wrong", *MEASURES, *(f"iou_{cls}" for cls in self.classes)]
        return [columns, *(cells for _, cells in sorted(rows, key=lambda row: (row[0], row[1][0])))]
