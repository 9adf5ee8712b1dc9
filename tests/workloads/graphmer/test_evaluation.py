"""Answers by counts and by the model, the gate, and the files of an evaluation."""

import csv

import numpy as np
import pytest
import torch

from lib.training.evaluation import EvaluationLoader
from tests.workloads.graphmer.conftest import generator, moved
from workloads.graphmer.answering import Answering
from workloads.graphmer.counts import CandidateSet, Questions
from workloads.graphmer.evaluation import GATES
from workloads.graphmer.settings import CONDITIONS
from workloads.graphmer.tables import COMBINED, CUE, ENCODER, FREQUENCY, RULE


def evaluated(task, model, split="test"):
    loader = EvaluationLoader(task, task.datasets()[split], 7, torch.device("cpu"))
    with torch.inference_mode():
        return task.evaluate(model.eval(), loader)


def test_before_the_first_step_the_model_ranks_as_the_counts_do(graphmer):
    task = graphmer()
    evaluated(task, task.model())
    counted, encoded = task.evaluator.counted[COMBINED], task._answers[ENCODER]
    for name in ("triple", "condition"):
        assert np.array_equal(getattr(counted, name), getattr(encoded, name))
    assert np.array_equal(counted.by_range, encoded.by_range) and np.array_equal(
        counted.by_training, encoded.by_training
    )
    evaluated(task, moved(task))
    assert not np.array_equal(counted.by_range, task._answers[ENCODER].by_range)


@pytest.mark.parametrize("condition", range(3))
def test_a_question_has_the_score_in_an_evaluation_that_it_has_in_training(graphmer, condition):
    """Both ways of computing it agree, where nothing of the own file is known."""
    settings = {"workload.objective.own_file": False, "workload.objective.path_dropout": 0.0, "workload.chain.facts": 1}
    task = graphmer({**settings, "workload.objective.masked_ratio": float(condition == 1)})
    model, data = moved(task).eval(), task.data
    texts = len(data.samples.windows)
    items = list(range(texts, texts + 12)) if condition == 2 else list(range(12))
    batch, drawn = task.collate(items, generator()), data.collator.draw(items, generator())
    with torch.no_grad():
        trusting, alike = (scores[:, 0].numpy() for scores in model(batch))
        for q in range(len(items)):
            asked = Questions(
                *(getattr(drawn.asked, name)[[q]] for name in ("window", "relation", "condition", "hidden"))
            )
            assert asked.condition[0] == condition
            with torch.no_grad():
                want = Answering(data, model).encoded(asked, CandidateSet(data.corpus, drawn.among.entities), True)[1]
            possible = (batch["prior"][q, 0] > -1e3).numpy()
            assert np.allclose(trusting[q][possible], want(1.0, 0.0)[0][possible], atol=1e-3)
            assert np.allclose(alike[q][possible], want(1.0, 1.0)[0][possible], atol=1e-3)
    assert not np.allclose(trusting, alike, atol=0.1)


def test_the_gates_are_chosen_on_validation_and_shut_out_what_adds_nothing(graphmer):
    task = graphmer()
    model = task.model()
    evaluated(task, model, "validation")
    assert model.gate.tolist() == [[0.0, 0.0]] * 3  # an encoder that adds nothing


def test_the_gate_of_each_condition_is_that_of_most_likelihood(graphmer):
    task = graphmer()
    model, data, evaluator = moved(task), task.data, task.evaluator
    evaluated(task, model, "validation")
    chosen = [tuple(gate) for gate in model.gate.tolist()]
    answering = Answering(data, model)
    triples = task.datasets()["validation"].triples
    triples = triples[~data.structural[data.corpus.relation[triples]]]

    def likelihood(number, gate):
        model.gate[number], total = torch.tensor(gate), 0.0
        for relation in np.unique(data.corpus.relation[triples]):
            some = triples[data.corpus.relation[triples] == relation]
            asked = Questions.of_facts(data.corpus, some, np.full(len(some), number))
            among, _ = evaluator.candidates.of(int(relation))
            tail, scores = data.corpus.tail[some], answering.scores(asked, among)[1]
            hidden = torch.from_numpy(evaluator.candidates.hide_others(asked, tail, scores)).double()
            total += float(hidden.log_softmax(1)[torch.arange(len(some)), among.place[tail]].sum())
        return total

    for number in range(3):
        found = {gate: likelihood(number, gate) for gate in GATES[::3]}
        assert max(found.values()) <= likelihood(number, chosen[number]) + 0.01
        assert len({round(total, 2) for total in found.values()}) == len(found)


