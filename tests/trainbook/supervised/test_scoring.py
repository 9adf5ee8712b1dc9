"""Metrics by name: what scikit-learn computes, the better direction, and what guessing a constant reaches."""

import numpy as np
import pytest
from sklearn import metrics as reference
from sklearn.utils.class_weight import compute_class_weight

from trainbook.supervised import kinds, scoring
from trainbook.supervised.scoring import Judged, balanced, better

TRUE = np.array([0, 0, 1, 2, 2, 2])
GUESS = np.array([0, 1, 1, 2, 2, 0])
SHARES = np.array([[6, 3, 1], [3, 5, 2], [2, 7, 1], [1, 2, 7], [2, 2, 6], [5, 2, 3]]) / 10


def scores(metrics, true, guess, shares=None):
    return scoring.scores(metrics, Judged(true, guess, shares=shares))


def misses(true, guess):
    return float((true != guess).sum())


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("macro_f1", reference.f1_score(TRUE, GUESS, average="macro")),
        ("mcc", reference.matthews_corrcoef(TRUE, GUESS)),
        ("quadratic_kappa", reference.cohen_kappa_score(TRUE, GUESS, weights="quadratic")),
        ("zero_one_loss", reference.zero_one_loss(TRUE, GUESS)),
        (misses, 2.0),
    ],
)
def test_a_metric_of_classes_is_scikit_learns(metric, value):
    assert scores((metric,), TRUE, GUESS) == {scoring.name_of(metric): value}


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("roc_auc", reference.roc_auc_score(TRUE, SHARES, multi_class="ovr")),
        ("log_loss", reference.log_loss(TRUE, SHARES)),
        ("top_3_accuracy", 1.0),
        (
            "map_at_3",
            reference.label_ranking_average_precision_score(
                np.eye(3)[TRUE], SHARES + np.array([3, 2, 1]) * 1e-9
            ),
        ),
    ],
)
def test_a_metric_of_probabilities_is_scikit_learns(metric, value):
    assert scores((metric,), TRUE, GUESS, SHARES)[metric] == pytest.approx(value)


def test_ranks_below_the_first_few_count_nothing():
    shares = np.array([[5, 4, 3, 2, 1], [5, 4, 3, 2, 1], [5, 4, 3, 2, 1]]) / 15
    true = np.array([0, 2, 3])
    assert scores(("map_at_3",), true, true, shares)["map_at_3"] == pytest.approx((1 + 1 / 3) / 3)
    many = scores(("map_at_5",), true, true, shares)["map_at_5"]
    assert many == pytest.approx((1 + 1 / 3 + 1 / 4) / 3)


def test_the_log_loss_of_marks_is_the_mean_of_their_columns():
    marks = np.array([[0, 1], [1, 1], [1, 0], [0, 0]])
    shares = np.array([[0.1, 0.8], [0.7, 0.6], [0.9, 0.4], [0.2, 0.3]])
    columns = [reference.log_loss(marks[:, place], shares[:, place]) for place in range(2)]
    value = scores(("log_loss",), marks, marks, shares)["log_loss"]
    assert value == pytest.approx(np.mean(columns))


@pytest.mark.parametrize(
    ("metric", "function"), [("dice", reference.f1_score), ("iou", reference.jaccard_score)]
)
def test_masks_are_judged_one_by_one_and_empty_ones_are_right_if_both_are(metric, function):
    draw = np.random.default_rng(0)
    true = (draw.random((5, 30)) < 0.3).astype(int)
    guess = (draw.random((5, 30)) < 0.4).astype(int)
    true[3] = guess[3] = guess[4] = 0
    pairs = zip(true, guess, strict=True)
    wanted = np.mean([function(*pair, zero_division=1.0) for pair in pairs])
    sample = np.repeat(np.arange(5), 30)
    each = Judged(true.ravel(), guess.ravel(), sample=sample)
    assert scoring.score(metric, each) == pytest.approx(wanted)
    keys, counts = np.unique(np.stack([*each[:2], sample]), axis=1, return_counts=True)
    counted = Judged(keys[0], keys[1], counts, None, keys[2])
    assert scoring.score(metric, counted) == pytest.approx(wanted)
    assert better(metric) == "max"


