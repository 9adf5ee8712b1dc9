"""Metrics of a classification, of samples or pixels, from a confusion matrix, and intervals over draws of groups."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

IGNORE = 255  # the label of what counts nowhere: no data, no label
ABSENT = math.nan  # the score of a class that there is nothing to say about; never 1.0, which would flatter a mean
_SEED = 1  # of the draws: two methods on the same units meet the same ones
_AT_ONCE = 1000  # draws
_BOUNDS = (2.5, 97.5)  # per cent


class Interval(NamedTuple):
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


def concluded(name: str, best: str, measure: str, gain: Interval, units: int, unit: str, is_error: bool = False) -> str:
    """Returns a sentence on whether a method is above the strongest baseline, as far as draws of the units can tell.

    Of an error, of which less is better, it says so: "better than".
    """
    sides = ("level with", "worse than", "better than") if is_error else ("level with", "above", "below")
    side = sides[(gain.value > 0) - (gain.value < 0)]
    beside = f"{name} is {side} the strongest baseline by {measure}, {best}: {gain.signed}"
    if math.isnan(gain.low):
        return f"{beside}. There is one {unit} alone, so nothing says how far chance goes."
    if gain.low <= 0 <= gain.high:
        return f"{beside}. The interval, over draws of {units:,} {unit}s, holds 0: this test does not tell them apart."
    return f"{beside}. The interval is over draws of {units:,} {unit}s, paired."


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
