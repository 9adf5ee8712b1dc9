"""Samples as tensors: what is hidden, who competes, and what must never be shown."""

import numpy as np
import torch

from tests.workloads.graphmer.conftest import generator
from workloads.graphmer import tokens
from workloads.graphmer.counts import FULL_TEXT, MASKED, NAME_ONLY
from workloads.graphmer.model import IMPOSSIBLE
from workloads.graphmer.tokens import IGNORE


def queries(task, condition):
    return [q for q in task.datasets()["test"].queries if q.condition == condition]


def names_in(task, roots):
    """The words whose whole sequence of pieces stands in the roots of a sample."""
    corpus = task.data.corpus
    visible, found = roots.tolist(), set()
    for word in range(len(corpus.word_list)):
        pieces = corpus.pieces.expand(np.array([word]))[0].tolist()
        if any(visible[i : i + len(pieces)] == pieces for i in range(len(visible))):
            found.add(corpus.word_list[word])
    return found


def test_masked_queries_show_the_tail_nowhere(graphmer):
    task = graphmer()
    for query in queries(task, "masked")[::6]:
        batch = task.collate([query], generator())
        name = task.data.corpus.word_list[task.data.corpus.name[task.data.corpus.tail[query.triple]]]
        assert name not in names_in(task, batch["roots"][0])


def test_name_only_queries_have_no_text(graphmer):
    task = graphmer()
    for query in queries(task, "name_only")[::3]:
        roots = task.collate([query], generator())["roots"][0].tolist()
        assert roots.index(tokens.SEP) == sum(r != tokens.PAD for r in roots) - 1


def test_training_draws_are_afresh_and_repeat_with_the_generator(graphmer):
    task = graphmer()
    first, same, other = (task.collate(list(range(6)), generator(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[k], same[k]) for k in first)
    assert first["chance"].shape != other["chance"].shape or not torch.equal(first["chance"], other["chance"])


def test_training_never_shows_a_name_that_it_hides(graphmer):
    task = graphmer({"workload.objective.masked_ratio": 1.0})
    corpus, checked = task.data.corpus, 0
    for index in range(0, len(task.data.samples.windows), 3):
        batch = task.collate([index], generator(index))
        for group in range(batch["relation"].shape[1]):
            if batch["condition"][0, group] == MASKED and batch["gold"][0, group] != IGNORE:
                name = corpus.word_list[batch["name"][0, batch["gold"][0, group]]]
                assert name not in names_in(task, batch["roots"][0])
                checked += 1
    assert checked > 5


def test_all_facts_of_a_sample_are_asked_in_time_and_a_few_at_once(graphmer):
    task = graphmer({"workload.objective.masked_ratio": 0.5})
    samples, corpus = task.data.samples, task.data.corpus
    sizes = np.diff(samples.begin)
    index = int(sizes.argmax())
    facts = samples.facts[samples.begin[index] : samples.begin[index + 1]]
    wanted = set(zip(corpus.relation[facts].tolist(), corpus.tail[facts].tolist(), strict=True))
    assert len(wanted) > 3
    asked, conditions = set(), set()
    for seed in range(30):
        drawn = task.data.collator.draw([index], generator(seed))
        now = set(zip(drawn.asked.relation.tolist(), drawn.tail.tolist(), strict=True))
        assert len(drawn.tail) == len(now) == 3
        asked |= now
        conditions |= set(drawn.asked.condition.tolist())
    assert asked == wanted and (conditions in ({FULL_TEXT, MASKED}, {NAME_ONLY}))


def test_each_fact_that_no_rule_answers_is_in_one_sample_with_the_text_of_its_head_or_without(graphmer):
    for ratio in (0.0, 0.4, 1.0):
        task = graphmer({"workload.objective.name_only_ratio": ratio})
        corpus, structural, samples = task.data.corpus, task.data.structural, task.data.samples
        triples = corpus.triples_of("train")
        triples = triples[~structural[corpus.relation[triples]]]
        assert sorted(samples.facts.tolist()) == triples.tolist()
        heads = np.unique(corpus.head[corpus.window_of[triples]])
        without = [
            samples.facts[samples.begin[i] : samples.begin[i + 1]] for i in range(len(samples.windows), len(samples))
        ]
        found = [np.unique(corpus.head[corpus.window_of[facts]]) for facts in without]
        assert all(len(head) == 1 for head in found) and len(found) == round(ratio * len(heads))
        assert not np.isin(corpus.head[samples.windows], np.concatenate([*found, [-1]])).any()


def test_the_right_tails_compete_and_other_true_ones_do_not(graphmer):
    task = graphmer()
    corpus = task.data.corpus
    drawn = task.data.collator.draw(list(range(20)), generator())
    batch = task.collate(list(range(20)), generator())
    assert len(drawn.among) <= 60
    assert drawn.among.entities[drawn.gold].tolist() == drawn.tail.tolist()
    true = {}
    for triple, window in enumerate(corpus.window_of):
        true.setdefault((corpus.head[window], corpus.relation[triple]), set()).add(int(corpus.tail[triple]))
    checked = 0
    for question in range(len(drawn.tail)):
        place = drawn.row[question], drawn.slot[question]
        key = corpus.head[drawn.asked.window[question]], drawn.asked.relation[question]
        for other in true[key] - {int(drawn.tail[question])}:
            if (column := drawn.among.place[other]) >= 0:
                assert batch["prior"][*place, column] == IMPOSSIBLE
                checked += 1
        assert batch["prior"][*place, drawn.gold[question]] > IMPOSSIBLE / 2
    assert checked > 3


def test_the_own_file_says_which_tails_it_has_unless_it_may_not(graphmer):
    task = graphmer()
    corpus, items = task.data.corpus, list(range(20))
    drawn, batch = task.data.collator.draw(items, generator()), task.collate(items, generator())
    train = corpus.triples_of("train")
    for question in range(0, len(drawn.tail), 5):
        file = corpus.window_file[drawn.asked.window[question]]
        same = train[
            (corpus.window_file[corpus.window_of[train]] == file)
            & (corpus.relation[train] == drawn.asked.relation[question])
        ]
        want = np.bincount(corpus.tail[same], minlength=len(corpus.entities))[drawn.among.entities]
        assert batch["own"][drawn.row[question], drawn.slot[question]].tolist() == want.tolist()
    assert batch["own"].max() > 0
    assert graphmer({"workload.objective.own_file": False}).collate(items, generator())["own"].max() == 0


def test_span_masking_hits_its_ratio_and_spares_specials(graphmer):
    task = graphmer({"workload.objective.mlm_steps": 5, "workload.objective.mlm_ratio": 0.3})
    batch = task.collate(list(range(40)), generator())
    asked = batch["root_targets"] != IGNORE
    share = asked.sum() / (batch["roots"] != tokens.PAD).sum()
    assert 0.15 < share < 0.35  # 0.3 asked for, less what falls on separators and on one another
    assert (batch["root_targets"][asked] >= len(tokens.SPECIALS)).all()
    assert torch.equal(batch["root_targets"][asked], batch["roots"][asked])
    assert (batch["masked_roots"] != batch["roots"])[asked].float().mean() > 0.5
    assert torch.equal(batch["masked_roots"][~asked], batch["roots"][~asked])
