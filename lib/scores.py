"""Metrics of a classification, of samples or pixels, from a confusion matrix that is counted on the device."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

IGNORE = 255  # the label of what counts nowhere: no data, no label
ABSENT = math.nan  # the score of a class that there is nothing to say about; never 1.0, which would flatter a mean
_SEED = 1  # of the draws: two methods on the same units meet the same ones
_AT_ONCE = 1000  # draws
_BOUNDS = (2.5, 97.5)  # per cent


@dataclass(frozen=True)
class Interval:
    """A score, and the bounds that 95 % of the draws of what was tested lie in; NaN where there is but one to draw."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f}" + ("" if math.isnan(self.low) else f" [{self.low:.3f}, {self.high:.3f}]")

    @property
    def signed(self) -> str:
        return f"{self.value:+.3f}" + ("" if math.isnan(self.low) else f" [{self.low:+.3f}, {self.high:+.3f}]")


def resampled(counts: np.ndarray, draws: int) -> np.ndarray:
    """(units, ...) counts -> (draws, ...) sums over as many units, drawn with replacement."""
    units, draw = len(counts), np.random.default_rng(_SEED)
    sizes = [_AT_ONCE] * (draws // _AT_ONCE) + [draws % _AT_ONCE] * bool(draws % _AT_ONCE)
    weights = (draw.multinomial(units, np.full(units, 1 / units), size) for size in sizes)
    sums = [each.astype(np.float64) @ counts.reshape(units, -1) for each in weights]
    return np.concatenate(sums).reshape(draws, *counts.shape[1:])


def intervals(values: np.ndarray, draws: np.ndarray, units: int) -> list[Interval]:
    """(M) values and (draws, M) the same of each draw -> M intervals; of one unit nothing can be drawn."""
    low, high = np.percentile(draws, _BOUNDS, axis=0) if units > 1 else np.full((2, len(values)), math.nan)
    return [Interval(*map(float, ends)) for ends in zip(values, low, high, strict=True)]


def concluded(name: str, best: str, measure: str, gain: Interval, units: int, unit: str) -> str:
    """Returns a sentence on whether a method is above the strongest baseline, as far as draws of the units can tell."""
    side = "above" if gain.value > 0 else "below" if gain.value < 0 else "level with"
    beside = f"{name} is {side} the strongest baseline by {measure}, {best}: {gain.signed}"
    if math.isnan(gain.low):
        return f"{beside}. There is one {unit} alone, so nothing says how far chance goes."
    if gain.low <= 0 <= gain.high:
        return f"{beside}. The interval, over draws of {units:,} {unit}s, holds 0: this test does not tell them apart."
    return f"{beside}. The interval is over draws of {units:,} {unit}s, paired."


def present(counts: np.ndarray) -> np.ndarray:
    """(..., classes, classes) counts -> (..., classes) whether a class is there or predicted."""
    return counts.sum(-1) + counts.sum(-2) > 0


def above(measure: Callable[..., np.ndarray], counts: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Returns by how much `measure(counts, classes)` is above that of a reference, over the classes of either."""
    known = present(counts) | present(reference)
    return measure(counts, known) - measure(reference, known)


def paired(measure: Callable[..., np.ndarray], counts: np.ndarray, reference: np.ndarray, draws: int) -> list[Interval]:
    """(units, classes, classes) counts of two methods -> what `above` returns, with intervals over the same draws."""
    drawn = above(measure, resampled(counts, draws), resampled(reference, draws))
    return intervals(above(measure, counts.sum(0), reference.sum(0)), drawn, len(counts))


class Confusion:
    """Counts of (true class, predicted class) over all valid pixels: rows are the truth, as in scikit-learn."""

    def __init__(self, classes: int, device: torch.device | None = None):
        self.classes = classes
        self._counts = torch.zeros(classes * classes, dtype=torch.int64, device=device)

    def add(self, predicted: Tensor, truth: Tensor) -> None:
        """Counts integer tensors of one shape, whatever it is; what has IGNORE as its truth is left out."""
        K = self.classes
        cells = torch.where(truth == IGNORE, K * K, truth.long() * K + predicted.long())
        self._counts += torch.bincount(cells.flatten(), minlength=K * K + 1)[: K * K]

    @property
    def matrix(self) -> np.ndarray:
        """(classes, classes) int64, on the host."""
        return self._counts.view(self.classes, self.classes).cpu().numpy()

    def scores(self, names: Sequence[str]) -> dict[str, float]:
        """Returns the scores of `scores_of` over what was counted."""
        return scores_of(self.matrix, names)

    def write_csv(self, names: Sequence[str], path: Path) -> None:
        """Writes the counts with a row for each true class and a column for each predicted one."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["true class", *names])
            writer.writerows([name, *row] for name, row in zip(names, self.matrix.tolist(), strict=True))


def scores_of(matrix: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Returns `mcc`, `accuracy`, `mean_iou`, `mean_f1`; of each class `iou_x`, `precision_x`, `recall_x`, `f1_x`.

    `matrix` is (classes, classes) counts, rows the truth. A class without true pixels has no entries of its own, so
    that two methods on the same data have the same keys; where it was predicted, its 0 is part of the means. A class
    that was never predicted has precision 0. Without any pixel there are no scores.
    """
    if not matrix.sum():
        return {}
    columns = per_class(matrix)
    scores = {"mcc": mcc(matrix), "accuracy": float(np.trace(matrix) / matrix.sum())}
    for kind in ("iou", "f1"):
        known = [score for score in columns[kind] if not math.isnan(score)]
        scores[f"mean_{kind}"] = sum(known) / len(known)
    for k in np.flatnonzero(matrix.sum(1)):
        for kind, column in columns.items():
            scores[f"{kind}_{names[k]}"] = 0.0 if math.isnan(column[k]) else column[k]
    return scores


def mcc(matrix: np.ndarray) -> float:
    """(classes, classes) counts -> Matthews' correlation, as Gorodkin's R_K (Comp. Biol. Chem. 28, 2004, equation 8).

    0 where truth or prediction has only one class, as in scikit-learn; ABSENT without any pixel. In Python's whole
    numbers, because the squares of 10^10 pixels pass 64 bits.
    """
    true = [int(n) for n in matrix.sum(1)]
    predicted = [int(n) for n in matrix.sum(0)]
    pixels, right = sum(true), int(np.trace(matrix))
    if not pixels:
        return ABSENT
    covariance = right * pixels - sum(t * p for t, p in zip(true, predicted, strict=True))
    spread = (pixels**2 - sum(t * t for t in true)) * (pixels**2 - sum(p * p for p in predicted))
    return covariance / math.sqrt(spread) if spread else 0.0


def per_class(matrix: np.ndarray) -> dict[str, list[float]]:
    """(classes, classes) counts -> `iou`, `precision`, `recall` and `f1`, the harmonic mean of both, of each class.

    ABSENT where there is nothing to divide by: for a class that is neither there nor predicted, as precision for one
    that is not predicted, as recall for one that is not there.
    """
    right, predicted, true = matrix.diagonal(), matrix.sum(0), matrix.sum(1)
    with np.errstate(invalid="ignore"):  # 0 / 0
        ratios = {
            "iou": right / (predicted + true - right),
            "precision": right / predicted,
            "recall": right / true,
            "f1": 2 * right / (predicted + true),
        }
    return {kind: ratio.tolist() for kind, ratio in ratios.items()}
