"""Scores with intervals by document, how much the network counts beside the counts, and the report."""

import csv

import numpy as np
import pytest
import torch
from sklearn import metrics

from lib.training.evaluation import EvaluationLoader
from workloads.legal import evaluation, judging
from workloads.legal.evaluation import BOTH, COUNTS, STRONGEST


@pytest.mark.parametrize(("weights", "usual"), [("", 0), ("someone/encoder", evaluation.PUBLISHED_WEIGHT)])
def test_a_network_counts_by_what_it_knows_and_where_documents_cannot_tell_as_its_encoder_says(legal, weights, usual):
    """It may know which roles are common, which the counts take for equally common on purpose."""
    evaluator = evaluation.Evaluator(legal().data)
    truth, roles = evaluator.truth("validation"), len(evaluator.classes)
    common = np.tile(np.log(np.bincount(truth, minlength=roles) + 1.0), (len(truth), 1))
    scores = [common, *(network_of(evaluator, "validation", sure) for sure in (0, 3, -3))]
    (same, chance, knows, misleads) = (evaluator.chosen_weight(one, "validation") for one in scores)
    assert same[0] == 0 and chance[0] <= 0.125 and knows[0] >= 0.5 and misleads[0] < 0.5
    assert misleads[1] == pytest.approx(evaluation.probability(evaluator.counted("validation")[COUNTS], truth))
    evaluator.data.learned = {**evaluator.data.learned, "encoder": {"weights": weights}}
    assert evaluator.chosen_weight(np.full((len(truth), roles), -1.0), "validation")[0] == usual


def network_of(evaluator, part, sure):
    """(sentences, classes) log-probabilities that know the right role as surely as `sure` says; 0: chance."""
    truth = evaluator.data.labels(evaluator.data.parts[part])
    noise = np.random.default_rng(0).normal(size=(len(truth), len(evaluator.classes)))
    noise[np.arange(len(truth)), truth] += sure
    return noise - np.log(np.exp(noise).sum(1, keepdims=True))


def test_weight_and_power_are_chosen_on_validation_and_used_on_the_test_and_weight_0_is_the_baseline(legal):
    task = legal()
    model = task.model()
    scores = task.evaluator.judge(model, network_of(task.evaluator, "validation", 3), "validation")
    weight, power = float(model.weight), float(model.power)
    counted = task.evaluator.confusions(task.evaluator.counted("validation")[STRONGEST], "validation")
    assert weight == scores["network_weight"] > 0 and scores["accuracy"] > judging.scores(counted.sum(0))[2]
    task.evaluator.judge(model, network_of(task.evaluator, "test", 0), "test")
    assert (float(model.weight), float(model.power)) == (weight, power)
    model.weight.fill_(0.0)
    baseline, judged = task.baseline(), task.evaluator.judge(model, network_of(task.evaluator, "test", 3), "test")
    assert baseline.keys() == judged.keys() and {"macro_f1", "f1_Facts", "probability"} <= baseline.keys()
    assert baseline["macro_f1"] == judged["macro_f1"]


def test_answers_are_put_back_into_the_order_of_the_document(legal):
    """The loader hands sentences over by their length."""
    task = legal()
    samples, truth = task.datasets()["validation"], torch.from_numpy(task.evaluator.truth("validation"))

    class Knows(torch.nn.Module):
        weight, power = torch.tensor(1.0), torch.tensor(1.0)

        def forward(self, batch):
            return 50.0 * torch.nn.functional.one_hot(truth[batch["number"]], 16)

    loader = EvaluationLoader(task, samples, 7, torch.device("cpu"))
    assert (np.diff(samples.lengths) >= 0).all() and task.evaluate(Knows(), loader)["network_macro_f1"] == 1.0


def test_a_report_has_a_row_for_each_method_with_intervals_and_its_figures(legal, tmp_path):
    task = legal()
    model = task.model()
    with pytest.raises(RuntimeError, match="Call `evaluate` on the test set"):
        task.report({}, tmp_path)
    task.evaluator.judge(model, network_of(task.evaluator, "test", 3), "test")
    text = task.report({}, tmp_path)
    with (tmp_path / "evaluation.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert (
        next(iter(rows)) == evaluation.MAJORITY
        and [*rows][-3:] == [evaluation.NETWORK, evaluation.PRODUCT, BOTH]
        and len(rows) == 9
    )
    row = rows[BOTH]
    assert float(row["macro_f1_low"]) <= float(row["macro_f1"]) <= float(row["macro_f1_high"])
    assert float(row["gain_macro_f1"]) == pytest.approx(float(row["macro_f1"]) - float(rows[STRONGEST]["macro_f1"]))
    assert float(rows[STRONGEST]["gain_macro_f1_high"]) == 0
    assert f"{BOTH!r} is above the strongest baseline by macro F1, {STRONGEST}: +" in text
    assert "Roles by" in text and "Padding" in text and "Ruling by Lower Court" in text
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"confusion.png", "classes.png", "lengths.png"}


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
