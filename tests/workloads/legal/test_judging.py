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


def test_scores_are_those_of_scikit_learn_over_all_sentences_together():
    truth, guess = drawn_roles()
    found = judging.judge(judging.confusions(truth, guess, 4), draws=10)
    true, predicted = np.concatenate(truth), np.concatenate(guess)
    assert found["macro_f1"].value == pytest.approx(metrics.f1_score(true, predicted, average="macro"))
    assert found["weighted_f1"].value == pytest.approx(metrics.f1_score(true, predicted, average="weighted"))
    assert found["accuracy"].value == pytest.approx(metrics.accuracy_score(true, predicted))


def test_a_class_that_is_nowhere_does_not_lower_the_macro_f1_and_one_only_predicted_does():
    truth, guess = [np.array([0, 0, 1, 1])], [np.array([0, 0, 1, 1])]
    assert judging.judge(judging.confusions(truth, guess, 5))["macro_f1"].value == 1.0
    guess = [np.array([0, 0, 1, 2])]
    found = judging.judge(judging.confusions(truth, guess, 5))["macro_f1"].value
    assert found == pytest.approx(metrics.f1_score(truth[0], guess[0], average="macro", zero_division=0))


def test_the_report_has_the_columns_of_scikit_learns():
    truth, guess = drawn_roles(classes=3)
    counts = judging.confusions(truth, guess, 4).sum(0)
    rows = judging.report(counts, ["a", "b", "c", "d"])
    wanted = metrics.precision_recall_fscore_support(
        np.concatenate(truth), np.concatenate(guess), labels=range(3), zero_division=0
    )
    for number in range(3):
        precision, recall, f1, support = (column[number] for column in wanted)
        assert rows[1 + number][1:] == [f"{support}", f"{precision:.3f}", f"{recall:.3f}", f"{f1:.3f}"]
    assert rows[4] == ["d", "0", "absent", "absent", "absent"]


def test_a_gain_is_paired_by_document_so_that_what_is_equal_everywhere_has_no_width():
    truth, guess = drawn_roles()
    counts = judging.confusions(truth, guess, 4)
    same = judging.gain(counts, counts)
    assert all((one.value, one.low, one.high) == (0, 0, 0) for one in same.values())
    right = judging.confusions(truth, truth, 4)
    better = judging.gain(right, counts)
    assert all(one.low > 0 for one in better.values())
    assert not any(one.low > 0 for one in judging.gain(counts, right).values())


def test_a_gain_counts_one_set_of_roles_for_both_methods():
    """Without the last document one method alone predicts role 2: both count it."""
    truth = [np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1]), np.array([2, 2])]
    sure = [np.array([0, 0, 1, 0]), np.array([0, 0, 1, 0]), np.array([2, 2])]
    guess = [np.array([0, 0, 1, 2]), np.array([0, 0, 1, 2]), np.array([2, 2])]
    counts, reference = (judging.confusions(truth, one, 3) for one in (guess, sure))
    gain = judging.gain(counts[:2], reference[:2])["macro_f1"]
    assert gain.value == pytest.approx((1 + 2 / 3) / 3 - (4 / 5 + 2 / 3) / 3), "0.8 of two roles would be a loss"
    assert gain.low == pytest.approx(gain.high) == pytest.approx(gain.value)
    assert judging.gain(counts, reference)["macro_f1"].low > -0.12
