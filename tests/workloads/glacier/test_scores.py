"""Scores of classes from counts, beside scikit-learn; the formulas have tests of their own in lib."""

import numpy as np
import pytest
from sklearn import metrics as sk

from workloads.glacier import judging

NAMES = ("background", "glacier", "debris", "lake")
DRAW = np.random.default_rng(0)
TRUTH = DRAW.choice(4, 500, p=[0.7, 0.25, 0.04, 0.01])
GUESS = np.where(DRAW.random(500) < 0.6, TRUTH, DRAW.integers(0, 4, 500))
KINDS = [
    pytest.param(TRUTH, GUESS, id="all"),
    pytest.param(np.minimum(TRUTH, 2), np.minimum(GUESS, 2), id="absent"),
    pytest.param(TRUTH, np.minimum(GUESS, 1), id="never predicted"),
]
OF_CLASS = {
    "iou": sk.jaccard_score,
    "precision": sk.precision_score,
    "recall": sk.recall_score,
    "f1": sk.f1_score,
}


@pytest.mark.parametrize("truth, guess", KINDS)
def test_everything_equals_scikit_learn_and_an_absent_class_has_no_score(truth, guess):
    matrix = sk.confusion_matrix(truth, guess, labels=range(4))
    there = sorted({*truth, *guess})
    want = {"mcc": sk.matthews_corrcoef(truth, guess), "accuracy": sk.accuracy_score(truth, guess)}
    want["mean_iou"] = sk.jaccard_score(truth, guess, labels=there, average="macro")
    want["mean_f1"] = sk.f1_score(truth, guess, labels=there, average="macro")
    for k in np.unique(truth):
        for kind, function in OF_CLASS.items():
            scores = function(truth, guess, labels=[k], average=None, zero_division=0)
            want[f"{kind}_{NAMES[k]}"] = scores[0]
    got = judging.scores_of(judging.sums_of(matrix), NAMES)
    assert got == pytest.approx(want)
    assert all(type(value) is float for value in got.values())
