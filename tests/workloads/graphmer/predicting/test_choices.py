"""Probabilities of a few answers and of none, and their fit."""

import numpy as np
import pytest

from workloads.graphmer.predicting.choices import Choices, calibration_error, fit

TRUE = np.array([1.5, -1.0, 0.7])


def drawn(number, seed=0):
    """Questions whose right answers are drawn by TRUE; the last feature is that of none."""
    random = np.random.default_rng(seed)
    question = np.repeat(np.arange(number), random.integers(0, 5, number))
    features = np.concatenate([random.normal(size=(len(question), 2)), np.zeros((len(question), 1))], 1)
    none = np.tile([0.0, 0.0, 1.0], (number, 1))
    of_answer, of_none = Choices(question, features, none, np.full(number, -1)).probabilities(TRUE)
    gold = np.full(number, -1)
    for one in range(number):
        own = np.flatnonzero(question == one)
        place = random.choice(len(own) + 1, p=np.append(of_answer[own], of_none[one]))
        gold[one] = own[place] if place < len(own) else -1
    return Choices(question, features, none, gold)


def test_probabilities_of_answers_and_of_none_add_up_to_one():
    choices = drawn(50)
    of_answer, of_none = choices.probabilities(100 * TRUE)
    assert np.isfinite(of_answer).all() and (np.diff(choices.begin) == 0).any()
    assert np.allclose(np.bincount(choices.question, of_answer, 50) + of_none, 1)
    assert np.allclose(of_none[np.diff(choices.begin) == 0], 1)


def test_the_fit_finds_the_weights_that_answers_were_drawn_by_and_is_calibrated():
    found = fit(drawn(4000), np.zeros(3), np.ones(3, bool))
    assert np.allclose(found, TRUE, atol=0.15)
    others = drawn(4000, seed=1)
    place, probability = others.best(found)
    right = np.where(others.gold >= 0, place == others.gold, place < 0)
    assert calibration_error(probability, right) < 0.03
    assert calibration_error(others.best(5 * TRUE)[1], right) > 0.1


def test_weights_that_are_not_free_stay_and_few_questions_move_the_others_little():
    start, free = np.array([0.5, 0.0, 0.0]), np.array([False, True, True])
    assert fit(drawn(500), start, free)[0] == 0.5
    few, many = (np.abs(fit(drawn(number), start, free) - start).max() for number in (3, 500))
    assert few < many
    assert np.array_equal(fit(drawn(0), start, free), start)


def test_the_fit_is_at_the_minimum():
    choices, start = drawn(300), np.zeros(3)
    found = fit(choices, start, np.ones(3, bool))

    def loss(weights):
        return choices.loss(weights) * len(choices) + 0.15 * ((weights - start) ** 2).sum()

    for step in np.eye(3):
        assert loss(found) <= min(loss(found + 0.01 * step), loss(found - 0.01 * step))


def test_parts_of_questions_and_joined_ones_are_the_same_questions():
    choices = drawn(40)
    half = np.arange(40) % 3 == 0
    again = Choices.joined([choices[half], choices[~half]])
    order = np.concatenate([np.flatnonzero(half), np.flatnonzero(~half)])
    for number, was in enumerate(order):
        own, before = np.flatnonzero(again.question == number), np.flatnonzero(choices.question == was)
        assert np.array_equal(again.features[own], choices.features[before])
        gold, gold_before = again.gold[number], choices.gold[was]
        assert (gold < 0) == (gold_before < 0)
        assert gold < 0 or np.array_equal(again.features[gold], choices.features[gold_before])


def test_the_best_answer_is_none_where_that_is_the_most_probable():
    choices = Choices(np.array([0, 0, 2]), np.array([[1.0], [2.0], [-1.0]]), np.zeros((3, 1)), np.full(3, -1))
    place, probability = choices.best(np.ones(1))
    assert place.tolist() == [1, -1, -1] and choices.first(np.ones(1)).tolist() == [1, -1, 2]
    assert probability[1] == 1.0 and probability[2] == pytest.approx(1 / (1 + np.exp(-1)))


def test_the_calibration_error_is_the_mean_gap_of_predicted_and_seen():
    error = calibration_error(np.array([0.2, 0.25, 0.92, 0.94, 1.0]), np.array([0, 1, 1, 1, 1]))
    assert error == pytest.approx((2 * 0.275 + 2 * 0.07) / 5)
