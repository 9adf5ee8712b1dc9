"""Logistic regression where classes are missing, and the mean of several."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from workloads.legal.counting.stack import Fitting, Linear, log_softmax

QUICK = Fitting(strength=1.0, steps=200)


def examples(classes=(0, 1, 2), count=30, seed=0):
    draw = np.random.default_rng(seed)
    truth = np.array([classes[place % len(classes)] for place in range(count)])
    numbers = np.eye(4)[truth] + 0.5 * draw.normal(size=(count, 4))
    return sparse.csr_matrix(numbers.astype(np.float32)), truth


@pytest.mark.parametrize(
    ("classes", "class_weight"), [((0, 1, 2), None), ((0, 1, 2), "balanced"), ((0, 1), "balanced")]
)
def test_probabilities_are_scikit_learns(classes, class_weight):
    matrix, truth = examples(classes)
    truth[:9] = 0  # of unequal classes
    found = Linear.fit(matrix, truth, len(classes), Fitting(1.0, 200, class_weight)).scores(matrix)
    wanted = LogisticRegression(C=1.0, max_iter=200, class_weight=class_weight).fit(matrix, truth).predict_proba(matrix)
    assert np.exp(log_softmax(found)) == pytest.approx(wanted, abs=1e-3)


def test_a_class_without_examples_is_possible_and_less_likely_than_any_other():
    matrix, truth = examples(classes=(0, 3))
    model = Linear.fit(matrix, truth, 4, QUICK)
    found = log_softmax(model.scores(matrix))
    assert np.isfinite(found).all() and set(found.argmax(1)) == {0, 3}
    assert np.median(np.exp(found[:, 1])) == pytest.approx(np.median(np.exp(found[:, 2]))) and found[:, 1].max() < -2


def test_one_class_alone_or_no_numbers_leave_the_shares_of_the_classes():
    matrix, truth = examples(classes=(2,))
    assert (Linear.fit(matrix, truth, 3, QUICK).scores(matrix).argmax(1) == 2).all()
    truth = np.array([0, 0, 0, 1])
    found = Linear.fit(sparse.csr_matrix((4, 0), dtype=np.float32), truth, 2, QUICK)
    assert np.exp(log_softmax(found.bias)) == pytest.approx([0.75, 0.25])


def test_the_mean_of_models_is_one_model_with_the_mean_of_their_scores():
    matrix, truth = examples()
    models = [Linear.fit(matrix[part::3], truth[part::3], 3, QUICK) for part in (0, 1)]
    found = Linear.mean(models).scores(matrix)
    assert found == pytest.approx(np.mean([model.scores(matrix) for model in models], 0), abs=1e-2)
    weights = Linear.mean(models).weights
    assert (weights.astype(np.float16) == weights).all(), "float16 holds them exactly"
