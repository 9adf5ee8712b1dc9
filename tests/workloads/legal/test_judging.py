"""Pooled confusions, their scores, and intervals by document."""

import numpy as np
import pytest
from sklearn import metrics

from workloads.legal import judging


def drawn_roles(documents=6, classes=4, seed=0):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(3, 20, documents)
    truth = [draw.integers(classes, size=length) for length in lengths]
    guess = [np.where(draw.random(len(true)) < 0.6, true, draw.integers(classes, size=len(true))) for true in truth]
    return truth, guess


def test_scores_and_columns_are_scikit_learns_over_all_sentences_together():
    truth, guess = drawn_roles(classes=3)
    counts = judging.confusions(truth, guess, 4)
    true, predicted = np.concatenate(truth), np.concatenate(guess)
    found = judging.judge(counts, draws=10)
    for average in ("macro", "weighted"):
        assert found[f"{average}_f1"].value == pytest.approx(metrics.f1_score(true, predicted, average=average))
    assert found["accuracy"].value == pytest.approx(metrics.accuracy_score(true, predicted))
    rows = judging.report(counts.sum(0), ["a", "b", "c", "d"])
    wanted = metrics.precision_recall_fscore_support(true, predicted, labels=range(3), zero_division=0)
    for row, precision, recall, f1, support in zip(rows[1:4], *wanted, strict=True):
        assert row[1:] == [f"{support}", f"{precision:.3f}", f"{recall:.3f}", f"{f1:.3f}"]
    assert rows[4] == ["d", "0", "absent", "absent", "absent"]
    guess = np.array([0, 0, 1, 2])  # a class that is predicted alone counts
    found = judging.judge(judging.confusions([np.array([0, 0, 1, 1])], [guess], 5))["macro_f1"].value
    assert found == pytest.approx(metrics.f1_score([0, 0, 1, 1], guess, average="macro", zero_division=0))


def test_a_gain_is_paired_by_document_so_that_what_is_equal_everywhere_has_no_width():
    truth, guess = drawn_roles()
    counts = judging.confusions(truth, guess, 4)
    same = judging.gain(counts, counts)
    assert all((one.value, one.low, one.high) == (0, 0, 0) for one in same.values())
    right = judging.confusions(truth, truth, 4)
    better = judging.gain(right, counts)
    assert all(one.low > 0 for one in better.values())
    assert not any(one.low > 0 for one in judging.gain(counts, right).values())
