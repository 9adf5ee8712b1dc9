"""Metrics of a classification, of samples or pixels, from a confusion matrix that is counted on the device."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

IGNORE = 255  # the label of what counts nowhere: no data, no label
ABSENT = math.nan  # the score of a class that there is nothing to say about; never 1.0, which would flatter a mean


class Confusion:
    """Counts of (true class, predicted class) over all valid pixels: rows are the truth, as in scikit-learn."""

    def __init__(self, classes: int, device: torch.device | None = None, ignore: int = IGNORE):
        self.classes, self.ignore = classes, ignore
        self._counts = torch.zeros(classes * classes, dtype=torch.int64, device=device)

    def add(self, predicted: Tensor, truth: Tensor) -> None:
        """Counts integer tensors of one shape, whatever it is; what has `ignore` as its truth is left out."""
        K = self.classes
        cells = torch.where(truth == self.ignore, K * K, truth.long() * K + predicted.long())
        self._counts += torch.bincount(cells.flatten(), minlength=K * K + 1)[: K * K]

    @property
    def matrix(self) -> np.ndarray:
        """(classes, classes) int64, on the host."""
        return self._counts.view(self.classes, self.classes).cpu().numpy()

    def scores(self, names: Sequence[str]) -> dict[str, float]:
        """Returns `mcc`, `accuracy`, `mean_iou`, `mean_f1`; of each class `iou_x`, `precision_x`, `recall_x`, `f1_x`.

        A class without true pixels has no entries of its own, so that two methods on the same data have the same
        keys; where it was predicted, its 0 is part of the means. A class that was never predicted has precision 0.
        """
        matrix = self.matrix
        scores = {
            "mcc": mcc(matrix),
            "accuracy": _ratio(np.trace(matrix), matrix.sum()),
            "mean_iou": _mean(iou(matrix)),
            "mean_f1": _mean(f1(matrix)),
        }
        per_class = {"iou": iou(matrix), "precision": precision(matrix), "recall": recall(matrix), "f1": f1(matrix)}
        for k in np.flatnonzero(matrix.sum(1)):
            for kind, values in per_class.items():
                scores[f"{kind}_{names[k]}"] = 0.0 if math.isnan(values[k]) else values[k]
        return {name: value for name, value in scores.items() if not math.isnan(value)}

    def rows(self, names: Sequence[str]) -> list[list[str]]:
        """Returns the cells of a table: a row a class with its share of the pixels and its scores, below a head.

        "absent" stands where there is nothing to score.
        """
        matrix = self.matrix
        columns = [precision(matrix), recall(matrix), f1(matrix), iou(matrix)]
        shares = matrix.sum(1) / max(1, matrix.sum())
        cells = [["absent" if math.isnan(score) else f"{score:.4f}" for score in column] for column in columns]
        rows = [[name, f"{shares[k]:.4f}", *(column[k] for column in cells)] for k, name in enumerate(names)]
        return [["class", "share", "precision", "recall", "F1", "IoU"], *rows]

    def write_csv(self, names: Sequence[str], path: Path) -> None:
        """Writes the counts with a row for each true class and a column for each predicted one."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["true class", *names])
            writer.writerows([name, *row] for name, row in zip(names, self.matrix.tolist(), strict=True))


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


def iou(matrix: np.ndarray) -> list[float]:
    """(classes, classes) counts -> intersection over union of each class; ABSENT for one in neither."""
    return _ratios(matrix.diagonal(), matrix.sum(0) + matrix.sum(1) - matrix.diagonal())


def precision(matrix: np.ndarray) -> list[float]:
    """(classes, classes) counts -> the share of a class's predictions that are right; ABSENT where there are none."""
    return _ratios(matrix.diagonal(), matrix.sum(0))


def recall(matrix: np.ndarray) -> list[float]:
    """(classes, classes) counts -> the share of a class that is predicted as it; ABSENT where there is none."""
    return _ratios(matrix.diagonal(), matrix.sum(1))


def f1(matrix: np.ndarray) -> list[float]:
    """(classes, classes) counts -> harmonic mean of both; ABSENT for a class that is neither there nor predicted."""
    return _ratios(2 * matrix.diagonal(), matrix.sum(0) + matrix.sum(1))


def _ratios(above: np.ndarray, below: np.ndarray) -> list[float]:
    return [_ratio(a, b) for a, b in zip(above, below, strict=True)]


def _ratio(above: int, below: int) -> float:
    return float(above) / float(below) if below else ABSENT


def _mean(values: Sequence[float]) -> float:
    """Averages over the classes that are not absent."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else ABSENT
