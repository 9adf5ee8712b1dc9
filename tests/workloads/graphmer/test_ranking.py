"""Filtered ranks against brute force, and figures by hand."""

import numpy as np

from workloads.graphmer import ranking
from workloads.graphmer.counts import Questions
from workloads.graphmer.ranking import Answers, Candidates
from workloads.graphmer.settings import CONDITIONS


def brute_force_rank(task, triple, scores, candidates):
    """Sorts the candidates left after filtering and averages the places that equal scores may take."""
    corpus = task.data.corpus
    head, relation = corpus.head[corpus.window_of[triple]], corpus.relation[triple]
    true = {
        int(corpus.tail[t])
        for t in range(len(corpus.tail))
        if corpus.head[corpus.window_of[t]] == head and corpus.relation[t] == relation
    } - {int(corpus.tail[triple])}
    kept = [(s, int(c)) for s, c in zip(scores, candidates, strict=True) if int(c) not in true]
    own = [s for s, c in kept if c == corpus.tail[triple]]
    if not own:
        return len(candidates) + 1
    ordered = sorted((s for s, _ in kept), reverse=True)
    return np.mean([i + 1 for i, s in enumerate(ordered) if s == own[0]])


def answered(task, triples, draw):
    """The answers to triples of one relation by scores with many ties, and these."""
    corpus = task.data.corpus
    candidates = Candidates(corpus, task.data.scorer)
    among, trained = candidates.of(int(corpus.relation[triples[0]]))
    scores = draw.integers(0, 4, (len(triples), len(among))).astype(float)
    asked = Questions.of_facts(corpus, triples, np.zeros(len(triples), int))
    return candidates.rank(triples, asked, scores), scores, among.entities, trained


def test_ranks_equal_brute_force_with_ties_and_filter(graphmer):
    task = graphmer()
    corpus, draw, checked = task.data.corpus, np.random.default_rng(0), 0
    for relation in range(len(corpus.relations)):
        triples = corpus.triples_of("test")
        triples = triples[corpus.relation[triples] == relation][:12]
        if not len(triples):
            continue
        answers, scores, entities, trained = answered(task, triples, draw)
        for row, triple in enumerate(triples):
            assert answers.by_range[row] == brute_force_rank(task, triple, scores[row], entities)
            assert answers.by_training[row] == brute_force_rank(task, triple, scores[row][trained], entities[trained])
            assert answers.seen[row] == (corpus.tail[triple] in entities[trained])
            checked += 1
    assert checked > 20


def test_candidates_by_range_are_what_the_ontology_allows_and_what_training_has(graphmer):
    task = graphmer()
    corpus, candidates = task.data.corpus, Candidates(task.data.corpus, task.data.scorer)
    train = corpus.triples_of("train")
    for relation, name in enumerate(corpus.relations):
        among, trained = candidates.of(relation)
        tails = set(corpus.tail[train[corpus.relation[train] == relation]].tolist())
        allowed = {e for e in range(len(corpus.entities))
                   if corpus.types[corpus.entity_type[e]] in task.data.rules.relations[name].range}  # fmt: skip
        assert set(among.entities.tolist()) == allowed | tails
        assert set(among.entities[trained].tolist()) == tails


def test_the_right_entity_of_a_name_is_told_from_its_namesakes(graphmer):
    task = graphmer()
    corpus = task.data.corpus
    calls = corpus.relations.index("calls")
    triples = corpus.triples_of("test")
    triples = triples[corpus.relation[triples] == calls][:20]
    answers, scores, entities, _ = answered(task, triples, np.random.default_rng(1))
    known = 0
    for row, triple in enumerate(triples):
        same = np.flatnonzero(corpus.name[entities] == corpus.name[corpus.tail[triple]])
        own = scores[row, same][entities[same] == corpus.tail[triple]]
        if len(same) < 2:
            assert np.isnan(answers.namesake[row])
        elif np.isnan(answers.namesake[row]):
            assert len(same) > 1  # the others are true as well
        else:
            assert (answers.namesake[row] == 0) <= bool((scores[row, same] > own).any() or not len(own))
            known += 1
    assert known > 3


def test_figures_by_hand():
    got = ranking.figures(np.array([1, 2, 4, 20]))
    assert got == {"mrr": (1 + 0.5 + 0.25 + 0.05) / 4, "hits1": 0.25, "hits3": 0.5, "hits10": 0.75}
    assert ranking.figures(np.array([]))["mrr"] == 0.0


def answers_of(triples, ranks):
    n = len(triples)
    return Answers(
        np.array(triples), np.arange(n) % 3, np.array(ranks, float), np.array(ranks, float) * 2,
        np.where(np.arange(n) == 0, 1.0, np.nan), np.ones(n, bool),
    )  # fmt: skip


def test_the_headline_leaves_structural_relations_out_and_averages_conditions_and_candidates(graphmer):
    corpus, structural = graphmer().data.corpus, graphmer().data.structural
    is_structural = structural[corpus.relation]
    other, rule = int(np.flatnonzero(~is_structural)[0]), int(np.flatnonzero(is_structural)[0])
    answers = answers_of([other, other, other, rule], [1.0, 2.0, 4.0, 100.0])
    scores = ranking.headline(answers, structural, corpus.relation)
    assert scores["mrr_masked"] == 0.5 and scores["mrr_trained_masked"] == 0.25 and scores["hits3_name_only"] == 0.0
    assert scores["mrr"] == (1 + 0.5 + 0.25 + 0.5 + 0.25 + 0.125) / 6 and scores["resolved"] == 1.0
    assert {f"mrr_{condition}" for condition in CONDITIONS} <= scores.keys()


def test_an_interval_draws_whole_files():
    """Facts of a file that are all alike count as one: the interval is that of as many values as there are files."""
    draw = np.random.default_rng(0)
    of_file = draw.random(30)
    low, high = ranking.interval(of_file, np.arange(30))
    assert np.allclose(ranking.interval(np.repeat(of_file, 50), np.repeat(np.arange(30), 50)), (low, high))
    assert low < of_file.mean() < high and 0.1 < high - low < 0.35  # 4 standard errors of uniform numbers: 0.21
    alone = ranking.interval(np.repeat(of_file, 50), np.arange(1500))
    assert alone[1] - alone[0] < 0.3 * (high - low)
