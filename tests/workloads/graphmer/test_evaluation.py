"""Answers by counts and by the model: scores, filtered ranks, the gate, and the files of an evaluation."""

import csv

import numpy as np
import pandas as pd
import pytest
import torch

from lib.training.evaluation import EvaluationLoader
from tests.workloads.graphmer.conftest import generator, moved
from workloads.graphmer import evaluation
from workloads.graphmer.counts import CandidateSet, Questions
from workloads.graphmer.counts.answering import Answering
from workloads.graphmer.evaluation import GATES, METHODS
from workloads.graphmer.settings import COMBINED, CONDITIONS, ENCODER


def evaluated(task, model, split="test"):
    loader = EvaluationLoader(task, task.datasets()[split], 7, torch.device("cpu"))
    with torch.inference_mode():
        return task.evaluate(model.eval(), loader)


def test_before_the_first_step_the_model_ranks_as_the_counts_do_and_its_gate_is_shut(shared):
    model = shared.model()
    evaluated(shared, model)
    counted, encoded = shared.evaluator.counted[COMBINED], shared.evaluator.answers[ENCODER]
    for name in ("triple", "condition", "by_range", "by_training"):
        assert np.array_equal(getattr(counted, name), getattr(encoded, name)), name
    evaluated(shared, moved(shared))
    assert not np.array_equal(counted.by_range, shared.evaluator.answers[ENCODER].by_range)
    evaluated(shared, model, "validation")
    assert model.gate.tolist() == [[0.0, 0.0]] * 3  # an encoder that adds nothing


@pytest.mark.parametrize("condition", range(3))
def test_a_question_has_the_score_in_an_evaluation_that_it_has_in_training(graphmer, condition):
    """Both ways of computing it agree, where nothing of the own file is known."""
    settings = {"workload.objective.path_dropout": 0.0, "workload.chain.facts": 1}
    task = graphmer({**settings, "workload.objective.masked_ratio": float(condition == 1)})
    model, data = moved(task).eval(), task.data
    texts = len(data.samples.windows)
    items = list(range(texts, texts + 12)) if condition == 2 else list(range(12))
    batch, drawn = task.collate(items, generator()), data.collator.draw(items, generator())
    batch["own"].zero_()
    answering, among = Answering(data, model), CandidateSet(data.corpus, drawn.among.entities)
    with torch.no_grad():
        trusting, alike = (scores[:, 0].numpy() for scores in model(batch))
        for q in range(len(items)):
            asked = drawn.asked[np.array([q])]
            assert asked.condition[0] == condition
            want = answering.encoded(asked, among, leave_out=True)[1]
            possible = (batch["prior"][q, 0] > -1e3).numpy()
            assert np.allclose(trusting[q][possible], want(1.0, 0.0)[0][possible], atol=1e-3)
            assert np.allclose(alike[q][possible], want(1.0, 1.0)[0][possible], atol=1e-3)
    assert not np.allclose(trusting, alike, atol=0.1)


def test_the_gate_of_each_condition_is_that_of_most_likelihood(shared):
    model, data, evaluator = moved(shared), shared.data, shared.evaluator
    evaluated(shared, model, "validation")
    chosen = [tuple(gate) for gate in model.gate.tolist()]
    answering = Answering(data, model)
    triples = shared.datasets()["validation"].triples
    triples = triples[~data.structural[data.corpus.relation[triples]]]

    @torch.no_grad()
    def likelihood(number, gate):
        total = 0.0
        for relation in np.unique(data.corpus.relation[triples]):
            some = triples[data.corpus.relation[triples] == relation]
            asked = Questions.of_facts(data.corpus, some, np.full(len(some), number))
            among, _ = evaluator.candidates(int(relation))
            tail, scores = data.corpus.tail[some], answering.encoded(asked, among)[1](*gate)
            hidden = torch.from_numpy(evaluator.hide_others(asked, tail, scores)).double()
            total += float(hidden.log_softmax(1)[torch.arange(len(some)), among.place[tail]].sum())
        return total

    for number in range(3):
        totals = {gate: likelihood(number, gate) for gate in GATES[::5]}
        assert max(totals.values()) <= likelihood(number, chosen[number]) + 0.01
        assert len({round(total, 2) for total in totals.values()}) == len(totals)


def test_the_tables_have_every_method_and_what_the_encoder_gains(shared, tmp_path):
    scores = evaluated(shared, moved(shared))
    text = shared.report(scores, tmp_path)
    with (tmp_path / "evaluation.csv").open() as file:
        rows = list(csv.DictReader(file))
    whole = [row for row in rows if (row["tails"], row["relations"]) == ("all", "non-structural")]
    assert {row["method"] for row in whole} == {*METHODS}
    assert {row["candidates"] for row in whole} == {"by range", "of training", "of its name"}
    assert {"calls", "imports", "structural"} <= {row["relations"] for row in rows}
    assert {"seen", "unseen"} <= {row["tails"] for row in rows}
    for condition in CONDITIONS:
        of = {r["method"]: r for r in whole if (r["condition"], r["candidates"]) == (condition, "by range")}
        gain = float(of[ENCODER]["mrr"]) - float(of[COMBINED]["mrr"])
        low, mean, high = (float(of[ENCODER][f"gain over counts combined{end}"]) for end in (", low", "", ", high"))
        assert mean == pytest.approx(gain, abs=1e-6) and low <= gain <= high
        assert float(of[ENCODER]["mrr"]) == pytest.approx(scores[f"mrr_{condition}"])
        assert float(of[COMBINED]["mrr"]) == pytest.approx(shared.baseline()[f"mrr_{condition}"])
        assert of[COMBINED]["gain over counts combined"] == ""
    assert "triples of held-out files" in text and "mean of the six MRRs" in text


