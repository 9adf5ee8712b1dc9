"""Answers by counts and by the model: scores, filtered ranks, the gate, and the files of an evaluation."""

import csv

import numpy as np
import pytest
import torch

from lib.training.evaluation import EvaluationLoader
from tests.workloads.graphmer.conftest import batch_of, generator, moved
from trainbook import Judged
from trainbook.supervised.intervals import resampled
from workloads.graphmer.counts import CandidateSet, Questions
from workloads.graphmer.evaluation import GATES, Answering
from workloads.graphmer.settings import COMBINED, ENCODER


def evaluated(task, model, split="test"):
    loader = EvaluationLoader(task, task.datasets()[split], 7, torch.device("cpu"))
    with torch.inference_mode():
        return task.evaluate(model.eval(), loader)


def test_before_the_first_step_the_model_ranks_as_the_counts_do_and_its_gate_is_shut(shared):
    model = shared.model()
    evaluated(shared, model)
    counted = shared._guesses[COMBINED]
    encoded = shared._tested[ENCODER]
    assert np.array_equal(counted.true, encoded.true)
    assert np.array_equal(counted.guess, encoded.guess, equal_nan=True)
    evaluated(shared, moved(shared))
    assert not np.array_equal(counted.guess[:, 0], shared._tested[ENCODER].guess[:, 0])
    evaluated(shared, model, "validation")
    assert model.gate.tolist() == [[0.0, 0.0]] * 3  # an encoder that adds nothing


@pytest.mark.parametrize("condition", range(3))
def test_a_question_has_the_score_in_an_evaluation_that_it_has_in_training(graphmer, condition):
    """Both ways of computing it agree, where nothing of the own file is known."""
    settings = {"workload.objective.path_dropout": 0.0, "workload.chain.facts": 1}
    task = graphmer({**settings, "workload.objective.masked_ratio": float(condition == 1)})
    model = moved(task).eval()
    data = task.data
    texts = len(data.samples.windows)
    if condition == 2:
        items = list(range(texts, texts + 12))
    else:
        items = list(range(12))
    batch = batch_of(task, items)
    drawn = data.collator.draw(items, generator())
    batch["own"].zero_()
    answering = Answering(data, model)
    among = CandidateSet(data.corpus, drawn.among.entities)
    with torch.no_grad():
        trusting, alike = (scores[:, 0].numpy() for scores in model(batch))
        for q in range(len(items)):
            asked = drawn.asked[np.array([q])]
            assert asked.condition[0] == condition
            want = answering.scores(asked, among)
            possible = (batch["prior"][q, 0] > -1e3).numpy()
            assert np.allclose(trusting[q][possible], want(1.0, 0.0)[0][possible], atol=1e-3)
            assert np.allclose(alike[q][possible], want(1.0, 1.0)[0][possible], atol=1e-3)
    assert not np.allclose(trusting, alike, atol=0.1)


def test_the_gate_of_each_condition_is_that_of_most_likelihood(shared):
    model = moved(shared)
    data = shared.data
    evaluator = shared.evaluator
    evaluated(shared, model, "validation")
    chosen = [tuple(gate) for gate in model.gate.tolist()]
    answering = Answering(data, model)
    triples = np.unique([triple for triple, _ in shared.parts["validation"].samples])

    @torch.no_grad()
    def likelihood(number, gate):
        total = 0.0
        for relation in np.unique(data.corpus.relation[triples]):
            some = triples[data.corpus.relation[triples] == relation]
            asked = Questions.of_facts(data.corpus, some, np.full(len(some), number))
            among, _ = evaluator.candidates(int(relation))
            tail = data.corpus.tail[some]
            scores = answering.scores(asked, among)(*gate)
            scores[data.scorer.other_tails(asked, tail, among)] = -np.inf
            hidden = torch.from_numpy(scores).double()
            total += float(hidden.log_softmax(1)[torch.arange(len(some)), among.place[tail]].sum())
        return total

    for number in range(3):
        totals = {gate: likelihood(number, gate) for gate in GATES[::5]}
        assert max(totals.values()) <= likelihood(number, chosen[number]) + 0.01
        assert len({round(total, 2) for total in totals.values()}) == len(totals)


