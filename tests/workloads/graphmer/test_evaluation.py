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


def test_before_the_first_step_the_model_ranks_as_the_counts_do(shared):
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
    """Both ways of computing it agree, if nothing of the own file is known."""
    overrides = {"workload.objective.path_dropout": 0.0, "workload.chain.facts": 1}
    overrides["workload.objective.masked_ratio"] = float(condition == 1)
    task = graphmer(overrides)
    model = moved(task).eval()
    data = task.data
    texts = len(data.samples.windows)
    first = texts if condition == 2 else 0
    items = list(range(first, first + 12))
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
            trust_alone = want(1.0, 0.0)[0]
            whole = want(1.0, 1.0)[0]
            assert np.allclose(trusting[q][possible], trust_alone[possible], atol=1e-3)
            assert np.allclose(alike[q][possible], whole[possible], atol=1e-3)
    assert not np.allclose(trusting, alike, atol=0.1)


@torch.no_grad()
def likelihood(task, answering, number, gate):
    """The log-probability of all right tails of validation under a condition and a gate."""
    data = task.data
    corpus = data.corpus
    triples = np.unique([triple for triple, _ in task.parts["validation"].samples])
    total = 0.0
    for relation in np.unique(corpus.relation[triples]):
        some = triples[corpus.relation[triples] == relation]
        asked = Questions.of_facts(corpus, some, np.full(len(some), number))
        among, _ = task.evaluator.candidates(int(relation))
        tail = corpus.tail[some]
        scores = answering.scores(asked, among)(*gate)
        scores[data.scorer.other_tails(asked, tail, among)] = -np.inf
        log_p = torch.from_numpy(scores).double().log_softmax(1)
        total += float(log_p[torch.arange(len(some)), among.place[tail]].sum())
    return total


def test_the_gate_of_each_condition_is_that_of_most_likelihood(shared):
    model = moved(shared)
    evaluated(shared, model, "validation")
    answering = Answering(shared.data, model)
    for number, gate in enumerate(model.gate.tolist()):
        totals = [likelihood(shared, answering, number, other) for other in GATES[::5]]
        assert max(totals) <= likelihood(shared, answering, number, gate) + 0.01
        assert len({round(total, 2) for total in totals}) == len(totals)


