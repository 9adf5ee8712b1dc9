"""Graphs as JSON lines."""

import json
import os

import pytest

from tests.hostile.conftest import FORGED
from workloads.codegraph import records
from workloads.codegraph.records import _MOST_BYTES

PLACE = {"language": "python", "file": "a.py", "module": "a", "line": 1}
GOOD = {"head": "a", "relation": "calls", "tail": "b", "qualifiers": PLACE}


def line(**values):
    return json.dumps({**GOOD, **values}).encode()


ENTITIES = b'{"id": "a", "type": "Function"}\n{"id": "b", "type": "Function"}\n'


def write(folder, *lines, entities=ENTITIES):
    content = b"\n".join([line(), *lines, line(tail="c"), b""])
    (folder / "triples.jsonl").write_bytes(content)
    (folder / "entities.jsonl").write_bytes(entities)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b'{"head": "a"', id="half an object"),
        pytest.param(b"[" * 200_000, id="200,000 brackets"),
        pytest.param(b'{"head": "\xff"}', id="no UTF-8"),
        pytest.param(line(head=f"a\n{FORGED}"), id="a newline in a name"),
        pytest.param(line(qualifiers=None), id="no qualifiers"),
        pytest.param(b'{"head": "' + b"a" * (2 * _MOST_BYTES) + b'"}', id="2 MB"),
    ],
)
def test_a_hostile_line_is_named_and_can_be_left_out(nothing_outside, bad):
    write(nothing_outside.folder, bad)
    told = nothing_outside.attempt(records.read, [nothing_outside.folder])
    assert "Bad lines: 1;" in told
    assert "triples.jsonl:2: " in told
    assert len(told) < 2_000
    read = []
    nothing_outside.attempt(lambda: read.append(records.read([nothing_outside.folder], 1)))
    assert len(read[0].triples) == 2
    assert len(read[0].skipped) == 1


def test_a_hostile_entity_is_named(nothing_outside):
    bad = b'{"id": "a", "type": "Function"}\n{"id": "a\\nb", "type": "F"}\n'
    write(nothing_outside.folder, entities=bad)
    assert "entities.jsonl:2: " in nothing_outside.attempt(records.read, [nothing_outside.folder])


def test_a_line_of_64_mb_is_refused_by_name(nothing_outside):
    write(nothing_outside.folder)
    os.truncate(nothing_outside.folder / "triples.jsonl", 0)
    os.truncate(nothing_outside.folder / "triples.jsonl", 64_000_000)
    told = nothing_outside.attempt(records.read, [nothing_outside.folder], weighed=True)
    assert "triples.jsonl:1: this line has more than 1,048,576 bytes" in told
