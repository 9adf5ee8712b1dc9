"""Windows laid out as roots."""

import numpy as np

from workloads.graphmer import tokens
from workloads.graphmer.counts import MASKED, Questions
from workloads.graphmer.rows import Layout

NOTHING = np.zeros(0, int)


def test_a_row_is_the_heads_name_a_separator_and_the_text(graphmer):
    corpus = graphmer().data.corpus
    windows = corpus.windows_of("train")[:9]
    rows = Layout(corpus, 24).rows(windows, np.arange(9) % 3 > 0, NOTHING, NOTHING)
    for row, window in enumerate(windows):
        head = corpus.pieces.expand(corpus.head_parts(window))[0][:3]
        text = corpus.pieces.expand(corpus.window_text(window))[0] if row % 3 else NOTHING
        want = [*head, tokens.SEP, *text]
        assert rows.ids[row].tolist() == want + [tokens.PAD] * (rows.ids.shape[1] - len(want))
        shown = [corpus.word_list[w] for w in rows.word[row] if w >= 0]
        assert shown == [corpus.word_list[w] for w in corpus.window_text(window)] * (row % 3 > 0)


def test_marks_say_what_stands_before_and_behind_a_word(graphmer):
    corpus = graphmer().data.corpus
    windows = corpus.windows_of("train")
    rows = Layout(corpus, 24).rows(windows, np.ones(len(windows), bool), NOTHING, NOTHING)
    checked = 0
    for row, window in enumerate(windows):
        text = [corpus.word_list[w] for w in corpus.window_text(window)]
        for number, place in enumerate(np.flatnonzero(rows.word[row] >= 0)):
            dotted = number > 1 and text[number - 1] == "."
            owner = rows.owner[row, place]
            assert (corpus.word_list[owner] if owner >= 0 else None) == (text[number - 2] if dotted else None)
            assert rows.is_self[row, place] == (dotted and text[number - 2] == "self")
            assert rows.is_call[row, place] == (text[number + 1 : number + 2] == ["("])
            checked += dotted
    assert checked > 5


def test_a_leaf_hangs_on_the_places_of_its_hidden_name_and_else_on_the_heads(graphmer):
    task = graphmer()
    corpus = task.data.corpus
    calls = corpus.relations.index("calls")
    triple = next(t for t in corpus.triples_of("train") if corpus.relation[t] == calls)
    asked = Questions.of_facts(corpus, np.array([triple, triple]), np.array([MASKED, 0]))
    rows = Layout(corpus, 24).rows(asked.window, np.ones(2, bool), np.array([0]), asked.hidden[:1])
    distance = rows.distance(np.arange(2), asked.hidden)
    on = np.flatnonzero(rows.ids[0] == tokens.NAME)
    assert len(on) and np.flatnonzero(distance[0] == 1).tolist() == on.tolist()
    assert np.flatnonzero(distance[1] == 1).tolist() == list(range(rows.name_length[1]))
    want = [[1 + min(abs(j - a) for a in np.flatnonzero(d == 1)) for j in range(len(d))] for d in distance]
    assert distance.tolist() == want


def test_a_shortened_path_keeps_the_last_name(graphmer):
    corpus = graphmer().data.corpus
    window = next(w for w in corpus.windows_of("train") if len(corpus.head_parts(w)) == 3)
    laid = [
        Layout(corpus, 64).rows(np.array([window]), np.array([False]), NOTHING, NOTHING, np.array([n]))
        for n in (0, 1, 9)
    ]
    pieces = [corpus.pieces.lengths(corpus.head_parts(window)[:n]).sum() for n in (3, 2, 1)]
    assert [int((rows.ids != tokens.PAD).sum()) for rows in laid] == [p + 1 for p in pieces]
