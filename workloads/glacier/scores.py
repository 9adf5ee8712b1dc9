"""Metrics of pixels from a confusion matrix."""

import math
from collections.abc import Sequence

import numpy as np

IGNORE = 255  # the label of what counts nowhere: no data, no label
ABSENT = math.nan  # the score of a class that there is nothing to say about; never 1.0, which would flatter a mean


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
