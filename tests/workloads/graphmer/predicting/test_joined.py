"""A new tree beside the corpus of training."""

import dataclasses

import numpy as np
import pytest

from tests.workloads.graphmer.conftest import pieces_of, words_of
from tests.workloads.graphmer.predicting.conftest import joined_with, tree_of


def facts(corpus, triples):
    return {
        (
            corpus.entities[corpus.head[window]],
            corpus.relations[corpus.relation[triple]],
            corpus.entities[corpus.tail[triple]],
            corpus.types[corpus.entity_type[corpus.tail[triple]]],
            " ".join(words_of(corpus, window)),
        )
        for triple, window in zip(triples, corpus.window_of[triples], strict=True)
    }


def test_facts_and_texts_of_both_are_in_the_joined_corpus(fitted, new_tree):
    task, trained = fitted[0], fitted[0].data.corpus
    tree = tree_of(task, new_tree)
    joined = joined_with(task, tree)
    corpus = joined.data.corpus
    known = {fact for fact in facts(tree, np.arange(len(tree.relation))) if fact[1] != "catches"}  # never in training
    assert facts(corpus, joined.triples) == known and "catches" not in trained.relations
    own = np.arange(len(trained.relation))
    assert facts(corpus, own) == facts(trained, own) and len(corpus) == len(trained) + len(tree)
    inside = {corpus.entities[number] for number in np.flatnonzero(joined.in_tree)}
    assert {"shop.doors.Door", "shop.main.visit", "file::shop/main.py"} <= inside
    assert not inside & set(trained.entities) and not any(name.startswith("builtins.") for name in inside)
    assert corpus.files[corpus.window_file[-1]].startswith("tree/")


def test_tables_of_training_stay_and_what_is_new_has_no_vector_of_its_own(fitted, new_tree):
    task = fitted[0]
    tree = tree_of(task, new_tree)
    data = joined_with(task, tree).data
    number = len(task.data.corpus.entities)
    assert np.array_equal(data.table.vector[:number], task.data.table.vector) and not data.table.vector[number:].any()
    kinds = task.data.collator.layout.kind_before
    assert np.array_equal(data.collator.layout.kind_before[: len(kinds)], kinds)
    old, new = (d.table.of(np.arange(number))["pieces"] for d in (task.data, data))
    assert np.array_equal(old, new)
    for word in ("open_slowly", "return", "door"):
        corpora = [c for c in (data.corpus, task.data.corpus, tree) if c.word_index(word) >= 0]
        pieces = [pieces_of(corpus, [corpus.word_index(word)]) for corpus in corpora]
        assert len(pieces) > 1 and all(part == pieces[0] for part in pieces) and max(pieces[0]) < 400


def test_a_module_that_training_had_counts_as_the_tree_has_it_now(fitted, tmp_path):
    """A tree that was trained on is not asked with its own answers."""
    task, trained = fitted[0], fitted[0].data.corpus
    train = next(f for f in trained.files if f.startswith("house") and trained.split[_window(trained, f)] == 0)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / train).write_text("def fresh():\n    return len('a')\n")
    joined = joined_with(task, tree_of(task, tmp_path / "again"))
    corpus = joined.data.corpus
    own = np.flatnonzero(corpus.window_file == trained.files.index(train))
    assert len(own) and not np.isin(own, corpus.windows_of("train")).any()
    assert np.isin(joined.triples, corpus.triples_of("train")).all()
    module = train.removesuffix(".py")
    gone = corpus.entities.index(f"{module}.House{module.removeprefix('house')}")
    assert corpus.entity_file[gone] == -1 and corpus.entity_file[corpus.entities.index(f"{module}.fresh")] >= 0


def _window(corpus, file):
    return int(np.flatnonzero(corpus.window_file == corpus.files.index(file))[0])


def test_what_training_never_saw_a_relation_or_type_of_is_left_out(fitted, new_tree):
    task = fitted[0]
    tree = tree_of(task, new_tree)
    relations = np.frombuffer("\n".join(f"odd_{r}" if r == "raises" else r for r in tree.relations).encode(), np.uint8)
    types = np.frombuffer("\n".join("Odd" if t == "Class" else t for t in tree.types).encode(), np.uint8)
    odd = dataclasses.replace(tree, relation_names=relations, type_names=types)
    joined = joined_with(task, odd)
    got = facts(joined.data.corpus, joined.triples)
    want = {f for f in facts(odd, np.arange(len(odd.relation))) if f[1] not in ("odd_raises", "catches")}
    want = {f for f in want if f[3] != "Odd" and f[0] not in ("shop.doors.Door", "shop.doors.Gate", "shop.main.Room")}
    assert got == want and "shop.doors.Door" not in joined.data.corpus.entities
    with pytest.raises(ValueError):
        joined.data.corpus.relations.index("odd_raises")
