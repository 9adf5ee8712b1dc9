"""Metrics of a confusion matrix against scikit-learn."""

import math

import numpy as np
import pytest
from sklearn import metrics as sk

from workloads.glacier import scores

NAMES = ("background", "glacier", "debris", "lake")


def labels(seed=0, size=500):
    """Pairs of (truth, prediction), both (size), by kind."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(4, size, p=[0.7, 0.25, 0.04, 0.01])
    guess = np.where(rng.random(size) < 0.6, truth, rng.integers(0, 4, size))
    one = np.full(size, 1)
    return {
        "random": (truth, guess), "unrelated": (truth, rng.integers(0, 4, size)), "right": (truth, truth),
        "all wrong": (truth, (truth + 1) % 4), "a class absent": (np.minimum(truth, 2), np.minimum(guess, 2)),
        "a class only predicted": (np.minimum(truth, 2), guess),
        "a class never predicted": (truth, np.minimum(guess, 1)), "one class in truth": (one, guess),
        "one class predicted": (truth, one), "one class only": (one, one), "one pixel": (one[:1], one[:1]),
    }  # fmt: skip


KINDS = labels()


def counted(truth, guess):
    return sk.confusion_matrix(truth, guess, labels=range(4))


def nan_equal(got, want):
    return np.allclose(got, want, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("truth, guess", KINDS.values(), ids=KINDS)
def test_everything_equals_scikit_learn(truth, guess):
    matrix = counted(truth, guess)
    assert scores.mcc(matrix) == pytest.approx(sk.matthews_corrcoef(truth, guess), rel=1e-12)
    p, r, f, _ = sk.precision_recall_fscore_support(truth, guess, labels=range(4), zero_division=np.nan)
    got = scores.per_class(matrix)
    assert nan_equal(got["precision"], p) and nan_equal(got["recall"], r) and nan_equal(got["f1"], f)
    # jaccard_score has no NaN for a class that is neither there nor predicted: 0 with a warning, or 1
    want = sk.jaccard_score(truth, guess, labels=range(4), average=None, zero_division=0)
    want[[k not in truth and k not in guess for k in range(4)]] = np.nan
    assert nan_equal(got["iou"], want)
    got = scores.scores_of(matrix, NAMES)
    there = sorted({*truth, *guess})
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(truth, guess))
    assert got["mean_iou"] == pytest.approx(sk.jaccard_score(truth, guess, labels=there, average="macro"))
    assert got["mean_f1"] == pytest.approx(sk.f1_score(truth, guess, labels=there, average="macro"))
    for k, name in enumerate(NAMES):
        assert (f"iou_{name}" in got) == (k in truth)
        if k in truth:
            want = sk.precision_score(truth, guess, labels=[k], average=None, zero_division=0)[0]
            assert got[f"precision_{name}"] == pytest.approx(want)
    assert all(type(value) is float and math.isfinite(value) for value in got.values())  # as summary.json needs it


def test_an_absent_class_is_absent_and_not_perfect_and_the_keys_are_those_of_the_data():
    matrix = counted(*KINDS["a class absent"])
    assert math.isnan(scores.per_class(matrix)["iou"][3]) and "iou_lake" not in scores.scores_of(matrix, NAMES)
    truth, guess = KINDS["a class only predicted"]
    guessed, right = (scores.scores_of(counted(truth, answer), NAMES) for answer in (guess, truth))
    assert guessed.keys() == right.keys()


def test_nothing_at_all_has_no_scores():
    empty = np.zeros((4, 4), np.int64)
    assert math.isnan(scores.mcc(empty)) and scores.scores_of(empty, NAMES) == {}


def test_squares_of_many_pixels_do_not_overflow():
    """10^10 pixels, half a continent at 30 m: s^2 (s^2 - ...) passes 64 bits."""
    matrix = np.array([[6, 1], [1, 2]], np.int64)
    assert scores.mcc(matrix * 10**9) == pytest.approx(scores.mcc(matrix), rel=1e-12)