def test_the_table_has_every_method_and_what_the_encoder_gains(shared, tmp_path):
    scores = evaluated(shared, moved(shared))
    text = shared.report(scores, tmp_path)
    with (tmp_path / "evaluation.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == [COMBINED, ENCODER]
    assert "facts of held-out files" in text
    for method, of in ((COMBINED, shared.baseline()), (ENCODER, scores)):
        for name, value in of.items():
            assert float(rows[method][name]) == pytest.approx(value, abs=1e-6), name
    for name in ("mrr", "mrr_full_text", "mrr_masked", "mrr_name_only", "resolved"):
        low, gain, high = (
            float(rows[ENCODER][f"gain_{name}{end}"]) for end in ("_low", "", "_high")
        )
        assert gain == pytest.approx(scores[name] - shared.baseline()[name], abs=1e-5)
        assert low <= gain <= high
    corpus, (triple, condition) = shared.data.corpus, np.array(shared.parts["test"].samples).T
    ranks = shared._tested[ENCODER].guess[:, :2]
    is_masked = condition == 1
    is_seen = shared.data.scorer.counts.of_tail[corpus.relation[triple], corpus.tail[triple]] > 0
    wanted = {
        "mrr_masked": (1 / ranks[is_masked, 0]).mean(), "mrr_trained_masked": (1 / ranks[is_masked, 1]).mean(),
        "mrr_masked_seen": (1 / ranks[is_masked & is_seen, 0]).mean(),
        "mrr_masked_unseen": (1 / ranks[is_masked & ~is_seen, 0]).mean(),
        "hits3_masked": (ranks[is_masked, 0] <= 3).mean(), "hits10_trained_masked": (ranks[is_masked, 1] <= 10).mean(),
    }  # fmt: skip
    assert {name: float(rows[ENCODER][name]) for name in wanted} == pytest.approx(wanted, abs=1e-6)


def brute_force_rank(corpus, triple, scores, candidates):
    """Sorts the candidates left after filtering and averages the places that equal scores may take."""
    head = corpus.head[corpus.window_of[triple]]
    relation = corpus.relation[triple]
    tail = corpus.tail[triple]
    true = set(
        corpus.tail[
            (corpus.head[corpus.window_of] == head) & (corpus.relation == relation)
        ].tolist()
    ) - {tail}
    left = [(s, int(c)) for s, c in zip(scores, candidates, strict=True) if int(c) not in true]
    own = [s for s, c in left if c == tail]
    ordered = sorted((s for s, _ in left), reverse=True)
    if own:
        return np.mean([i + 1 for i, s in enumerate(ordered) if s == own[0]])
    return len(candidates) + 1


def test_ranks_equal_brute_force_with_ties_and_filter_and_namesakes_are_told_apart(shared):
    corpus = shared.data.corpus
    draw = np.random.default_rng(0)
    checked = 0
    evaluator = shared.evaluator
    train = corpus.triples_of("train")
    for relation, name in enumerate(corpus.relations):
        among, trained = evaluator.candidates(relation)
        tails = set(corpus.tail[train[corpus.relation[train] == relation]].tolist())
        types = [corpus.types[kind] for kind in corpus.entity_type]
        allowed = {
            e for e, kind in enumerate(types) if kind in shared.data.rules.relations[name].range
        }
        assert set(among.entities.tolist()) == allowed | tails
        assert set(among.entities[trained].tolist()) == tails
        triples = corpus.triples_of("test")
        triples = triples[corpus.relation[triples] == relation][:12]
        if not len(triples):
            continue
        scores = draw.integers(0, 4, (len(triples), len(among))).astype(float)
        asked = Questions.of_facts(corpus, triples, np.zeros(len(triples), int))
        answers = evaluator.judged(corpus.tail[triples], asked, scores)
        for row, triple in enumerate(triples):
            own = among.entities[trained]
            by_range, by_training, namesake, _ = answers[row]
            assert by_range == brute_force_rank(corpus, triple, scores[row], among.entities)
            assert by_training == brute_force_rank(corpus, triple, scores[row][trained], own)
            same = np.flatnonzero(corpus.name[among.entities] == corpus.name[corpus.tail[triple]])
            right = scores[row, same][among.entities[same] == corpus.tail[triple]]
            assert len(same) > 1 or np.isnan(namesake)
            if not np.isnan(namesake) and not (scores[row, same] > right).any():
                assert namesake > 0
                checked += 1
    assert checked > 3


def test_an_interval_draws_whole_files(graphmer):
    """Questions of a file that are all alike count as one: the interval is that of as many values as files."""
    task = graphmer()
    random = np.random.default_rng(0)
    ranks = np.repeat(1 / random.uniform(0.1, 1, (2, 30, 1)), 50, axis=1)
    conditions = np.zeros(1500, int)
    rows = {
        name: Judged(conditions, np.concatenate([of, of, of], 1), sample=np.arange(1500))
        for name, of in zip(("a", "b"), ranks, strict=True)
    }
    spread = []
    for files in (np.repeat(np.arange(30), 50), np.arange(1500)):
        tallies = task._kind.tallied(task.metrics, rows, files, files[-1] + 1)
        draws = task._kind.measured(task.metrics, resampled(tallies, 500)[:, 0])[:, 1]
        spread.append(np.subtract(*np.percentile(draws, (97.5, 2.5))))
    mean = (1 / ranks[0]).mean()
    assert task._kind.measured(task.metrics, tallies.sum(0)[:1])[0, 1] == pytest.approx(mean)
    assert spread[1] < 0.3 * spread[0]