@pytest.fixture(scope="module")
def table(shared, tmp_path_factory):
    """The scores of an encoder, the rows of evaluation.csv by method, and the ranks of the encoder."""
    scores = evaluated(shared, moved(shared))
    folder = tmp_path_factory.mktemp("table")
    text = shared.report(scores, folder)
    assert "facts of held-out files" in text
    with (folder / "evaluation.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    return scores, rows, shared._tested[ENCODER].guess[:, :2]


def test_the_table_has_every_method_and_its_scores(shared, table):
    scores, rows, _ = table
    assert list(rows) == [COMBINED, ENCODER]
    for method, of_method in ((COMBINED, shared.baseline()), (ENCODER, scores)):
        for name, value in of_method.items():
            assert float(rows[method][name]) == pytest.approx(value, abs=1e-6), name


@pytest.mark.parametrize(
    "name", ["mrr", "mrr_full_text", "mrr_masked", "mrr_name_only", "resolved"]
)
def test_the_table_has_the_gain_of_the_encoder_with_its_interval(shared, table, name):
    scores, rows, _ = table
    ends = ("_low", "", "_high")
    low, gain, high = (float(rows[ENCODER][f"gain_{name}{end}"]) for end in ends)
    assert gain == pytest.approx(scores[name] - shared.baseline()[name], abs=1e-5)
    assert low <= gain <= high


def test_the_table_has_ranks_of_seen_and_unseen_tails(shared, table):
    _, rows, ranks = table
    corpus = shared.data.corpus
    triple, condition = np.array(shared.parts["test"].samples).T
    is_masked = condition == 1
    counts = shared.data.scorer.counts.of_tail[corpus.relation[triple], corpus.tail[triple]]
    is_seen = counts[is_masked] > 0
    among_all, among_trained = ranks[is_masked].T
    reciprocal = 1 / among_all
    wanted = {"mrr_masked": reciprocal.mean(), "mrr_trained_masked": (1 / among_trained).mean()}
    wanted["mrr_masked_seen"] = reciprocal[is_seen].mean()
    wanted["mrr_masked_unseen"] = reciprocal[~is_seen].mean()
    wanted["hits3_masked"] = (among_all <= 3).mean()
    wanted["hits10_trained_masked"] = (among_trained <= 10).mean()
    written = {name: float(rows[ENCODER][name]) for name in wanted}
    assert written == pytest.approx(wanted, abs=1e-6)


def brute_force_rank(corpus, triple, scores, candidates):
    """Sorts the candidates left after filtering and averages the places that equal scores may take."""
    head = corpus.head[corpus.window_of]
    tail = corpus.tail[triple]
    is_true = (head == head[triple]) & (corpus.relation == corpus.relation[triple])
    others = np.setdiff1d(corpus.tail[is_true], tail)
    left = ~np.isin(candidates, others)
    own = scores[candidates == tail]
    ordered = np.sort(scores[left])[::-1]
    if len(own):
        return np.mean(np.flatnonzero(ordered == own[0]) + 1)
    return len(candidates) + 1


def test_candidates_are_those_of_the_range_and_the_tails_of_training(shared):
    corpus = shared.data.corpus
    train = corpus.triples_of("train")
    types = np.array(corpus.types)[corpus.entity_type]
    for relation, name in enumerate(corpus.relations):
        among, trained = shared.evaluator.candidates(relation)
        tails = np.unique(corpus.tail[train[corpus.relation[train] == relation]])
        in_range = np.isin(types, list(shared.data.rules.relations[name].range))
        allowed = np.union1d(np.flatnonzero(in_range), tails)
        assert among.entities.tolist() == allowed.tolist()
        assert among.entities[trained].tolist() == tails.tolist()


def judged_at_random(task):
    """Test triples with scores that are often equal, and what the evaluation says of them."""
    corpus = task.data.corpus
    draw = np.random.default_rng(0)
    test = corpus.triples_of("test")
    for relation in range(len(corpus.relations)):
        among, trained = task.evaluator.candidates(relation)
        triples = test[corpus.relation[test] == relation][:12]
        if len(triples):
            scores = draw.integers(0, 4, (len(triples), len(among))).astype(float)
            asked = Questions.of_facts(corpus, triples, np.zeros(len(triples), int))
            answers = task.evaluator.judged(corpus.tail[triples], asked, scores)
            for triple, of_triple, answer in zip(triples, scores, answers, strict=True):
                yield triple, of_triple, answer, among, trained


def test_ranks_equal_brute_force_with_ties_and_filter(shared):
    corpus = shared.data.corpus
    for triple, scores, answer, among, trained in judged_at_random(shared):
        by_range, by_training, _, _ = answer
        entities = among.entities[trained]
        assert by_range == brute_force_rank(corpus, triple, scores, among.entities)
        assert by_training == brute_force_rank(corpus, triple, scores[trained], entities)


def test_namesakes_are_told_apart(shared):
    corpus = shared.data.corpus
    checked = 0
    for triple, scores, answer, among, _ in judged_at_random(shared):
        namesake = answer[2]
        tail = corpus.tail[triple]
        same = np.flatnonzero(corpus.name[among.entities] == corpus.name[tail])
        right = scores[same][among.entities[same] == tail]
        assert len(same) > 1 or np.isnan(namesake)
        if not np.isnan(namesake) and not (scores[same] > right).any():
            assert namesake > 0
            checked += 1
    assert checked > 3


def test_an_interval_draws_whole_files(graphmer):
    """Questions of a file that are all alike count as one: the interval is that of as many values as files."""
    task = graphmer()
    random = np.random.default_rng(0)
    ranks = np.repeat(1 / random.uniform(0.1, 1, (2, 30, 1)), 50, axis=1)
    conditions = np.zeros(1500, int)
    rows = {}
    for name, of_method in zip(("a", "b"), ranks, strict=True):
        guess = np.concatenate([of_method] * 3, 1)
        rows[name] = Judged(conditions, guess, sample=np.arange(1500))
    spread = []
    for files in (np.repeat(np.arange(30), 50), np.arange(1500)):
        tallies = task._kind.tallied(task.metrics, rows, files, files[-1] + 1)
        draws = task._kind.measured(task.metrics, resampled(tallies, 500)[:, 0])[:, 1]
        low, high = np.percentile(draws, (2.5, 97.5))
        spread.append(high - low)
        measured = task._kind.measured(task.metrics, tallies.sum(0)[:1])
        assert measured[0, 1] == pytest.approx((1 / ranks[0]).mean())
    assert spread[1] < 0.3 * spread[0]
