"""Probabilities that are fitted on validation and measured on the test."""

import numpy as np
import pytest
import torch

from tests.workloads.graphmer.conftest import moved
from tests.workloads.graphmer.test_evaluation import evaluated
from workloads.graphmer.answering import Answering
from workloads.graphmer.predicting import calibration
from workloads.graphmer.predicting.calibration import judged, weights_of
from workloads.graphmer.predicting.choices import Choices
from workloads.graphmer.settings import OF_REFERENCES
from workloads.graphmer.tables import COMBINED, ENCODER


def test_a_validation_fits_probabilities_that_are_kept_with_the_weights(graphmer):
    task = graphmer()
    model = moved(task)
    assert not weights_of(model).any()
    evaluated(task, model, "validation")
    assert weights_of(model).any(1).all()
    again = moved(task, seed=1)
    again.load_state_dict(model.state_dict())
    assert np.array_equal(weights_of(again), weights_of(model))
    hidden = task.calibration.hidden(task.data.corpus.windows_of("validation"), Answering(task.data, model))
    start = np.array([float(name == "counts") for name in OF_REFERENCES])
    assert hidden.choices.loss(weights_of(model)[1]) < hidden.choices.loss(start)


def test_an_encoder_that_adds_nothing_is_shut_out(graphmer):
    task = graphmer()
    model = task.model()
    evaluated(task, model, "validation")
    alone, chosen = weights_of(model)
    encoder = [OF_REFERENCES.index(name) for name in ("trust", "likeness")]
    assert np.array_equal(alone, chosen) and not chosen[encoder].any()


def test_an_encoder_that_knows_the_answers_takes_part(graphmer, monkeypatch):
    task = graphmer()
    model = moved(task)
    made = task.calibration.hidden

    def told(windows, answering):
        found = made(windows, answering)
        choices = found.choices
        choices.features[:, OF_REFERENCES.index("likeness")] = np.isin(np.arange(len(choices.question)), choices.gold)
        return found

    monkeypatch.setattr(task.calibration, "hidden", told)
    task.calibration.fit(model)
    alone, chosen = weights_of(model)
    assert chosen[OF_REFERENCES.index("likeness")] > 1 and alone[OF_REFERENCES.index("likeness")] == 0


def test_the_test_says_how_predictions_do_beside_the_counts(fitted):
    task, model = fitted
    with torch.inference_mode():
        measured = task.calibration.measured(model)
        hidden = task.calibration.hidden(task.data.corpus.windows_of("test"), Answering(task.data, model))
    rows = {(row["references"], row["method"]): row for row in measured}
    for method, weights in zip((COMBINED, ENCODER), weights_of(model), strict=True):
        for name, value in judged(hidden.choices, weights).items():
            assert rows["all", method][name] == pytest.approx(value, nan_ok=True)
    assert "calibration error" in calibration.as_text(measured)


def test_figures_are_shares_of_right_answers():
    features = np.array([[9.0], [0.0], [0.1], [0.0]])
    one = Choices(np.array([0, 0, 1, 1]), features, np.full((2, 1), -9.0), np.array([0, 3]))
    found = judged(one, np.ones(1))
    assert found["right"] == found["resolved"] == 0.5 and found["sure"] == 0.5 and found["right of the sure"] == 1.0


def test_no_more_questions_are_asked_than_wanted_and_the_same_ones(fitted):
    task, model = fitted
    windows = task.data.corpus.windows_of("train")
    with torch.inference_mode():
        first, again = (task.calibration.hidden(windows, Answering(task.data, model), 7) for _ in range(2))
    assert len(first.file) == 7
    assert np.array_equal(first.choices.features, again.choices.features)
