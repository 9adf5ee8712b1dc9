"""Graphs in JSON lines: what is read back, and the messages about bad lines."""

import dataclasses
import json

import pytest

from lib.errors import BadInput
from tests.workloads.codegraph.files import GOOD, STANDARD_LIBRARY, given
from workloads.codegraph import graph, records

BAD_LINES = {
    "not json": "it is no JSON",
    "": "it is no JSON",
    GOOD.replace('"b"', "3"): "tail is 3",
    GOOD.replace('"file": "f", ', ""): "qualifiers has no file",
    GOOD.replace('"b"', '"\\ud800"'): "surrogates not allowed",
}


def lines_of(items):
    return "".join(json.dumps(dataclasses.asdict(item)) + "\n" for item in items)


def test_a_graph_is_read_as_it_was_built_and_several_are_read_as_one(tmp_path):
    built = graph.build(STANDARD_LIBRARY / "json")
    (tmp_path / "triples.jsonl").write_text(lines_of(built.triples * 2))
    (tmp_path / "entities.jsonl").write_text(lines_of(built.entities.values()))
    assert records.read([tmp_path]) == records.read([tmp_path / "triples.jsonl"]) == built
    (tmp_path / "b").mkdir()
    assert {"json.load", "a"} <= records.read(
        [tmp_path, given(tmp_path / "b", GOOD)]
    ).entities.keys()


def test_every_kind_of_bad_line_is_named_with_its_number(tmp_path):
    for line, reason in BAD_LINES.items():
        with pytest.raises(BadInput) as refusal:
            records.read([given(tmp_path, GOOD, line, GOOD)])
        assert "x.jsonl:2: " in str(refusal.value)
        assert reason in str(refusal.value)
        graph = records.read([tmp_path], bad_input_limit=1)
        assert len(graph.triples) == 1
        assert len(graph.skipped) == 1
