"""Graphs in JSON lines: what is read back, and the messages about bad lines."""

import json

import pytest

from lib.errors import BadInput
from tests.workloads.codegraph.files import GOOD, STANDARD_LIBRARY, given, tree
from workloads.codegraph import graph, records

BAD_LINES = {
    "not json": "it is no JSON",
    "": "it is no JSON",
    GOOD.replace('"b"', "3"): "tail is 3",
    GOOD.replace('"file": "f", ', ""): "qualifiers has no file",
    GOOD.replace('"b"', '"\\ud800"'): "surrogates not allowed",
}


def test_a_graph_is_read_back_and_several_are_read_as_one(tmp_path):
    built = graph.build(STANDARD_LIBRARY / "json")
    records.write(built, tmp_path / "a")
    again = records.read(tmp_path / "a")
    assert again.triples == built.triples and again.entities == built.entities
    assert records.read(tmp_path / "a" / "triples.jsonl").triples == built.triples
    first = json.loads((tmp_path / "a" / "triples.jsonl").read_text().splitlines()[0])
    assert list(first) == ["head", "relation", "tail", "qualifiers"]
    assert list(first["qualifiers"]) == ["language", "file", "module", "line"]
    records.write(graph.build(tree(tmp_path / "tree", b="def f(): pass")), tmp_path / "b")
    assert {"json.load", "b.f"} <= records.read([tmp_path / "a", tmp_path / "b"]).entities.keys()


def test_every_kind_of_bad_line_is_named_with_its_number(tmp_path):
    for line, reason in BAD_LINES.items():
        with pytest.raises(BadInput) as refusal:
            records.read(given(tmp_path, GOOD, line, GOOD))
        assert "x.jsonl:2: " in str(refusal.value) and reason in str(refusal.value)
        graph = records.read(tmp_path, bad_input_limit=1)
        assert len(graph.triples) == 1 and len(graph.skipped) == 1
