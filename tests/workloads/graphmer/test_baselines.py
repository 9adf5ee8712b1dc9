"""The methods without a model."""

from collections import Counter

import numpy as np

from workloads.graphmer.baselines import Baselines
from workloads.graphmer.counts import FULL_TEXT, MASKED, NAME_ONLY, CandidateSet, Questions


def asked_in(task, condition, relation="calls"):
    """The first test triple of a relation, its question, and all entities as candidates."""
    corpus = task.data.corpus
    number = corpus.relations.index(relation)
    triple = next(int(t) for t in corpus.triples_of("test") if corpus.relation[t] == number)
    asked = Questions.of_facts(corpus, np.array([triple]), np.array([condition]))
    return triple, asked, CandidateSet(corpus, np.arange(len(corpus.entities)))


def test_the_baselines_use_the_training_files_alone(graphmer):
    task = graphmer()
    corpus, baselines = task.data.corpus, Baselines(task.data.scorer.counts)
    _, asked, among = asked_in(task, NAME_ONLY)
    train = corpus.triples_of("train")
    want = Counter(corpus.tail[train[corpus.relation[train] == asked.relation[0]]].tolist())
    found = baselines.frequency(asked, among)[0]
    assert {int(e): int(found[e]) for e in np.flatnonzero(found)} == want


def test_a_tail_whose_name_stands_in_the_text_comes_first(graphmer):
    task = graphmer()
    corpus = task.data.corpus
    triple, asked, among = asked_in(task, FULL_TEXT)
    scores = Baselines(task.data.scorer.counts).cue(asked, among)[0]
    text = corpus.window_text(corpus.window_of[triple])
    assert corpus.name[scores.argmax()] in text
    assert (np.isin(corpus.name, text) == (scores >= 1e9)).all()


def test_context_words_are_a_naive_bayes_over_training_facts(graphmer):
    task = graphmer()
    corpus, counts = task.data.corpus, task.data.scorer.counts
    _, asked, among = asked_in(task, MASKED)
    train = corpus.triples_of("train")
    train = train[corpus.relation[train] == asked.relation[0]]
    of_facts = Questions.of_facts(corpus, train, np.full(len(train), MASKED))
    row, key, _ = counts.keys("context", of_facts)
    tails, wanted = corpus.tail[train][row], counts.keys("context", asked)[1]
    total = np.bincount(tails, minlength=len(among))
    want = np.log(np.bincount(corpus.tail[train], minlength=len(among)) + 1e-3)
    for one in wanted:
        number = np.bincount(tails[key == one], minlength=len(among))
        share = number.sum() / total.sum()
        want = want + np.log((number + 0.3 * (share + 1e-6)) / (total + 0.3))
    assert len(wanted) > 2
    got = Baselines(counts).cue(asked, among)[0]
    assert np.allclose(got - got[0], want - want[0], atol=1e-4) and np.ptp(got) > 1


def test_tails_of_heads_of_the_same_name_come_first_without_text(graphmer):
    task = graphmer()
    corpus = task.data.corpus
    triple, asked, among = asked_in(task, NAME_ONLY)
    scores = Baselines(task.data.scorer.counts).cue(asked, among)[0]
    train = corpus.triples_of("train")
    name = corpus.name[corpus.head[corpus.window_of[triple]]]
    same = train[
        (corpus.name[corpus.head[corpus.window_of[train]]] == name) & (corpus.relation[train] == asked.relation[0])
    ]
    assert set(np.flatnonzero(scores >= 1e6).tolist()) == set(corpus.tail[same].tolist()) != set()


def test_the_rule_prefers_the_heads_own_class_and_file(graphmer):
    task = graphmer()
    corpus = task.data.corpus
    triple = next(
        t for t in range(len(corpus.tail))
        if corpus.entities[corpus.tail[t]].endswith("enter_house") and corpus.relations[corpus.relation[t]] == "calls"
    )  # fmt: skip
    asked = Questions.of_facts(corpus, np.array([triple]), np.array([FULL_TEXT]))
    among = CandidateSet(corpus, np.arange(len(corpus.entities)))
    scores = Baselines(task.data.scorer.counts).rule(asked, among)[0]
    own = corpus.tail[triple]
    namesakes = np.flatnonzero(corpus.name == corpus.name[own])
    assert len(namesakes) > 1 and namesakes[scores[namesakes].argmax()] == own
