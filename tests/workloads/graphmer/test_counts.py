"""What is counted, that a training fact is asked as if its own file were not there, and how counts are combined."""

from collections import Counter

import numpy as np
import pytest

from tests.workloads.graphmer.conftest import everything, words_of
from workloads.graphmer.counts import FULL_TEXT, MASKED, NAME_ONLY, CandidateSet, Counts, Questions
from workloads.graphmer.counts.ragged import Groups, Postings, expand, find
from workloads.graphmer.counts.scoring import Sampler
from workloads.graphmer.settings import FEATURES


def asked_in(corpus, condition, relation="calls", split="test"):
    """The first triple of a relation, its question, and all entities as candidates."""
    number = corpus.relations.index(relation)
    triple = next(int(t) for t in corpus.triples_of(split) if corpus.relation[t] == number)
    asked = Questions.of_facts(corpus, np.array([triple]), np.array([condition]))
    return triple, asked, CandidateSet(corpus, everything(corpus))


def entering(corpus):
    """A call of the own class's `enter_house`."""
    return next(
        t for t in range(len(corpus.tail))
        if corpus.entities[corpus.tail[t]].endswith("enter_house") and corpus.relations[corpus.relation[t]] == "calls"
    )  # fmt: skip


def features(corpus, counts, triples, condition, leave_out):
    """The features (Q, C) of all entities by name."""
    asked = Questions.of_facts(corpus, triples, np.full(len(triples), condition))
    stacked = counts.found(asked, CandidateSet(corpus, everything(corpus)), leave_out).stacked()
    return {name: stacked[:, :, number] for number, name in enumerate(FEATURES)}


def test_ragged_rows_groups_and_postings_are_what_loops_give():
    row, at = expand(np.array([5, 0, 9]), np.array([2, 0, 3]))
    assert row.tolist() == [0, 0, 2, 2, 2] and at.tolist() == [5, 6, 9, 10, 11]
    assert find(np.array([2, 4, 9]), np.array([4, 5, 10, 2])).tolist() == [1, -1, -1, 0]
    assert find(np.array([], int), np.array([4])).tolist() == [-1]
    groups = Groups(np.array([3, 1, 3, 7]))
    row, place = groups.places(np.array([7, 5, 3]))
    assert list(zip(row, place, strict=True)) == [(0, 3), (2, 0), (2, 2)]
    assert groups.sizes(np.array([3, 5])).tolist() == [2, 0]
    draw = np.random.default_rng(0)
    key, tail, file = (draw.integers(0, most, 300) for most in (5, 7, 4))
    postings = Postings(key, tail, file, 7, 4)
    asked, of_file = np.array([3, 9, 0]), np.array([2, 2, 1])
    alone = [(key == k) & (file == f) for k, f in zip(asked, of_file, strict=True)]
    for got, masks in ((postings.get(asked), [key == k for k in asked]), (postings.own(asked, of_file), alone)):
        row, tails, number = got
        want = [Counter(tail[mask].tolist()) for mask in masks]
        assert [dict(zip(tails[row == i].tolist(), number[row == i].tolist(), strict=True)) for i in range(3)] == want
    assert len(postings.get(asked, longest=6)[0]) < len(postings.get(asked)[0])


@pytest.mark.parametrize("condition", [FULL_TEXT, MASKED, NAME_ONLY])
def test_leaving_a_file_out_is_counting_without_it(graphmer, condition):
    """The features of a training file's facts are those that they have where the file is held out."""
    corpus = graphmer().data.corpus
    train = corpus.triples_of("train")
    file = corpus.window_file[corpus.window_of[train[0]]]
    of_file = train[corpus.window_file[corpus.window_of[train]] == file]
    left_out = features(corpus, Counts(corpus), of_file, condition, leave_out=True)
    whole = features(corpus, Counts(corpus), of_file, condition, leave_out=False)
    corpus.split = np.where(corpus.window_file == file, 2, corpus.split)
    held_out = features(corpus, Counts(corpus), of_file, condition, leave_out=False)
    for name, want in held_out.items():
        assert np.allclose(left_out[name], want, atol=1e-5), name
    assert not np.allclose(whole["frequency"], held_out["frequency"])