def brute_force_rank(corpus, triple, scores, candidates):
    """Sorts the candidates left after filtering and averages the places that equal scores may take."""
    head, relation, tail = corpus.head[corpus.window_of[triple]], corpus.relation[triple], corpus.tail[triple]
    true = set(corpus.tail[(corpus.head[corpus.window_of] == head) & (corpus.relation == relation)].tolist()) - {tail}
    left = [(s, int(c)) for s, c in zip(scores, candidates, strict=True) if int(c) not in true]
    own = [s for s, c in left if c == tail]
    ordered = sorted((s for s, _ in left), reverse=True)
    return np.mean([i + 1 for i, s in enumerate(ordered) if s == own[0]]) if own else len(candidates) + 1


def test_ranks_equal_brute_force_with_ties_and_filter_and_namesakes_are_told_apart(shared):
    corpus, draw, checked = shared.data.corpus, np.random.default_rng(0), 0
    evaluator, train = shared.evaluator, corpus.triples_of("train")
    for relation, name in enumerate(corpus.relations):
        among, trained = evaluator.candidates(relation)
        tails = set(corpus.tail[train[corpus.relation[train] == relation]].tolist())
        types = [corpus.types[kind] for kind in corpus.entity_type]
        allowed = {e for e, kind in enumerate(types) if kind in shared.data.rules.relations[name].range}
        assert set(among.entities.tolist()) == allowed | tails
        assert set(among.entities[trained].tolist()) == tails
        triples = corpus.triples_of("test")
        triples = triples[corpus.relation[triples] == relation][:12]
        if not len(triples):
            continue
        scores = draw.integers(0, 4, (len(triples), len(among))).astype(float)
        answers = evaluator.rank(triples, Questions.of_facts(corpus, triples, np.zeros(len(triples), int)), scores)
        for row, triple in enumerate(triples):
            own = among.entities[trained]
            assert answers.by_range[row] == brute_force_rank(corpus, triple, scores[row], among.entities)
            assert answers.by_training[row] == brute_force_rank(corpus, triple, scores[row][trained], own)
            assert answers.seen[row] == (corpus.tail[triple] in own)
            same = np.flatnonzero(corpus.name[among.entities] == corpus.name[corpus.tail[triple]])
            right = scores[row, same][among.entities[same] == corpus.tail[triple]]
            assert len(same) > 1 or np.isnan(answers.namesake[row])
            if not np.isnan(answers.namesake[row]) and not (scores[row, same] > right).any():
                assert answers.namesake[row] > 0
                checked += 1
    assert checked > 3


def test_the_headline_leaves_structural_relations_out_and_averages_conditions_and_candidates(shared):
    ranks = evaluation.figures(np.array([1, 2, 4, 20]))
    assert ranks == {"mrr": (1 + 0.5 + 0.25 + 0.05) / 4, "hits1": 0.25, "hits3": 0.5, "hits10": 0.75}
    assert evaluation.figures(np.array([]))["mrr"] == 0.0
    corpus, structural = shared.data.corpus, shared.data.structural
    is_rule = structural[corpus.relation]
    other, rule = int(np.flatnonzero(~is_rule)[0]), int(np.flatnonzero(is_rule)[0])
    ranks, first = np.array([1.0, 2.0, 4.0, 100.0]), np.array([1.0, np.nan, np.nan, np.nan])
    answers = pd.DataFrame({
        "triple": [other] * 3 + [rule], "condition": np.arange(4) % 3, "by_range": ranks, "by_training": 2 * ranks,
        "namesake": first,
    })  # fmt: skip
    scores = shared.evaluator.headline(answers)
    assert scores["mrr_masked"] == 0.5 and scores["mrr_trained_masked"] == 0.25 and scores["hits3_name_only"] == 0.0
    assert scores["mrr"] == (1 + 0.5 + 0.25 + 0.5 + 0.25 + 0.125) / 6 and scores["resolved"] == 1.0


def test_an_interval_draws_whole_files():
    """Facts of a file that are all alike count as one: the interval is that of as many values as there are files."""
    of_file = np.random.default_rng(0).random((30, 1))
    (once,) = evaluation.by_file(of_file, np.arange(30))
    repeated, file = np.repeat(of_file, 50, axis=0), np.repeat(np.arange(30), 50)
    assert np.allclose(evaluation.by_file(repeated, file), [once])
    assert once.low < of_file.mean() < once.high and 0.1 < once.high - once.low < 0.35  # 4 standard errors: 0.21
    (alone,) = evaluation.by_file(repeated, np.arange(1500))
    assert alone.high - alone.low < 0.3 * (once.high - once.low)
