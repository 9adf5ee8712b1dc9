"""Filtered ranks against brute force, and figures by hand."""

import numpy as np

from lib.tasks.graphmer import ranking
from lib.tasks.graphmer.ranking import Ranked
from lib.tasks.graphmer.settings import CONDITIONS


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
    own = next(s for s, c in kept if c == corpus.tail[triple])
    ordered = sorted((s for s, _ in kept), reverse=True)
    return np.mean([i + 1 for i, s in enumerate(ordered) if s == own])


def test_ranks_equal_brute_force_with_ties_and_filter(graphmer):
    task = graphmer()
    draw = np.random.default_rng(0)
    checked = 0
    for triple in task.data.corpus.triples_of("test"):
        relation = task.evaluator.candidates.of_relation[task.data.corpus.relation[triple]]
        for candidates in (relation, task.evaluator.candidates.everything):
            scores = draw.integers(0, 4, len(candidates)).astype(float)
            got = task.evaluator.candidates.rank(int(triple), scores, candidates)
            if task.evaluator.candidates.seen(int(triple)):
                assert got == brute_force_rank(task, triple, scores, candidates)
                checked += 1
            else:
                assert got == len(candidates) + 1
    assert checked > 20


def test_figures_by_hand():
    got = ranking.figures([1, 2, 4, 20])
    assert got == {"mrr": (1 + 0.5 + 0.25 + 0.05) / 4, "hits1": 0.25, "hits3": 0.5, "hits10": 0.75}


def test_the_headline_leaves_structural_relations_out_and_averages_conditions(graphmer):
    corpus, structural = graphmer().data.corpus, graphmer().data.structural
    is_structural = structural[corpus.relation]
    other, rule = int(np.flatnonzero(~is_structural)[0]), int(np.flatnonzero(is_structural)[0])
    ranked = [Ranked(other, condition, rank) for condition, rank in zip(CONDITIONS, (1.0, 2.0, 4.0), strict=True)]
    scores = ranking.headline([*ranked, Ranked(rule, "masked", 100.0)], corpus, structural)
    assert scores["mrr"] == (1 + 0.5 + 0.25) / 3 and scores["mrr_masked"] == 0.5 and scores["hits3_name_only"] == 0.0


def test_the_printed_sentences_say_what_was_asked_and_what_is_trivial():
    place = {"relations": "non-structural", "tails": "all", "candidates": "of the relation"}
    rows = [{"condition": name, **place, "triples": 1200 if name == "masked" else 7} for name in CONDITIONS]
    text = ranking.headline_text(rows)
    assert "on 1,200 triples" in text and all(condition in text for condition in CONDITIONS)
    assert "text match in full_text" in text and "\n" not in text