def test_a_hidden_name_says_nothing_where_it_is_the_heads_too(shared):
    corpus, counts = shared.data.corpus, shared.data.scorer.counts
    triple, _, among = asked_in(corpus, MASKED)
    window, relation = corpus.window_of[[triple]], corpus.relation[[triple]]
    words = np.array([-1]), corpus.name[corpus.head[window]]
    shown, hidden = (Questions(window, relation, np.array([MASKED]), word) for word in words)
    for lift in ("head's name", "words of the head's name"):
        assert len(counts.keys(lift, shown)[0]) and not len(counts.keys(lift, hidden)[0])
    found = counts.found(hidden, among, False)
    assert not found.dense["same name"].any() and not len(found.sparse["words shared with the head's name"][0])


def test_context_words_are_those_around_a_hidden_name_and_self_points_at_the_heads_class(shared):
    corpus, counts = shared.data.corpus, shared.data.scorer.counts
    triple, asked, _ = asked_in(corpus, MASKED, split="train")
    text, name = words_of(corpus, corpus.window_of[triple]), corpus.word_list[corpus.name[corpus.tail[triple]]]
    want = {
        (offset, text[place + offset])
        for place, word in enumerate(text) if word == name
        for offset in range(-3, 4) if 0 <= place + offset < len(text) and text[place + offset] != name
    }  # fmt: skip
    inner = counts.keys("context", asked)[1] - asked.relation[0] * counts.contexts_a_relation
    words = len(corpus.word_list)
    assert {(int(k) // words - 3, corpus.word_list[int(k) % words]) for k in inner} == want and len(want) == len(inner)
    assert not len(counts.keys("context", asked_in(corpus, FULL_TEXT)[1])[0])
    call = entering(corpus)
    siblings = np.flatnonzero(features(corpus, counts, np.array([call]), MASKED, False)["self before"][0])
    parent = corpus.entities[corpus.head[corpus.window_of[call]]].rpartition(".")[0]
    assert {corpus.entities[c] for c in siblings} == {f"{parent}.enter_house", f"{parent}.leave_house"}


def test_a_candidate_is_there_as_often_as_its_chance_says(shared):
    corpus, scorer = shared.data.corpus, shared.data.scorer
    sampler = Sampler(scorer, np.arange(len(corpus.relations)), 60)
    gold, words, files = corpus.tail[corpus.triples_of("train")[:3]], corpus.name[:40], np.array([0, 1])
    times, chances = np.zeros(len(corpus.entities)), np.zeros(len(corpus.entities))
    for draws in np.random.default_rng(0).random((250, len(corpus.entities))):
        among, chance = sampler.draw(gold, words, files, draws)
        assert len(among) <= 60 and set(gold.tolist()) <= set(among.entities.tolist())
        times[among.entities] += 1
        chances[among.entities] = np.exp(chance)
    others = np.setdiff1d(np.flatnonzero(times), gold)
    golds = sampler.chance_of_gold[np.searchsorted(sampler.entities, others)] * 3
    assert np.abs(times[others] / 250 - chances[others]).max() < 0.15 + golds.max() and (chances[others] < 0.9).any()
    whole = Sampler(scorer, np.arange(len(corpus.relations)), 10 * len(corpus.entities))
    among, chance = whole.draw(gold, words, files, np.full(len(corpus.entities), 0.999))
    assert np.array_equal(among.entities, whole.entities) and np.allclose(chance, 0), "with room for all"
    possible = scorer.is_allowed(np.flatnonzero(~shared.data.structural), everything(corpus)).any(0)
    assert np.array_equal(shared.data.collator.sampler.entities, np.flatnonzero(possible)) and not possible.all()
