"""Intervals of metrics that do not follow from sums, and the sentence that concludes from them."""

import re

import numpy as np
import pytest
from sklearn import metrics as reference

from tests.trainbook.supervised.tasks import Heights, Topics
from tests.trainbook.supervised.test_methods import evaluated, rows_of
from trainbook.supervised import bootstrap
from trainbook.supervised.intervals import weights_of_draws
from trainbook.supervised.scoring import Judged

DRAW = np.random.default_rng(0)
NUMBERS = Judged(DRAW.random(40) + 1, DRAW.random(40) + 1, sample=np.arange(40))


def rmsle(true, guess):
    return reference.root_mean_squared_log_error(true, guess)


def fails_for_few(true, guess):
    if len(np.unique(true)) < 27:
        raise ValueError("too few")
    return float(guess.mean())


def test_draws_are_the_metric_of_rows_taken_again_with_their_units():
    unit = np.arange(40) // 4
    scores, about = bootstrap.of_metric(
        "rmsle", [NUMBERS, NUMBERS._replace(guess=NUMBERS.true)], unit, 10
    )
    assert scores.shape == (500, 2)
    assert not scores[:, 1].any()
    assert about == "rmsle: 500 draws."
    for score, weights in zip(scores[:5, 0], weights_of_draws(10, 5), strict=True):
        rows = np.repeat(np.arange(40), weights[unit])
        assert score == pytest.approx(rmsle(NUMBERS.true[rows], NUMBERS.guess[rows]))


def test_a_functions_interval_is_that_of_the_same_metric_by_name(few):
    named, of_function = (
        bootstrap.of_metric(m, [NUMBERS], np.arange(40), 40).scores for m in ("rmsle", rmsle)
    )
    assert named == pytest.approx(of_function)


def test_pairs_that_came_several_times_are_drawn_as_often(few):
    sample = np.array([0, 0, 0, 1, 1])
    once = Judged(np.array([0, 0, 1, 1, 2]), np.array([0, 0, 1, 0, 2]), sample=sample)
    true = np.array([0, 1, 1, 2])
    guess = np.array([0, 1, 0, 2])
    counted = Judged(true, guess, np.array([2, 1, 1, 1]), sample=sample[1:])
    scores = [
        bootstrap.of_metric("balanced_accuracy", [rows], np.arange(2), 2).scores
        for rows in (once, counted)
    ]
    assert scores[0] == pytest.approx(scores[1])


def test_draws_without_a_value_are_left_out_and_counted():
    true = np.zeros(12, int)
    true[:2] = 1
    shares = np.stack([1 - np.linspace(1, 0, 12), np.linspace(1, 0, 12)], 1)
    rows = [Judged(true, true, None, shares, np.arange(12))]
    scores, about = bootstrap.of_metric("roc_auc", rows, np.arange(12), 12)
    lacking = sum(weights[:2].sum() == 0 for weights in weights_of_draws(12, 500))
    assert lacking > 25
    assert len(scores) == 500 - lacking
    assert (scores == 1).all()
    assert about == f"roc_auc: {500 - lacking} draws; {lacking} more have no value."


@pytest.mark.parametrize(
    ("metric", "seconds", "about"),
    [
        (
            fails_for_few,
            0.0,
            r"fails_for_few has no interval: it has no value in \d+ of 500 draws.",
        ),
        (rmsle, 1.0, r"rmsle has no interval: 21 draws took 20 s."),
        (rmsle, 0.3, r"rmsle: 67 draws, which took 20 s."),
    ],
)
def test_a_metric_that_is_slow_or_often_undefined_has_fewer_draws_or_none_and_says_so(
    metric, seconds, about, monkeypatch
):
    calls = iter(range(10_000))
    monkeypatch.setattr(bootstrap.time, "monotonic", lambda: next(calls) * seconds)
    scores, sentence = bootstrap.of_metric(metric, [NUMBERS], np.arange(40), 40)
    assert len(scores) == (67 if seconds == 0.3 else 0)
    assert re.fullmatch(about, sentence)


def test_a_large_test_has_fewer_draws():
    many = Judged(np.ones(100_000), np.ones(100_000), sample=np.arange(100_000))
    assert bootstrap._affordable([many, many]) == 96
    assert bootstrap._affordable([NUMBERS, NUMBERS]) == 500


@pytest.mark.parametrize(
    ("kind", "metrics"), [(Heights, ("rmsle", "mae")), (Topics, ("roc_auc", "accuracy"))]
)
def test_a_report_has_an_interval_for_every_metric_and_never_speaks_of_one_sample(
    kind, metrics, configured, tmp_path, monkeypatch, few
):
    monkeypatch.setattr(kind, "metrics", metrics)
    task = kind(configured(kind.__name__))
    evaluated(task)
    text = task.report({}, tmp_path)
    assert "alone" not in text
    assert f"{metrics[0]}: " in text
    assert "[" in text
    for row in rows_of(tmp_path / "evaluation.csv"):
        assert all(row[f"{name}_low"] and row[f"gain_{name}_high"] for name in metrics)


def test_a_mean_area_over_classes_is_scikit_learns(few):
    true = DRAW.integers(3, size=60)
    shares = DRAW.integers(1, 6, size=(60, 3)).astype(float)
    shares /= shares.sum(1, keepdims=True)
    scores, _ = bootstrap.of_metric(
        "roc_auc", [Judged(true, true, None, shares, np.arange(60))], np.arange(60), 60
    )
    for score, weights in zip(scores[:5, 0], weights_of_draws(60, 5), strict=True):
        rows = np.repeat(np.arange(60), weights)
        assert score == pytest.approx(
            reference.roc_auc_score(true[rows], shares[rows], multi_class="ovr")
        )