def test_the_tables_have_every_method_and_what_the_encoder_gains(graphmer, tmp_path):
    task = graphmer()
    scores = evaluated(task, moved(task))
    text = task.report(scores, tmp_path)
    with (tmp_path / "evaluation.csv").open() as file:
        rows = list(csv.DictReader(file))
    whole = [row for row in rows if (row["tails"], row["relations"]) == ("all", "non-structural")]
    assert {row["method"] for row in whole} == {FREQUENCY, CUE, COMBINED, ENCODER, RULE}
    assert {row["candidates"] for row in whole} == {"by range", "of training", "of its name"}
    assert {"calls", "imports", "structural"} <= {row["relations"] for row in rows}
    assert {"seen", "unseen"} <= {row["tails"] for row in rows}
    for condition in CONDITIONS:
        of = {r["method"]: r for r in whole if (r["condition"], r["candidates"]) == (condition, "by range")}
        gain = float(of[ENCODER]["mrr"]) - float(of[COMBINED]["mrr"])
        assert float(of[ENCODER]["gain over counts combined"]) == pytest.approx(gain, abs=1e-6)
        assert (
            float(of[ENCODER]["gain over counts combined, low"])
            <= gain
            <= float(of[ENCODER]["gain over counts combined, high"])
        )
        assert float(of[ENCODER]["mrr"]) == pytest.approx(scores[f"mrr_{condition}"])
        assert float(of[COMBINED]["mrr"]) == pytest.approx(task.baseline()[f"mrr_{condition}"])
        assert of[COMBINED]["gain over counts combined"] == ""
    assert "triples of held-out files" in text and "[" in text
    assert "`mrr` alone" in text and "mean of the six MRRs" in text and "rivial" not in text, "as in the table above it"
    mean = sum(scores[f"mrr_{kind}{condition}"] for kind in ("", "trained_") for condition in CONDITIONS) / 6
    assert scores["mrr"] == pytest.approx(mean)


def test_examples_show_guesses_of_model_and_counts_beside_the_truth(graphmer, tmp_path):
    task = graphmer()
    text = task.report(evaluated(task, moved(task)), tmp_path)
    with (tmp_path / "examples.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert {row["condition"] for row in rows} <= {"full_text", "masked"}
    for row in rows:
        first = row["guesses of the model"].split(", ")[0]
        assert (first == row["truth"]) == (row["right"] == "True")
        assert row["truth"] in text and row["guesses of the counts"].split(", ")[0] in text
    assert len({row["right"] for row in rows}) == 2


def test_any_question_is_scored_by_counts_and_with_the_encoder(graphmer):
    """Also one that no fact of the graph answers."""
    task = graphmer()
    model = moved(task).eval()
    corpus = task.data.corpus
    task.data.use(task.learned()["counts"])
    windows = corpus.windows_of("test")[:4]
    relation = np.full(4, corpus.relations.index("raises"))
    allowed = task.data.scorer.is_allowed(relation[:1], np.arange(len(corpus.entities)))[0]
    among = CandidateSet(corpus, np.flatnonzero(allowed))
    answering = Answering(task.data, model)
    asked = Questions(windows, relation, np.zeros(4, int), np.full(4, -1))
    counted, encoded = answering.scores(asked, among)
    assert counted.shape == encoded.shape == (4, len(among)) and not np.allclose(counted, encoded)
    model.gate.zero_()
    assert np.array_equal(*answering.scores(asked, among))
    alone = answering.scores(Questions(windows[:1], relation[:1], np.zeros(1, int), np.full(1, -1)), among)[0]
    assert np.allclose(alone[0], counted[0], atol=1e-5)
