"""Counts combined: weights that are fitted, the pointer, and the candidates of a batch."""

import json

import numpy as np
import pytest
import torch

from tests.workloads.graphmer.conftest import generator
from workloads.graphmer import fitting
from workloads.graphmer.counts import FEATURES, FULL_TEXT, CandidateSet, Questions
from workloads.graphmer.model import IMPOSSIBLE
from workloads.graphmer.scoring import Sampler, Weights


def weights_of(task, seed=0):
    """Weights at random, in place of fitted ones."""
    corpus, draw = task.data.corpus, np.random.default_rng(seed)
    shapes = Weights.shapes(len(corpus.relations), len(corpus.types))
    return Weights(**{name: draw.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()})


def test_weights_survive_json_and_are_refused_for_other_data(graphmer):
    task = graphmer()
    values = json.loads(json.dumps(weights_of(task).as_json(task.data.corpus)))
    again = Weights.from_json(values, task.data.corpus)
    assert all(np.allclose(getattr(again, n), v, atol=1e-4) for n, v in vars(weights_of(task)).items())
    for damaged in ({}, {**values, "types": [1.0]}, {**values, "names": {**values["names"], "relations": ["calls"]}}):
        with pytest.raises((ValueError, KeyError)):
            Weights.from_json(damaged, task.data.corpus)


def test_fitting_gives_the_same_weights_again_and_lowers_the_loss_of_other_facts(graphmer):
    task = graphmer()
    collator = task.data.collator
    first, again, none = (fitting.fit(collator, steps) for steps in (15, 15, 1))
    assert all(np.array_equal(value, getattr(again, name)) for name, value in vars(first).items())
    losses = {}
    for name, weights in (("fitted", first), ("not", none)):
        collator.scorer.weights = weights
        drawn = collator.draw(list(range(0, len(collator.samples), 3)), generator(99))
        scores = collator.scorer.prior(drawn.asked, drawn.among, leave_out=True)
        gold = torch.from_numpy(drawn.gold)
        losses[name] = float(torch.nn.functional.cross_entropy(torch.from_numpy(scores), gold))
    assert losses["fitted"] < 0.95 * losses["not"]


def test_the_pointer_adds_up_the_places_of_a_name(graphmer):
    task = graphmer()
    corpus, scorer = task.data.corpus, task.data.scorer
    scorer.weights = weights_of(task)
    triples = corpus.triples_of("test")[:30]
    asked = Questions.of_facts(corpus, triples, np.full(len(triples), FULL_TEXT))
    among = CandidateSet(corpus, np.arange(len(corpus.entities)))
    rows = task.data.collator.of_questions(asked)[1]
    places = scorer.places(asked, rows, np.arange(len(asked)))
    got, factors = scorer.pointer(asked, among, rows, np.arange(len(asked)), places), set()
    for q in range(0, len(asked), 3):
        weight, (owner, self_) = (
            scorer.weights.place[asked.relation[q]],
            np.exp(scorer.weights.boost[asked.relation[q]]),
        )
        total = np.zeros(len(among))
        for j in np.flatnonzero(rows.word[q] >= 0):
            score = weight[0] + weight[1] * rows.is_call[q, j] + weight[2 + rows.previous[q, j]]
            for e in np.flatnonzero(corpus.name == rows.word[q, j]):
                sibling = corpus.parent[e] == corpus.parent[corpus.head[asked.window[q]]]
                factor = 1 + (owner - 1) * (rows.owner[q, j] == corpus.owner[e])
                factor += (self_ - 1) * (rows.is_self[q, j] == 1 and sibling)
                total[e] += np.exp(score) * factor
                factors.add(round(float(factor), 3))
        assert np.allclose(got[q], np.log1p(np.maximum(total, 0)), atol=1e-4)
    assert len(factors) > 1


@pytest.mark.parametrize("leave_out", [True, False])
def test_the_score_is_the_weighted_sum_of_the_features(graphmer, leave_out):
    task = graphmer()
    corpus, scorer = task.data.corpus, task.data.scorer
    scorer.weights = weights_of(task)
    triples = corpus.triples_of("train")[::4]
    condition = np.arange(len(triples)) % 3
    asked = Questions.of_facts(corpus, triples, condition)
    among = CandidateSet(corpus, np.arange(len(corpus.entities)))
    weight = scorer.weights.features[condition, asked.relation]
    want = scorer.weights.types[condition, asked.relation][:, corpus.entity_type].astype(float)
    for name, value in scorer.counts.dense(asked, among, leave_out):
        want += weight[:, [FEATURES.index(name)]] * value
    for name, (row, column, value) in scorer.counts.sparse(asked, among, leave_out):
        np.add.at(want, (row, column), weight[row, FEATURES.index(name)] * value)
    got, allowed = scorer.prior(asked, among, leave_out), scorer.is_allowed(asked.relation, among.entities)
    assert np.allclose(got[allowed], want[allowed], atol=1e-3) and (got[~allowed] == IMPOSSIBLE).all()
    assert allowed.any() and not allowed.all()


def test_a_candidate_is_there_as_often_as_its_chance_says(graphmer):
    task = graphmer()
    corpus, scorer = task.data.corpus, task.data.scorer
    sampler = Sampler(scorer, np.arange(len(corpus.relations)), 60)
    gold, words, files = corpus.tail[corpus.triples_of("train")[:3]], corpus.name[:40], np.array([0, 1])
    times, chances = np.zeros(len(corpus.entities)), np.zeros(len(corpus.entities))
    for seed in range(250):
        draws = torch.rand(len(corpus.entities), generator=generator(seed)).numpy()
        among, chance = sampler.draw(gold, words, files, draws)
        assert len(among) <= 60 and set(gold.tolist()) <= set(among.entities.tolist())
        times[among.entities] += 1
        chances[among.entities] = np.exp(chance)
    others = np.setdiff1d(np.flatnonzero(times), gold)
    golds = sampler.chance_of_gold[np.searchsorted(sampler.entities, others)] * 3
    assert np.abs(times[others] / 250 - chances[others]).max() < 0.15 + golds.max()
    assert (chances[others] < 0.9).any()


def test_with_room_for_all_everything_competes_at_even_odds(graphmer):
    task = graphmer()
    corpus, scorer = task.data.corpus, task.data.scorer
    sampler = Sampler(scorer, np.arange(len(corpus.relations)), 10 * len(corpus.entities))
    gold = corpus.tail[corpus.triples_of("train")[:3]]
    among, chance = sampler.draw(gold, corpus.name[:5], np.array([0]), np.full(len(corpus.entities), 0.999))
    assert np.array_equal(among.entities, sampler.entities) and np.allclose(chance, 0)


def test_what_only_a_structural_relation_has_as_a_tail_takes_no_place_in_a_batch(graphmer):
    task = graphmer()
    corpus, structural = task.data.corpus, task.data.structural
    possible = task.data.scorer.is_allowed(np.flatnonzero(~structural), np.arange(len(corpus.entities))).any(0)
    assert set(task.data.collator.sampler.entities.tolist()) == set(np.flatnonzero(possible).tolist())
    assert not possible.all()
