"""The streaming confusion matrix against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from lib import scores
from lib.scores import IGNORE, Confusion

NAMES = ("background", "glacier", "debris", "lake")


def labels(seed=0, size=500):
    """Pairs of (truth, prediction), both (size), by kind."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(4, size, p=[0.7, 0.25, 0.04, 0.01])
    guess = np.where(rng.random(size) < 0.6, truth, rng.integers(0, 4, size))
    one = np.full(size, 1)
    return {
        "random": (truth, guess),
        "unrelated": (truth, rng.integers(0, 4, size)),
        "right": (truth, truth),
        "all wrong": (truth, (truth + 1) % 4),
        "a class absent": (np.minimum(truth, 2), np.minimum(guess, 2)),
        "a class only predicted": (np.minimum(truth, 2), guess),
        "a class never predicted": (truth, np.minimum(guess, 1)),
        "one class in truth": (one, guess),
        "one class predicted": (truth, one),
        "one class only": (one, one),
        "one pixel": (one[:1], one[:1]),
    }


KINDS = labels()


def counted(truth, guess):
    matrix = Confusion(4)
    matrix.add(torch.from_numpy(guess), torch.from_numpy(truth))
    return matrix


def nan_equal(got, want):
    return np.allclose(got, want, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("truth, guess", KINDS.values(), ids=KINDS)
def test_everything_equals_scikit_learn(truth, guess):
    matrix = counted(truth, guess).matrix
    assert (matrix == sk.confusion_matrix(truth, guess, labels=range(4))).all()
    assert scores.mcc(matrix) == pytest.approx(sk.matthews_corrcoef(truth, guess), rel=1e-12)
    p, r, f, _ = sk.precision_recall_fscore_support(truth, guess, labels=range(4), zero_division=np.nan)
    got = scores.per_class(matrix)
    assert nan_equal(got["precision"], p) and nan_equal(got["recall"], r) and nan_equal(got["f1"], f)
    # jaccard_score has no NaN for a class that is neither there nor predicted: 0 with a warning, or 1
    want = sk.jaccard_score(truth, guess, labels=range(4), average=None, zero_division=0)
    want[[k not in truth and k not in guess for k in range(4)]] = np.nan
    assert nan_equal(got["iou"], want)
    got = counted(truth, guess).scores(NAMES)
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
    truth, guess = KINDS["a class absent"]
    matrix = counted(truth, guess)
    assert math.isnan(scores.per_class(matrix.matrix)["iou"][3]) and "iou_lake" not in matrix.scores(NAMES)
    truth, guess = KINDS["a class only predicted"]
    assert counted(truth, guess).scores(NAMES).keys() == counted(truth, truth).scores(NAMES).keys()


def test_nothing_at_all_has_no_scores():
    empty = Confusion(4)
    assert math.isnan(scores.mcc(empty.matrix)) and empty.scores(NAMES) == {}
    empty.add(torch.zeros(2, 3, 3, dtype=torch.uint8), torch.full((2, 3, 3), IGNORE, dtype=torch.uint8))
    assert empty.scores(NAMES) == {}


def test_ignored_pixels_are_left_out_whatever_was_predicted():
    truth, guess = KINDS["random"]
    ignored = np.arange(truth.size) % 3 == 0
    hidden = np.where(ignored, IGNORE, truth).astype(np.uint8)
    assert (counted(hidden, guess).matrix == counted(truth[~ignored], guess[~ignored]).matrix).all()


def test_batches_add_up_to_the_whole():
    truth, guess = KINDS["random"]
    whole, parts = counted(truth, guess), Confusion(4)
    for i in range(0, 300, 60):
        parts.add(torch.from_numpy(guess[i : i + 60]).view(3, 4, 5), torch.from_numpy(truth[i : i + 60]).view(3, 4, 5))
    parts.add(torch.from_numpy(guess[300:]), torch.from_numpy(truth[300:]))
    assert (whole.matrix == parts.matrix).all()


def test_squares_of_many_pixels_do_not_overflow():
    """10^10 pixels, half a continent at 30 m: s^2 (s^2 - ...) passes 64 bits."""
    matrix = np.array([[6, 1], [1, 2]], np.int64)
    assert scores.mcc(matrix * 10**9) == pytest.approx(scores.mcc(matrix), rel=1e-12)


def test_the_file_names_the_true_classes(tmp_path):
    matrix = Confusion(2)
    matrix.add(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, IGNORE]))
    matrix.write_csv(("land", "ice"), tmp_path / "evaluation.csv")
    assert (tmp_path / "evaluation.csv").read_text() == "true class,land,ice\nland,1,1\nice,0,1\n"
