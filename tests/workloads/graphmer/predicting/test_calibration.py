"""Probabilities of a few answers and of none: their fit on validation, and how they are measured."""

import numpy as np
import pytest
import torch

from tests.workloads.graphmer.conftest import moved
from tests.workloads.graphmer.test_evaluation import evaluated
from workloads.graphmer.counts.answering import Answering
from workloads.graphmer.predicting import calibration
from workloads.graphmer.predicting.calibration import fit, weights_of
from workloads.graphmer.predicting.references import Choices, calibration_error
from workloads.graphmer.settings import COMBINED, ENCODER, OF_REFERENCES

TRUE = np.array([1.5, -1.0, 0.7])


def choices_of(question, features, of_none, gold):
    """Choices whose other fields are zeros."""
    answers, questions = np.zeros(len(question), int), np.zeros(len(gold), int)
    return Choices(question, features, of_none, gold, answers, answers, questions, questions)


def drawn(number, seed=0):
    """Questions whose right answers are drawn by TRUE; the last feature is that of none."""
    random = np.random.default_rng(seed)
    question = np.repeat(np.arange(number), random.integers(0, 5, number))
    features = np.concatenate([random.normal(size=(len(question), 2)), np.zeros((len(question), 1))], 1)
    none = np.tile([0.0, 0.0, 1.0], (number, 1))
    of_answer, of_none = choices_of(question, features, none, np.full(number, -1)).probabilities(TRUE)
    gold = np.full(number, -1)
    for one in range(number):
        own = np.flatnonzero(question == one)
        place = random.choice(len(own) + 1, p=np.append(of_answer[own], of_none[one]))
        gold[one] = own[place] if place < len(own) else -1
    return choices_of(question, features, none, gold)


def test_the_fit_finds_the_weights_that_answers_were_drawn_by_and_is_calibrated():
    weights = fit(drawn(4000), np.zeros(3), np.ones(3, bool))
    assert np.allclose(weights, TRUE, atol=0.15)
    others = drawn(4000, seed=1)
    place, probability = others.best(weights)
    right = np.where(others.gold >= 0, place == others.gold, place < 0)
    assert calibration_error(probability, right) < 0.03
    assert calibration_error(others.best(5 * TRUE)[1], right) > 0.1
    error = calibration_error(np.array([0.2, 0.25, 0.92, 0.94, 1.0]), np.array([0, 1, 1, 1, 1]))
    assert error == pytest.approx((2 * 0.275 + 2 * 0.07) / 5)


def test_the_best_answer_is_none_if_that_is_the_most_probable_and_figures_are_shares_of_right_answers():
    choices = choices_of(np.array([0, 0, 2]), np.array([[1.0], [2.0], [-1.0]]), np.zeros((3, 1)), np.full(3, -1))
    place, probability = choices.best(np.ones(1))
    assert place.tolist() == [1, -1, -1] and choices.first(np.ones(1)).tolist() == [1, -1, 2]
    assert probability[1] == 1.0 and probability[2] == pytest.approx(1 / (1 + np.exp(-1)))
    features = np.array([[9.0], [0.0], [0.1], [0.0]])
    choices = choices_of(np.array([0, 0, 1, 1]), features, np.full((2, 1), -9.0), np.array([0, 3]))
    figures = choices.judged(np.ones(1))
    assert figures["right"] == figures["resolved"] == figures["sure"] == 0.5 and figures["right of the sure"] == 1.0


def test_a_validation_fits_probabilities_and_shuts_an_encoder_out_that_adds_nothing(shared):
    model, still = moved(shared), shared.model()
    assert not weights_of(model).any()
    for one in (model, still):
        evaluated(shared, one, "validation")
        assert weights_of(one).any(1).all()
    calibration, corpus = shared.evaluator.calibration, shared.data.corpus
    choices, _ = calibration.hidden(corpus.triples_of("validation"), Answering(shared.data, model))
    start = np.array([float(name == "counts") for name in OF_REFERENCES])
    assert choices.loss(weights_of(model)[1]) < choices.loss(start)
    alone, chosen = weights_of(still)
    encoder = [OF_REFERENCES.index(name) for name in ("trust", "likeness")]
    assert np.array_equal(alone, chosen) and not chosen[encoder].any()


def test_an_encoder_that_knows_the_answers_takes_part(shared, monkeypatch):
    model, hidden = moved(shared), shared.evaluator.calibration.hidden

    def told(windows, answering):
        choices, files = hidden(windows, answering)
        choices.features[:, OF_REFERENCES.index("likeness")] = np.isin(np.arange(len(choices.question)), choices.gold)
        return choices, files

    monkeypatch.setattr(shared.evaluator.calibration, "hidden", told)
    shared.evaluator.calibration.fit(model)
    alone, chosen = weights_of(model)
    assert chosen[OF_REFERENCES.index("likeness")] > 1 and alone[OF_REFERENCES.index("likeness")] == 0


def test_the_test_says_how_predictions_do_beside_the_counts(fitted):
    task, model = fitted
    corpus, hidden = task.data.corpus, task.evaluator.calibration.hidden
    with torch.inference_mode():
        measured = task.evaluator.calibration.measured(model)
        choices, _ = hidden(corpus.triples_of("test"), Answering(task.data, model))
        train = corpus.triples_of("train")
        (first, files), (again, _) = (hidden(train, Answering(task.data, model), 7) for _ in range(2))
    rows = {(row["references"], row["method"]): row for row in measured}
    for method, weights in zip((COMBINED, ENCODER), weights_of(model), strict=True):
        for name, value in choices.judged(weights).items():
            assert rows["all", method][name] == pytest.approx(value, nan_ok=True)
    assert "calibration error" in calibration.as_text(measured)
    assert len(files) == 7 and np.array_equal(first.features, again.features)
