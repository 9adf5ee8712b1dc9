"""Probabilities that are fitted on validation and measured on the test."""

import numpy as np
import pytest
import torch

from tests.workloads.graphmer.test_evaluation import evaluated, moved
from workloads.graphmer.answering import Answering
from workloads.graphmer.predicting import calibration
from workloads.graphmer.predicting.calibration import GAPS, REFERENCES, judged, weights_of
from workloads.graphmer.predicting.choices import Choices
from workloads.graphmer.settings import OF_REFERENCES
from workloads.graphmer.tables import COMBINED, ENCODER


def test_a_validation_fits_probabilities_that_are_kept_with_the_weights(graphmer):
    task = graphmer()
    model = moved(task)
    assert not weights_of(model, REFERENCES).any()
    evaluated(task, model, "validation")
    for kind in (REFERENCES, GAPS):
        assert weights_of(model, kind).any(1).all()
    again = moved(task, seed=1)
    again.load_state_dict(model.state_dict())
    assert np.array_equal(weights_of(again, REFERENCES), weights_of(model, REFERENCES))
    hidden = task.calibration.hidden(task.data.corpus.windows_of("validation"), Answering(task.data, model))[REFERENCES]
    start = np.array([float(name == "counts") for name in OF_REFERENCES])
    assert hidden.choices.loss(weights_of(model, REFERENCES)[1]) < hidden.choices.loss(start)


def test_an_encoder_that_adds_nothing_is_shut_out(graphmer):
    task = graphmer()
    model = task.model()
    evaluated(task, model, "validation")
    alone, chosen = weights_of(model, REFERENCES)
    encoder = [OF_REFERENCES.index(name) for name in ("trust", "likeness")]
    assert np.array_equal(alone, chosen) and not chosen[encoder].any()


def test_an_encoder_that_knows_the_answers_takes_part(graphmer, monkeypatch):
    task = graphmer()
    model = moved(task)
    made = task.calibration.hidden

    def told(windows, answering):
        found = made(windows, answering)
        choices = found[REFERENCES].choices
        choices.features[:, OF_REFERENCES.index("likeness")] = np.isin(np.arange(len(choices.question)), choices.gold)
        return found

    monkeypatch.setattr(task.calibration, "hidden", told)
    task.calibration.fit(model)
    alone, chosen = weights_of(model, REFERENCES)
    assert chosen[OF_REFERENCES.index("likeness")] > 1 and alone[OF_REFERENCES.index("likeness")] == 0


def test_the_test_says_how_predictions_do_beside_the_counts(fitted):
    task, model = fitted
    with torch.inference_mode():
        measured = task.calibration.measured(model)
        of_kind = task.calibration.hidden(task.data.corpus.windows_of("test"), Answering(task.data, model))
    hidden = of_kind[REFERENCES]
    rows = {(r["questions"], r["group"], r["method"], r["figure"]): r["value"] for r in measured}
    for method, weights in zip((COMBINED, ENCODER), weights_of(model, REFERENCES), strict=True):
        for name, value in judged(hidden.choices, weights).items():
            assert rows[REFERENCES, "all", method, name] == pytest.approx(value)
    assert (GAPS, "all") in {key[:2] for key in rows}
    assert (REFERENCES, "all", ENCODER, "precision at 10") in rows
    text = calibration.as_text(measured)
    assert "calibration error" in text and "precision at 10" in text
    bins = [row for row in measured if row["figure"].startswith("predicted ") and row["group"] == "all"]
    answers = [row["answers"] for row in bins if (row["questions"], row["method"]) == (GAPS, ENCODER)]
    assert sum(answers) == len(of_kind[GAPS].choices)
    assert f"{bins[-1]['predicted']:.3f}" in text and f"{bins[-1]['value']:.3f}" in text


def test_figures_are_shares_of_right_answers():
    features = np.array([[9.0], [0.0], [0.1], [0.0]])
    one = Choices(np.array([0, 0, 1, 1]), features, np.full((2, 1), -9.0), np.array([0, 3]))
    found = judged(one, np.ones(1))
    assert found["right"] == found["resolved"] == 0.5 and found["sure"] == 0.5 and found["right of the sure"] == 1.0
    rows = calibration._figures(Choices.joined([one] * 5), np.ones(1))
    precision = {row["figure"]: row["value"] for row in rows if row["figure"].startswith("precision")}
    assert precision == {"precision at 10": 0.5}


def test_no_more_questions_are_asked_than_wanted_and_the_same_ones(fitted):
    task, model = fitted
    windows = task.data.corpus.windows_of("train")
    with torch.inference_mode():
        first, again = (task.calibration.hidden(windows, Answering(task.data, model), 7) for _ in range(2))
    assert len(first[REFERENCES].file) == 7 >= len(first[GAPS].file) > 0
    assert np.array_equal(first[REFERENCES].choices.features, again[REFERENCES].choices.features)
