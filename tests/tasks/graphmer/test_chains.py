"""Samples as tensors: what is masked, and what must never be shown."""

import numpy as np
import torch

from lib.tasks.graphmer import tokens
from lib.tasks.graphmer.chains import Query
from lib.tasks.graphmer.tokens import IGNORE
from tests.tasks.graphmer.conftest import generator


def queries(task, condition):
    return [q for q in task.datasets()["test"] if q.condition == condition]


def names_in(task, batch, row):
    """The words whose whole sequence of pieces stands in the visible roots and leaves of a sample."""
    corpus = task.data.corpus
    visible = [*batch["roots"][row].tolist(), *batch["leaves"][row].flatten().tolist()]
    found = set()
    for word in range(len(corpus.word_list)):
        pieces = corpus.pieces.expand(np.array([word]))[0].tolist()
        if any(visible[i : i + len(pieces)] == pieces for i in range(len(visible))):
            found.add(corpus.word_list[word])
    return found


def test_masked_queries_show_the_tail_nowhere(graphmer):
    task = graphmer()
    for query in queries(task, "masked"):
        batch = task.collate([query], generator())
        name = task.data.corpus.word_list[task.data.corpus.name[task.data.corpus.tail[query.triple]]]
        assert name not in names_in(task, batch, 0)
        assert (batch["leaves"] == tokens.MASK).all(), "the tail's length must not be told"


def test_masked_leaves_hang_where_the_name_was_and_others_on_the_heads_name(graphmer):
    task = graphmer()
    calls = task.data.corpus.relations.index("calls")
    query = next(q for q in queries(task, "masked") if task.data.corpus.relation[q.triple] == calls)
    batch = task.collate([query], generator())
    places = (batch["roots"][0] == tokens.NAME).nonzero().flatten().tolist()
    assert places and batch["span"][0, 0].nonzero().flatten().tolist() == places
    batch = task.collate([Query(query.triple, "full_text")], generator())
    assert batch["span"][0, 0].nonzero().flatten().tolist()[0] == 0
    assert (batch["roots"] != tokens.NAME).all()


def test_name_only_queries_have_no_text(graphmer):
    task = graphmer()
    for query in queries(task, "name_only"):
        roots = task.collate([query], generator())["roots"][0].tolist()
        assert roots.index(tokens.SEP) == sum(r != tokens.PAD for r in roots) - 1


def test_training_masks_are_drawn_afresh_and_repeat_with_the_generator(graphmer):
    task = graphmer()
    windows = [task.datasets()["train"][i] for i in range(6)]
    first, same, other = (task.collate(windows, generator(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[k], same[k]) for k in first)
    assert not torch.equal(first["root_targets"], other["root_targets"])


def test_training_never_shows_a_name_that_it_hides(graphmer):
    task = graphmer({"workload.objective.mlm_ratio": 0.0, "workload.objective.name_only_ratio": 0.0})
    corpus, checked = task.data.corpus, 0
    for index, window in enumerate(task.datasets()["train"]):
        batch = task.collate([window], generator(index))
        for group in range(batch["relation"].shape[1]):
            hangs_on = batch["roots"][0][batch["span"][0, group]]
            if (hangs_on == tokens.NAME).all():
                target = [p for p in batch["leaf_targets"][0, group].tolist() if p != IGNORE]
                assert target, "a triple with a hidden name must be asked for"
                rows = (corpus.leaves[corpus.tail][:, : len(target)] == target).all(1)
                names = {corpus.word_list[corpus.name[t]] for t in corpus.tail[rows]}
                assert not names & names_in(task, batch, 0)
                checked += 1
    assert checked > 5


def test_masked_leaves_are_whole_and_visible_ones_are_never_targets(graphmer):
    task = graphmer()
    batch = task.collate([task.datasets()["train"][i] for i in range(20)], generator())
    asked = (batch["leaf_targets"] != IGNORE).any(-1)
    assert asked.any() and not asked.all()
    assert (batch["leaves"][asked] == tokens.MASK).all()
    assert (batch["leaves"][~asked] != tokens.MASK).all()


def test_span_masking_hits_its_ratio_and_spares_specials(graphmer):
    task = graphmer({"workload.objective.name_mask_ratio": 0.0, "workload.objective.name_only_ratio": 0.0})
    batch = task.collate([task.datasets()["train"][i] for i in range(40)], generator())
    asked = batch["root_targets"] != IGNORE
    share = asked.sum() / (batch["roots"] != tokens.PAD).sum()
    assert 0.15 < share < 0.35  # 0.3 asked for, less what falls on separators and on one another
    assert (batch["root_targets"][asked] >= len(tokens.SPECIALS)).all()


def test_a_share_of_structural_windows_is_trained_on_and_all_others(graphmer):
    sizes = [len(graphmer({"workload.objective.structural_ratio": r}).datasets()["train"]) for r in (0.0, 0.5, 1.0)]
    task = graphmer()
    corpus, structural = task.data.corpus, task.data.structural
    mixed = {w for t, w in enumerate(corpus.window_of) if not structural[corpus.relation[t]]}
    train = set(corpus.windows_of("train"))
    only = len(train - mixed)
    assert only > 1 and sizes == [len(train & mixed), len(train & mixed) + round(only / 2), len(train)]
