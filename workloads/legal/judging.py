"""Scores of roles from confusions that are pooled over documents, with intervals by document.

Documents are never averaged: 16 of the 50 of the sample corpus lack a role, and their F1 of it says nothing.
"""

from collections.abc import Sequence

import numpy as np

from lib.scores import Interval, intervals, paired, per_class, present, resampled

METRICS = ("macro_f1", "weighted_f1", "accuracy")
DRAWS = 4000


def confusions(truth: Sequence[np.ndarray], predicted: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """Returns (documents, classes, classes) counts of class numbers; rows are the truth, as in scikit-learn."""
    cells = [np.asarray(true, np.int64) * classes + guess for true, guess in zip(truth, predicted, strict=True)]
    return np.array([np.bincount(own, minlength=classes**2) for own in cells]).reshape(-1, classes, classes)


def scores(counts: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """(..., classes, classes) -> (..., 3) macro F1, weighted F1, accuracy, as scikit-learn has them.

    The macro F1 is the mean over the `known` classes (..., classes): by default those that are there or predicted.
    Without any sentence all are 0.
    """
    right = np.diagonal(counts, axis1=-2, axis2=-1)
    true, predicted = counts.sum(-1), counts.sum(-2)
    f1 = 2 * right / np.maximum(true + predicted, 1)
    total = np.maximum(true.sum(-1), 1)
    roles = np.maximum((present(counts) if known is None else known).sum(-1), 1)
    return np.stack([f1.sum(-1) / roles, (f1 * true).sum(-1) / total, right.sum(-1) / total], -1)


def judge(counts: np.ndarray, draws: int = DRAWS) -> dict[str, Interval]:
    """(documents, classes, classes) -> each of METRICS with its interval by document."""
    judged = intervals(scores(counts.sum(0)), scores(resampled(counts, draws)), len(counts))
    return dict(zip(METRICS, judged, strict=True))


def gain(counts: np.ndarray, reference: np.ndarray, draws: int = DRAWS) -> dict[str, Interval]:
    """Returns by how much each of METRICS is above a reference, over the roles of either, paired by document."""
    return dict(zip(METRICS, paired(scores, counts, reference, draws), strict=True))


def report(counts: np.ndarray, names: Sequence[str]) -> list[list[str]]:
    """(classes, classes) -> the cells of a table: a row a class below a head, "absent" where nothing is to score."""
    columns, head = per_class(counts), ["precision", "recall", "f1"]
    cells = [["absent" if np.isnan(value) else f"{value:.3f}" for value in columns[kind]] for kind in head]
    sentences = [f"{count:,}" for count in counts.sum(1).tolist()]
    return [["role", "sentences", *head], *([*row] for row in zip(names, sentences, *cells, strict=True))]
