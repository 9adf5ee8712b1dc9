"""What is counted, and that a training fact is asked as if its own file were not there."""

import numpy as np
import pytest

from workloads.graphmer import counts as counting
from workloads.graphmer.counts import FULL_TEXT, MASKED, NAME_ONLY, CandidateSet, Counts, Questions


def features(task, counts, triples, condition, leave_out):
    """The features (Q, C) of all entities by name."""
    corpus = task.data.corpus
    asked = Questions.of_facts(corpus, triples, np.full(len(triples), condition))
    among = CandidateSet(corpus, np.arange(len(corpus.entities)))
    found = {name: np.asarray(value, float) for name, value in counts.dense(asked, among, leave_out)}
    for name, (row, column, value) in counts.sparse(asked, among, leave_out):
        array = np.zeros((len(asked), len(among)))
        np.add.at(array, (row, column), value)
        found[name] = array
    assert found.keys() == set(counting.FEATURES)
    return found


@pytest.mark.parametrize("condition", [FULL_TEXT, MASKED, NAME_ONLY])
def test_leaving_a_file_out_is_counting_without_it(graphmer, condition):
    """The features of a training file's facts are those that they have where the file is held out."""
    task = graphmer()
    corpus = task.data.corpus
    train = corpus.triples_of("train")
    file = corpus.window_file[corpus.window_of[train[0]]]
    of_file = train[corpus.window_file[corpus.window_of[train]] == file]
    left_out = features(task, Counts(corpus), of_file, condition, leave_out=True)
    kept = features(task, Counts(corpus), of_file, condition, leave_out=False)
    corpus.split = np.where(corpus.window_file == file, 2, corpus.split)
    held_out = features(task, Counts(corpus), of_file, condition, leave_out=False)
    for name, want in held_out.items():
        assert np.allclose(left_out[name], want, atol=1e-5), name
    assert not np.allclose(kept["frequency"], held_out["frequency"])


def test_an_entity_is_elsewhere_where_training_has_it_as_a_tail_in_another_file(graphmer):
    corpus = graphmer().data.corpus
    counts, among = Counts(corpus), CandidateSet(corpus, np.arange(len(corpus.entities)))
    train, test = corpus.triples_of("train"), corpus.triples_of("test")
    asked = np.concatenate([train[::40], test[::40]])
    got = counts.elsewhere(Questions.of_facts(corpus, asked, np.zeros(len(asked), int)), among)
    file = corpus.window_file[corpus.window_of]
    for row, triple in enumerate(asked):
        others = corpus.tail[train[file[train] != file[triple]]]
        assert np.array_equal(got[row], np.isin(among.entities, others))
    assert not got.all(0)[corpus.tail[train]].all()  # some tails are of one file alone


def test_a_hidden_name_says_nothing_where_it_is_the_heads_too(graphmer):
    task = graphmer()
    corpus = task.data.corpus
    triple = corpus.triples_of("test")[0]
    counts = Counts(corpus)
    window, relation = corpus.window_of[[triple]], corpus.relation[[triple]]
    name = corpus.name[corpus.head[window]]
    among = CandidateSet(corpus, np.arange(len(corpus.entities)))
    shown, hidden = (Questions(window, relation, np.array([MASKED]), word) for word in (np.array([-1]), name))
    for lift in ("head's name", "words of the head's name"):
        assert len(counts.keys(lift, shown)[0]) and not len(counts.keys(lift, hidden)[0])
    assert not dict(counts.dense(hidden, among, False))["same name"].any()
    assert len(dict(counts.sparse(hidden, among, False))["words shared with the head's name"][0]) == 0


def test_context_words_are_those_around_a_hidden_name_and_never_the_name(graphmer):
    task = graphmer()
    corpus, counts = task.data.corpus, Counts(task.data.corpus)
    calls = corpus.relations.index("calls")
    triple = next(t for t in corpus.triples_of("train") if corpus.relation[t] == calls)
    asked = Questions.of_facts(corpus, np.array([triple]), np.array([MASKED]))
    text, name = corpus.window_text(corpus.window_of[triple]).tolist(), corpus.name[corpus.tail[triple]]
    want = {
        (offset, text[place + offset])
        for place, word in enumerate(text) if word == name
        for offset in range(-3, 4) if 0 <= place + offset < len(text) and text[place + offset] != name
    }  # fmt: skip
    _, key, _ = counts.keys("context", asked)
    inner = key - calls * counts.contexts_a_relation
    words = len(corpus.word_list)
    assert {(int(k) // words - 3, int(k) % words) for k in inner} == want and len(want) == len(key)
    full_text = Questions.of_facts(corpus, np.array([triple]), np.array([FULL_TEXT]))
    assert not len(counts.keys("context", full_text)[0])


def test_self_before_a_hidden_name_points_at_the_heads_class(graphmer):
    task = graphmer()
    corpus, counts = task.data.corpus, Counts(task.data.corpus)
    triple = next(
        t for t in range(len(corpus.tail))
        if corpus.entities[corpus.tail[t]].endswith("enter_house") and corpus.relations[corpus.relation[t]] == "calls"
    )  # fmt: skip
    head = corpus.head[corpus.window_of[triple]]
    found = features(task, counts, np.array([triple]), MASKED, leave_out=False)["self before"][0]
    siblings = {corpus.entities[c] for c in np.flatnonzero(found)}
    parent = corpus.entities[head].rpartition(".")[0]
    assert siblings == {f"{parent}.enter_house", f"{parent}.leave_house"}
