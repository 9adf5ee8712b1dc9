"""How much the network counts beside the counts, and what a report says."""

import csv

import numpy as np
import pytest
import torch

from workloads.legal import judging
from workloads.legal.evaluation import (
    BOTH,
    COUNTS,
    MAJORITY,
    NETWORK,
    PRODUCT,
    PUBLISHED_WEIGHT,
    STRONGEST,
    Evaluator,
    probability,
    standard_error,
)  # fmt: skip
from workloads.legal.samples import collated


@pytest.fixture
def evaluator(legal):
    return Evaluator(legal().data)


def network_of(evaluator, part, sure):
    """(sentences, classes) log-probabilities that know the right role as surely as `sure` says; 0: chance."""
    truth = evaluator.data.labels(evaluator.data.parts[part])
    noise = np.random.default_rng(0).normal(size=(len(truth), len(evaluator.classes)))
    noise[np.arange(len(truth)), truth] += sure
    return noise - np.log(np.exp(noise).sum(1, keepdims=True))


def test_a_network_that_says_the_same_of_every_sentence_is_shut_out(evaluator):
    """It may know which roles are common, which the counts take for equally common on purpose."""
    truth = evaluator.truth("validation")
    common = np.log(np.bincount(truth, minlength=len(evaluator.classes)) + 1.0)
    assert evaluator.chosen_weight(np.tile(common, (len(truth), 1)), "validation")[0] == 0
    weights = [evaluator.chosen_weight(network_of(evaluator, "validation", sure), "validation")[0] for sure in (0, 3)]
    assert weights[0] <= 0.125 and weights[1] >= 0.5, "chance is shut out, and one that knows counts"


@pytest.mark.parametrize(("weights", "usual"), [("", 0), ("someone/encoder", PUBLISHED_WEIGHT)])
def test_where_documents_cannot_tell_the_weight_is_the_usual_one_of_a_published_encoder_or_none(
    evaluator, weights, usual
):
    evaluator.data.learned = {**evaluator.data.learned, "encoder": {"weights": weights}}
    says_nothing = np.full((len(evaluator.truth("validation")), len(evaluator.classes)), -1.0)
    assert evaluator.chosen_weight(says_nothing, "validation")[0] == usual
    misleads = network_of(evaluator, "validation", -3)
    weight, best = evaluator.chosen_weight(misleads, "validation")
    assert weight < 0.5, "what is clearly worse is never taken"
    counts = evaluator.counted("validation")[COUNTS]
    assert best == pytest.approx(probability(counts, evaluator.truth("validation")))


def test_the_standard_error_is_that_over_draws_of_documents():
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 60, 30)
    values = np.concatenate([rng.normal(rng.normal(), 1, length) for length in lengths])
    of = np.split(values, np.cumsum(lengths)[:-1])
    drawn = [np.concatenate([of[k] for k in rng.integers(0, 30, 30)]).mean() for _ in range(2000)]
    assert standard_error(values, lengths) == pytest.approx(np.std(drawn), rel=0.1)
    assert standard_error(values, lengths) > 3 * values.std() / np.sqrt(len(values)), "sentences are alike within one"
    assert standard_error(values, [len(values)]) == np.inf


def test_the_probability_is_that_under_the_best_power_and_offsets(evaluator):
    truth, scores = evaluator.truth("test"), network_of(evaluator, "test", 1)
    best = probability(scores, truth)
    shifted = 4 * scores + np.arange(len(evaluator.classes))
    assert probability(shifted, truth) == pytest.approx(best, rel=0.02)
    assert probability(0 * scores, truth) < best < 1


def test_weight_and_power_are_chosen_on_validation_and_used_on_the_test(legal):
    task = legal()
    model = task.model()
    scores = task.evaluator.judge(model, network_of(task.evaluator, "validation", 3), "validation")
    weight, power = float(model.weight), float(model.power)
    counted = task.evaluator.confusions(task.evaluator.counted("validation")[STRONGEST], "validation")
    assert weight == scores["network_weight"] > 0 and scores["accuracy"] > judging.scores(counted.sum(0))[2]
    task.evaluator.judge(model, network_of(task.evaluator, "test", 0), "test")
    assert (float(model.weight), float(model.power)) == (weight, power)


def test_the_baseline_is_the_strongest_counting_and_has_the_models_figures(legal):
    task = legal()
    model = task.model()
    model.weight.fill_(0.0)
    baseline = task.baseline()
    judged = task.evaluator.judge(model, network_of(task.evaluator, "test", 3), "test")
    assert baseline.keys() == judged.keys() and {"macro_f1", "f1_Facts", "probability"} <= baseline.keys()
    assert baseline["macro_f1"] == judged["macro_f1"]


def test_answers_are_put_back_into_the_order_of_the_document(legal):
    """The loader hands sentences over by their length."""
    task = legal()
    samples = task.datasets()["validation"]
    truth = task.evaluator.truth("validation")

    class Knows(torch.nn.Module):
        weight, power = torch.tensor(1.0), torch.tensor(1.0)

        def forward(self, batch):
            return 50.0 * torch.nn.functional.one_hot(torch.from_numpy(truth)[batch["number"]], 16)

    class Loader:
        dataset = samples

        def __iter__(self):
            for first in range(0, len(samples), 7):
                yield collated([samples[n] for n in range(first, min(first + 7, len(samples)))], 0)

    assert task.evaluate(Knows(), Loader())["network_macro_f1"] == 1.0


def test_a_report_has_a_row_for_each_method_with_intervals_and_its_figures(legal, tmp_path):
    task = legal()
    model = task.model()
    with pytest.raises(RuntimeError, match="Call `evaluate` on the test set"):
        task.report({}, tmp_path)
    task.evaluator.judge(model, network_of(task.evaluator, "test", 3), "test")
    text = task.report({}, tmp_path)
    with (tmp_path / "evaluation.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert next(iter(rows)) == MAJORITY and [*rows][-3:] == [NETWORK, PRODUCT, BOTH] and len(rows) == 9
    row = rows[BOTH]
    assert float(row["macro_f1_low"]) <= float(row["macro_f1"]) <= float(row["macro_f1_high"])
    assert float(row["gain_macro_f1"]) == pytest.approx(float(row["macro_f1"]) - float(rows[STRONGEST]["macro_f1"]))
    assert float(rows[STRONGEST]["gain_macro_f1_high"]) == 0
    assert f"{BOTH!r} is above the strongest baseline by macro F1, {STRONGEST}: +" in text
    assert "Roles by" in text and "Padding" in text and "Ruling by Lower Court" in text
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"confusion.png", "classes.png", "lengths.png"}
