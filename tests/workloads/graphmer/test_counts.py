"""What is counted, that a training fact is asked as if its own file were not there, and how counts are combined."""

import numpy as np
import pytest

from tests.workloads.graphmer.conftest import everything
from workloads.graphmer.counts import FULL_TEXT, MASKED, NAME_ONLY, CandidateSet, Counts, Questions
from workloads.graphmer.counts.scoring import Sampler
from workloads.graphmer.settings import FEATURES


def asked_in(corpus, condition):
    """The first call of the test, its question, and all entities as candidates."""
    number = corpus.relations.index("calls")
    triple = next(int(t) for t in corpus.triples_of("test") if corpus.relation[t] == number)
    asked = Questions.of_facts(corpus, np.array([triple]), np.array([condition]))
    return triple, asked, CandidateSet(corpus, everything(corpus))


def features(corpus, counts, triples, condition):
    """The features (Q, C) of all entities by name."""
    asked = Questions.of_facts(corpus, triples, np.full(len(triples), condition))
    stacked = counts.found(asked, CandidateSet(corpus, everything(corpus))).stacked()
    return {name: stacked[:, :, number] for number, name in enumerate(FEATURES)}


@pytest.mark.parametrize("condition", [FULL_TEXT, MASKED, NAME_ONLY])
def test_leaving_a_file_out_is_counting_without_it(graphmer, condition):
    """The features of a training file's facts are those that they have where the file is held out."""
    corpus = graphmer().data.corpus
    train = corpus.triples_of("train")
    file = corpus.window_file[corpus.window_of[train[0]]]
    of_file = train[corpus.window_file[corpus.window_of[train]] == file]
    left_out = features(corpus, Counts(corpus), of_file, condition)
    corpus.split = np.where(corpus.window_file == file, 2, corpus.split)
    held_out = features(corpus, Counts(corpus), of_file, condition)
    for name, want in held_out.items():
        assert np.allclose(left_out[name], want, atol=1e-5), name


def test_a_hidden_name_says_nothing_where_it_is_the_heads_too(shared):
    corpus = shared.data.corpus
    counts = shared.data.scorer.counts
    triple, _, among = asked_in(corpus, MASKED)
    window = corpus.window_of[[triple]]
    relation = corpus.relation[[triple]]
    words = np.array([-1]), corpus.name[corpus.head[window]]
    shown, hidden = (Questions(window, relation, np.array([MASKED]), word) for word in words)
    for lift in ("head's name", "words of the head's name"):
        assert len(counts.keys(lift, shown)[0])
        assert not len(counts.keys(lift, hidden)[0])
    found = counts.found(hidden, among)
    assert not found.dense["same name"].any()
    assert not len(found.sparse["words shared with the head's name"][0])


def test_a_candidate_is_there_as_often_as_its_chance_says(shared):
    corpus = shared.data.corpus
    scorer = shared.data.scorer
    sampler = Sampler(scorer, np.arange(len(corpus.relations)), 60)
    gold = corpus.tail[corpus.triples_of("train")[:3]]
    words = corpus.name[:40]
    files = np.array([0, 1])
    times = np.zeros(len(corpus.entities))
    chances = np.zeros(len(corpus.entities))
    for draws in np.random.default_rng(0).random((250, len(corpus.entities))):
        among, chance = sampler.draw(gold, words, files, draws)
        assert len(among) <= 60
        assert set(gold.tolist()) <= set(among.entities.tolist())
        times[among.entities] += 1
        chances[among.entities] = np.exp(chance)
    others = np.setdiff1d(np.flatnonzero(times), gold)
    golds = sampler.chance_of_gold[np.searchsorted(sampler.entities, others)] * 3
    assert np.abs(times[others] / 250 - chances[others]).max() < 0.15 + golds.max()
    assert (chances[others] < 0.9).any()
    whole = Sampler(scorer, np.arange(len(corpus.relations)), 10 * len(corpus.entities))
    among, chance = whole.draw(gold, words, files, np.full(len(corpus.entities), 0.999))
    assert np.array_equal(among.entities, whole.entities), "with room for all"
    assert np.allclose(chance, 0), "with room for all"
    possible = scorer.is_allowed(np.flatnonzero(~shared.data.structural), everything(corpus)).any(0)
    assert np.array_equal(shared.data.collator.sampler.entities, np.flatnonzero(possible))
    assert not possible.all()
