"""Samples as tensors: how text is laid out, what is hidden, who competes, and what must never be shown."""

import numpy as np
import pytest
import torch

from tests.workloads.graphmer.conftest import batch_of, generator, pieces_of
from trainbook.supervised.samples import Item
from workloads.graphmer.counts import MASKED, NAME_ONLY, Questions
from workloads.graphmer.counts.rows import Layout
from workloads.graphmer.model import IMPOSSIBLE
from workloads.graphmer.settings import IGNORE, PAD, SEP

NOTHING = np.zeros(0, int)


def laid_out(corpus):
    """Windows of training, each with its row of at most 24 roots and its words; every third has no text."""
    windows = np.flatnonzero(corpus.split == 0)
    with_text = np.arange(len(windows)) % 3 > 0
    rows = Layout(corpus, 24).rows(windows, with_text, NOTHING, NOTHING)
    for row, window in enumerate(windows):
        text = corpus.text[corpus.window_start[window] : corpus.window_stop[window]]
        yield rows, row, window, text if with_text[row] else NOTHING


def test_a_row_is_the_heads_name_a_separator_and_the_text(shared):
    corpus = shared.data.corpus
    for rows, row, window, text in laid_out(corpus):
        head = corpus.head[window]
        parts = corpus.parts[corpus.part_offsets[head] : corpus.part_offsets[head + 1]]
        want = [*pieces_of(corpus, parts)[:3], SEP, *pieces_of(corpus, text)]
        padding = [PAD] * (rows.ids.shape[1] - len(want))
        assert rows.ids[row].tolist() == (want + padding)[:24]


def test_words_of_a_row_are_marked_by_the_words_beside_them(shared):
    corpus = shared.data.corpus
    checked = 0
    for rows, row, _, text in laid_out(corpus):
        words = [corpus.word_list[word] for word in text]
        places = np.flatnonzero(rows.word[row] >= 0)
        assert [corpus.word_list[word] for word in rows.word[row, places]] == words
        for number, place in enumerate(places):
            dotted = number > 1 and words[number - 1] == "."
            before = words[number - 2] if dotted else None
            owner = rows.owner[row, place]
            assert (corpus.word_list[owner] if owner >= 0 else None) == before
            assert rows.is_self[row, place] == (before == "self")
            assert rows.is_call[row, place] == (words[number + 1 : number + 2] == ["("])
            checked += dotted
    assert checked > 5


def names_in(corpus, roots):
    """The words whose whole sequence of pieces stands in the roots of a sample."""
    visible = roots.tolist()
    names = set()
    for word, name in enumerate(corpus.word_list):
        pieces = pieces_of(corpus, [word])
        starts = range(len(visible) - len(pieces) + 1)
        if any(visible[start : start + len(pieces)] == pieces for start in starts):
            names.add(name)
    return names


def roots_of(task, query):
    batch = task.collate([Item(query, False)], generator())
    triple = batch["triple"].numpy()
    asked = Questions.of_facts(task.data.corpus, triple, batch["condition"].numpy())
    batch, _ = task.data.collator.of_questions(asked)
    return batch["roots"][0]


def test_a_masked_question_shows_the_tail_nowhere(shared):
    corpus = shared.data.corpus
    queries = [query for query in shared.parts["test"].samples if query[1] == MASKED]
    for query in queries[::6]:
        name = corpus.name[corpus.tail[query[0]]]
        roots = roots_of(shared, query)
        assert corpus.word_list[name] not in names_in(corpus, roots)


def test_a_question_by_name_only_shows_no_text(shared):
    queries = [query for query in shared.parts["test"].samples if query[1] == NAME_ONLY]
    for query in queries[::3]:
        roots = roots_of(shared, query).tolist()
        assert roots.index(SEP) == sum(root != PAD for root in roots) - 1


def test_training_never_shows_a_name_that_it_hides(graphmer):
    task = graphmer({"workload.objective.masked_ratio": 1.0})
    corpus = task.data.corpus
    checked = 0
    for index in range(0, len(task.data.samples.windows), 3):
        batch = batch_of(task, [index], index)
        names = names_in(corpus, batch["roots"][0])
        for condition, gold in zip(batch["condition"][0], batch["gold"][0], strict=True):
            if condition == MASKED and gold != IGNORE:
                name = batch["name"][0, gold]
                assert corpus.word_list[name] not in names
                checked += 1
    assert checked > 5


def test_a_training_batch_repeats_with_the_generator(graphmer):
    task = graphmer({"workload.objective.masked_ratio": 1.0})
    first, same, other = (batch_of(task, range(6), seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[k], same[k]) for k in first)
    assert not torch.equal(first["chance"], other["chance"])


@pytest.mark.parametrize("ratio", [0.0, 0.4, 1.0])
def test_each_fact_that_no_rule_answers_is_in_one_sample(graphmer, ratio):
    """It has the text of its head, or is among all facts of a head without text."""
    task = graphmer({"workload.objective.name_only_ratio": ratio})
    corpus = task.data.corpus
    samples = task.data.samples
    triples = corpus.triples_of("train")
    is_structural = task.data.structural[corpus.relation[triples]]
    triples = triples[~is_structural]
    assert sorted(samples.facts.tolist()) == triples.tolist()
    alone = []
    for index in range(len(samples.windows), len(samples)):
        facts = samples.facts[samples.begin[index] : samples.begin[index + 1]]
        heads = np.unique(corpus.head[corpus.window_of[facts]])
        assert len(heads) == 1
        alone.append(heads[0])
    all_heads = np.unique(corpus.head[corpus.window_of[triples]])
    assert len(alone) == round(ratio * len(all_heads))
    with_text = corpus.head[samples.windows]
    assert not set(with_text.tolist()) & set(alone)


def test_the_right_tails_compete_and_other_true_ones_do_not(graphmer):
    task = graphmer()
    items = list(range(20))
    corpus = task.data.corpus
    prior = batch_of(task, items)["prior"]
    drawn = task.data.collator.draw(items, generator())
    assert len(drawn.among) <= 60
    assert drawn.among.entities[drawn.gold].tolist() == drawn.tail.tolist()
    head = corpus.head[corpus.window_of]
    checked = 0
    for question, tail in enumerate(drawn.tail):
        own = head == corpus.head[drawn.asked.window[question]]
        own &= corpus.relation == drawn.asked.relation[question]
        others = np.setdiff1d(corpus.tail[own], tail)
        columns = drawn.among.place[others]
        columns = columns[columns >= 0]
        scores = prior[drawn.row[question], drawn.slot[question]]
        assert (scores[columns] == IMPOSSIBLE).all()
        assert scores[drawn.gold[question]] > IMPOSSIBLE / 2
        checked += len(columns)
    assert checked > 3


def test_a_batch_counts_the_tails_of_the_own_file(graphmer):
    task = graphmer()
    items = list(range(20))
    corpus = task.data.corpus
    batch = batch_of(task, items)
    drawn = task.data.collator.draw(items, generator())
    train = corpus.triples_of("train")
    file = corpus.window_file[corpus.window_of[train]]
    for question, window in enumerate(drawn.asked.window):
        is_alike = corpus.relation[train] == drawn.asked.relation[question]
        same = train[(file == corpus.window_file[window]) & is_alike]
        want = np.bincount(corpus.tail[same], minlength=len(corpus.entities))
        own = batch["own"][drawn.row[question], drawn.slot[question]]
        assert own.tolist() == want[drawn.among.entities].tolist()
    assert batch["own"].max() > 0
