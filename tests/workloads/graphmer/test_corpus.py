"""Windows, triples and splits of a small tree."""

import itertools

import pytest

from lib.errors import BadInput
from workloads.graphmer.corpus import split_files


def words_of(corpus, ids):
    return [corpus.word_list[i] for i in ids]


def test_no_file_stands_in_two_splits(graphmer):
    corpus = graphmer().data.corpus
    files = {}
    for triple in graphmer().data.graph.triples:
        files.setdefault(triple.head, triple.file)
    splits = ("train", "validation", "test")
    by_split = [{files[corpus.entities[corpus.head[w]]] for w in corpus.windows_of(s)} for s in splits]
    assert all(by_split) and not any(a & b for a, b in itertools.combinations(by_split, 2))


def test_every_triple_stands_once_and_in_a_window_with_its_line(graphmer):
    task = graphmer()
    corpus = task.data.corpus
    seen = set()
    for index in range(len(corpus.relation)):
        window = corpus.window_of[index]
        head, tail = corpus.entities[corpus.head[window]], corpus.entities[corpus.tail[index]]
        seen.add((head, corpus.relations[corpus.relation[index]], tail))
        if corpus.relations[corpus.relation[index]] == "calls":
            assert corpus.word_list[corpus.name[corpus.tail[index]]] in words_of(corpus, corpus.window_text(window))
    assert seen == {t.key for t in task.data.graph.triples} and len(seen) == len(corpus.relation)


def test_windows_stay_within_the_roots(graphmer):
    corpus = graphmer().data.corpus
    for window in range(len(corpus)):
        assert corpus.pieces.lengths(corpus.window_text(window)).sum() < 24


def test_too_few_files_for_three_splits_is_said(graphmer, tmp_path):
    lone = tmp_path / "lone"
    lone.mkdir()
    (lone / "one.py").write_text("def f():\n    g()\n")
    with pytest.raises(BadInput, match=r"No triple is left for the \w+ split: the data comes from 1 files"):
        graphmer({"data.dir": str(lone)}).data.corpus  # noqa: B018


def test_a_file_stays_in_its_split_when_others_come():
    files = [f"{n}.py" for n in range(1000)]
    splits = split_files(files, 0.1, 0.2)
    assert split_files(files[::7], 0.1, 0.2) == {file: splits[file] for file in files[::7]}
    counts = [list(splits.values()).count(split) for split in range(3)]
    assert counts == pytest.approx([700, 100, 200], abs=40)


def test_entities_have_their_type_and_file_and_windows_the_file_of_their_triples(graphmer):
    task = graphmer()
    corpus, graph = task.data.corpus, task.data.graph
    for index, name in enumerate(corpus.entities):
        entity = graph.entities[name]
        assert corpus.types[corpus.entity_type[index]] == entity.type
        file = corpus.entity_file[index]
        assert (corpus.files[file] if file >= 0 else "") == entity.file
    files = {triple.key: triple.file for triple in graph.triples}
    for triple, window in enumerate(corpus.window_of):
        names = corpus.entities[corpus.head[window]], corpus.relations[corpus.relation[triple]]
        assert corpus.files[corpus.window_file[window]] == files[*names, corpus.entities[corpus.tail[triple]]]
