"""Scores of classes from counts, beside scikit-learn; the formulas have tests of their own in lib."""

import numpy as np
import pytest
from sklearn import metrics as sk

from workloads.glacier import judging

NAMES = ("background", "glacier", "debris", "lake")
DRAW = np.random.default_rng(0)
TRUTH = DRAW.choice(4, 500, p=[0.7, 0.25, 0.04, 0.01])
GUESS = np.where(DRAW.random(500) < 0.6, TRUTH, DRAW.integers(0, 4, 500))
KINDS = {
    "all": (TRUTH, GUESS), "absent": (np.minimum(TRUTH, 2), np.minimum(GUESS, 2)),
    "never predicted": (TRUTH, np.minimum(GUESS, 1)),
}  # fmt: skip


@pytest.mark.parametrize("truth, guess", KINDS.values(), ids=KINDS)
def test_everything_equals_scikit_learn_and_an_absent_class_has_no_score(truth, guess):
    matrix = sk.confusion_matrix(truth, guess, labels=range(4))
    there = sorted({*truth, *guess})
    got = judging.scores_of(matrix, NAMES)
    whole = {
        "mcc": sk.matthews_corrcoef(truth, guess), "accuracy": sk.accuracy_score(truth, guess),
        "mean_iou": sk.jaccard_score(truth, guess, labels=there, average="macro"),
        "mean_f1": sk.f1_score(truth, guess, labels=there, average="macro"),
    }  # fmt: skip
    functions = {
        "iou": sk.jaccard_score,
        "precision": sk.precision_score,
        "recall": sk.recall_score,
        "f1": sk.f1_score,
    }
    of_class = {
        f"{kind}_{NAMES[k]}": function(truth, guess, labels=[k], average=None, zero_division=0)[0]
        for k in np.unique(truth) for kind, function in functions.items()
    }  # fmt: skip
    assert got == pytest.approx({**whole, **of_class})
    assert all(type(value) is float for value in got.values())
