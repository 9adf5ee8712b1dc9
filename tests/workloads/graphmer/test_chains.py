"""Samples as tensors: how text is laid out, what is hidden, who competes, and what must never be shown."""

import numpy as np
import torch

from tests.workloads.graphmer.conftest import batch_of, generator, pieces_of
from trainbook.supervised.samples import Item
from workloads.graphmer.counts import MASKED, NAME_ONLY, Questions
from workloads.graphmer.counts.rows import Layout
from workloads.graphmer.model import IMPOSSIBLE
from workloads.graphmer.settings import IGNORE, PAD, SEP

NOTHING = np.zeros(0, int)


def test_a_row_is_the_heads_name_a_separator_and_the_text_with_marks(shared):
    corpus = shared.data.corpus
    windows = np.flatnonzero(corpus.split == 0)
    with_text = np.arange(len(windows)) % 3 > 0
    rows = Layout(corpus, 24).rows(windows, with_text, NOTHING, NOTHING)
    checked = 0
    for row, window in enumerate(windows):
        head = corpus.parts[
            corpus.part_offsets[corpus.head[window]] : corpus.part_offsets[corpus.head[window] + 1]
        ]
        if with_text[row]:
            own = corpus.text[corpus.window_start[window] : corpus.window_stop[window]]
        else:
            own = NOTHING
        want = [*pieces_of(corpus, head)[:3], SEP, *pieces_of(corpus, own)]
        assert rows.ids[row].tolist() == (want + [PAD] * (rows.ids.shape[1] - len(want)))[:24]
        words = [corpus.word_list[w] for w in own]
        places = np.flatnonzero(rows.word[row] >= 0)
        assert [corpus.word_list[w] for w in rows.word[row, places]] == words
        for number, place in enumerate(places):
            dotted = number > 1 and words[number - 1] == "."
            owner = rows.owner[row, place]
            assert (corpus.word_list[owner] if owner >= 0 else None) == (
                words[number - 2] if dotted else None
            )
            assert rows.is_self[row, place] == (dotted and words[number - 2] == "self")
            assert rows.is_call[row, place] == (words[number + 1 : number + 2] == ["("])
            checked += dotted
    assert checked > 5


def names_in(corpus, roots):
    """The words whose whole sequence of pieces stands in the roots of a sample."""
    visible = roots.tolist()
    names = set()
    for word, name in enumerate(corpus.word_list):
        pieces = pieces_of(corpus, [word])
        if any(visible[i : i + len(pieces)] == pieces for i in range(len(visible))):
            names.add(name)
    return names


def test_questions_show_a_hidden_tail_nowhere_and_no_text_without_one(shared):
    corpus = shared.data.corpus
    queries = shared.parts["test"].samples

    def roots_of(query):
        batch = shared.collate([Item(query, False)], generator())
        asked = Questions.of_facts(corpus, batch["triple"].numpy(), batch["condition"].numpy())
        return shared.data.collator.of_questions(asked)[0]["roots"][0]

    for query in [q for q in queries if q[1] == MASKED][::6]:
        roots = roots_of(query)
        assert corpus.word_list[corpus.name[corpus.tail[query[0]]]] not in names_in(corpus, roots)
    for query in [q for q in queries if q[1] == NAME_ONLY][::3]:
        roots = roots_of(query).tolist()
        assert roots.index(SEP) == sum(r != PAD for r in roots) - 1


def test_training_never_shows_a_name_that_it_hides_and_repeats_with_the_generator(graphmer):
    task = graphmer({"workload.objective.masked_ratio": 1.0})
    corpus = task.data.corpus
    checked = 0
    for index in range(0, len(task.data.samples.windows), 3):
        batch = batch_of(task, [index], index)
        for group in range(batch["relation"].shape[1]):
            if batch["condition"][0, group] == MASKED and batch["gold"][0, group] != IGNORE:
                name = corpus.word_list[batch["name"][0, batch["gold"][0, group]]]
                assert name not in names_in(corpus, batch["roots"][0])
                checked += 1
    assert checked > 5
    first, same, other = (batch_of(task, range(6), seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[k], same[k]) for k in first)
    assert first["chance"].shape != other["chance"].shape or not torch.equal(
        first["chance"], other["chance"]
    )


def test_each_fact_that_no_rule_answers_is_in_one_sample_with_the_text_of_its_head_or_without(
    graphmer,
):
    for ratio in (0.0, 0.4, 1.0):
        task = graphmer({"workload.objective.name_only_ratio": ratio})
        corpus = task.data.corpus
        structural = task.data.structural
        samples = task.data.samples
        triples = corpus.triples_of("train")
        triples = triples[~structural[corpus.relation[triples]]]
        assert sorted(samples.facts.tolist()) == triples.tolist()
        heads = np.unique(corpus.head[corpus.window_of[triples]])
        first = len(samples.windows)
        without = [
            samples.facts[samples.begin[i] : samples.begin[i + 1]]
            for i in range(first, len(samples))
        ]
        of_samples = [np.unique(corpus.head[corpus.window_of[facts]]) for facts in without]
        assert all(len(head) == 1 for head in of_samples)
        assert len(of_samples) == round(ratio * len(heads))
        assert not np.isin(corpus.head[samples.windows], np.concatenate([*of_samples, [-1]])).any()


def test_the_right_tails_compete_other_true_ones_do_not_and_the_own_file_is_told(graphmer):
    task = graphmer()
    items = list(range(20))
    corpus = task.data.corpus
    batch = batch_of(task, items)
    drawn = task.data.collator.draw(items, generator())
    assert len(drawn.among) <= 60
    assert drawn.among.entities[drawn.gold].tolist() == drawn.tail.tolist()
    true = {}
    for triple, window in enumerate(corpus.window_of):
        true.setdefault((corpus.head[window], corpus.relation[triple]), set()).add(
            int(corpus.tail[triple])
        )
    train = corpus.triples_of("train")
    checked = 0
    files = corpus.window_file[corpus.window_of[train]]
    for question, tail in enumerate(drawn.tail):
        place = drawn.row[question], drawn.slot[question]
        window = drawn.asked.window[question]
        relation = drawn.asked.relation[question]
        columns = [
            drawn.among.place[other] for other in true[corpus.head[window], relation] - {int(tail)}
        ]
        assert all(
            batch["prior"][*place, column] == IMPOSSIBLE for column in columns if column >= 0
        )
        checked += sum(column >= 0 for column in columns)
        assert batch["prior"][*place, drawn.gold[question]] > IMPOSSIBLE / 2
        same = train[(files == corpus.window_file[window]) & (corpus.relation[train] == relation)]
        want = np.bincount(corpus.tail[same], minlength=len(corpus.entities))[drawn.among.entities]
        assert batch["own"][place].tolist() == want.tolist()
    assert checked > 3
    assert batch["own"].max() > 0