def test_classes_that_are_not_there_are_left_out():
    wider = np.hstack([SHARES, np.zeros((6, 1))])
    area = scores(("roc_auc",), TRUE, GUESS, SHARES)
    assert scores(("roc_auc",), TRUE, GUESS, wider) == area


def test_the_area_of_two_classes_is_that_of_the_second():
    shares = np.array([[0.9, 0.1], [0.2, 0.8], [0.95, 0.05]])
    assert scores(("roc_auc",), np.array([0, 1, 1]), GUESS[:3], shares) == {"roc_auc": 0.5}


def test_one_class_alone_has_no_area():
    area = scores(("roc_auc",), np.array([1, 1]), GUESS[:2], SHARES[:2, :2])
    assert np.isnan(area["roc_auc"])


def test_metrics_of_numbers_take_any_guess_and_judge_the_known_ones_of_each_row():
    true = np.array([1.0, 2.0])
    guess = np.array([-3.0, 2.0])
    error = reference.root_mean_squared_log_error(true, [0.0, 2.0])
    assert scores(("rmsle",), true, guess) == {"rmsle": error}
    true = np.array([[1.0, np.nan], [np.nan, 4.0], [3.0, 8.0]])
    guess = np.array([[2.0, 9.0], [9.0, 4.0], [3.0, 6.0]])
    first = reference.mean_absolute_error([1, 3], [2, 3])
    second = reference.mean_absolute_error([4, 8], [4, 6])
    assert scores(("mae",), true, guess) == {"mae": np.mean([first, second])}
    mean, _ = kinds.of("numbers").constant(true, 2, 0)
    assert mean.tolist() == [[2.0, 6.0]] * 2


def test_which_direction_is_better_follows_from_the_name():
    def function(name):
        return type("Metric", (), {"__name__": name, "__call__": lambda self, true, guess: 0.0})()

    smaller = (
        "rmse",
        "mae",
        "log_loss",
        "mean_absolute_error",
        "mean_poisson_deviance",
        function("my_error"),
    )
    assert {better(metric) for metric in smaller} == {"min"}
    assert better(function("bias")) == ""
    assert {
        better(metric) for metric in ("accuracy", "r2", "roc_auc", "quadratic_kappa", "my_score")
    } == {"max"}


def test_a_constant_is_the_commonest_class_or_the_mean_and_weights_are_scikit_learns():
    guess, shares = kinds.of("classes").constant(np.array([1, 1, 0, 1]), 3, 4)
    assert guess.tolist() == [1, 1, 1]
    assert shares.tolist() == [[0.25, 0.75, 0, 0]] * 3
    guess, _ = kinds.of("numbers").constant(np.array([[1.0, 2.0], [3.0, 6.0]]), 2, 0)
    assert guess.tolist() == [[2.0, 4.0]] * 2
    weights = balanced(np.bincount(TRUE), 4)
    assert weights[:3] == pytest.approx(
        compute_class_weight("balanced", classes=np.arange(3), y=TRUE)
    )
    assert weights[TRUE].mean() == pytest.approx(1.0)
    assert weights[3] == 1.0


def test_a_metric_that_asks_for_rows_gets_whole_samples_with_what_is_unknown():
    true = np.array([[1.0, np.nan], [3.0, 4.0], [5.0, 6.0]])
    guess = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]])
    shapes = []

    def right_rows(true, guess):
        shapes.append((true.shape, guess.shape))
        return np.mean(((true == guess) | np.isnan(true)).reshape(len(true), -1).all(1))

    assert scores([right_rows], true, guess) == {"right_rows": 0.75}, (
        "the mean of columns 1 and 0.5"
    )
    right_rows.rows = True
    assert scores([right_rows], true, guess) == {"right_rows": 2 / 3}
    assert scores([right_rows], true[:, 0], guess[:, 0]) == {"right_rows": 1.0}
    assert shapes[-2:] == [((3, 2), (3, 2)), ((3, 1), (3, 1))]
