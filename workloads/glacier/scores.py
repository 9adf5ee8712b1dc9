"""Metrics of pixels from counts of classes, whose rows are the truth, by the formulas of `lib.supervised.scoring`."""

from collections.abc import Sequence

import numpy as np

from lib.supervised.scoring import by_class, of_classes

IGNORE = 255  # the label of what counts nowhere: no data, no label


def sums_of(counts: np.ndarray) -> np.ndarray:
    """(..., classes, classes) counts -> (..., 3, classes) right, true and predicted pixels."""
    return np.stack([np.diagonal(counts, axis1=-2, axis2=-1), counts.sum(-1), counts.sum(-2)], -2)


def mcc(counts: np.ndarray) -> np.ndarray:
    """(..., classes, classes) counts -> (...) Matthews' correlation, as Gorodkin's R_K (Comp. Biol. Chem. 28, 2004)."""
    return of_classes(sums_of(counts))["mcc"]


def scores_of(matrix: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Returns `mcc`, `accuracy`, `mean_iou`, `mean_f1`; of each class `iou_x`, `precision_x`, `recall_x`, `f1_x`.

    `matrix` is (classes, classes) counts. A class without true pixels has no entries of its own, so that two methods on
    the same data have the same keys; where it was predicted, its 0 is part of the means. Without any pixel there are no
    scores.
    """
    if not matrix.sum():
        return {}
    right, true, predicted = sums = sums_of(matrix)
    f1, iou = by_class(sums)
    precision, recall = right / np.maximum(predicted, 1), right / np.maximum(true, 1)
    columns = {"iou": iou, "precision": precision, "recall": recall, "f1": f1}
    whole = of_classes(sums)
    scores = {name: whole[name] for name in ("mcc", "accuracy", "mean_iou")} | {"mean_f1": whole["macro_f1"]}
    there = np.flatnonzero(true).tolist()
    scores |= {f"{kind}_{names[k]}": column[k] for k in there for kind, column in columns.items()}
    return {name: float(score) for name, score in scores.items()}
