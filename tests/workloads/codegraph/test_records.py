"""Graphs in JSON lines: what is read back, and what is said of bad lines."""

import json

import pytest

from lib.errors import BadInput
from tests.workloads.codegraph.files import GOOD, STANDARD_LIBRARY, given
from workloads.codegraph import graph, records

BAD_LINES = {
    "not json": "malformed JSON",
    '{"head": NaN}': "NaN is not JSON",
    "[1]": "no JSON object",
    "": "empty",
    GOOD.replace('"tail": "b", ', ""): '"tail" is missing',
    GOOD.replace('"b"', "3"): '"tail" is 3',
    GOOD.replace('"tail"', '"head"'): 'the key "head" stands there more than once',
    GOOD.replace('"m"}', '"m", "line": true}'): '"line" is True',
    GOOD.replace('"file": "f", ', ""): '"file" is missing',
    GOOD.replace('"b"', '"\\ud800"'): "surrogates not allowed",
}


def test_what_is_written_is_read_back(tmp_path):
    built = graph.build(STANDARD_LIBRARY / "json")
    records.write(built, tmp_path)
    back = records.read(tmp_path)
    assert back.triples == built.triples and back.entities == built.entities
    assert records.read(tmp_path / "triples.jsonl").triples == built.triples
    first = json.loads((tmp_path / "triples.jsonl").read_text().splitlines()[0])
    assert list(first) == ["head", "relation", "tail", "qualifiers"]
    assert list(first["qualifiers"]) == ["language", "file", "module", "line"]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items())
def test_every_kind_of_bad_line_is_named_with_its_number(tmp_path, line, reason):
    with pytest.raises(BadInput) as caught:
        records.read(given(tmp_path, GOOD, line, GOOD))
    assert "x.jsonl:2: " in str(caught.value) and reason in str(caught.value)
    read = records.read(tmp_path, bad_input_limit=1)
    assert len(read.triples) == 1 and read.duplicates == 1 and len(read.skipped) == 1


def test_all_bad_lines_are_counted_and_the_first_ten_named(tmp_path):
    (given(tmp_path, *["{"] * 13) / "x.jsonl").open("ab").write(b"\xff\n")
    with pytest.raises(BadInput, match=r"Bad lines: 14; workload.bad_input_limit allows 3") as caught:
        records.read(tmp_path, bad_input_limit=3)
    assert "x.jsonl:10" in str(caught.value) and "x.jsonl:11" not in str(caught.value)
    assert "and 4 more" in str(caught.value)


def test_bytes_that_are_not_utf8_and_two_types_of_one_entity_are_bad_lines(tmp_path):
    given(tmp_path, GOOD, entities=('{"id": "a", "type": "T"}', '{"id": "a", "type": "U"}'))
    (tmp_path / "x.jsonl").write_bytes(GOOD.encode() + b"\n\xff\n")
    with pytest.raises(BadInput) as caught:
        records.read(tmp_path)
    assert "x.jsonl:2: byte 1 is not UTF-8" in str(caught.value)
    assert "x.entities.jsonl:2: 'a' is a U here and a T at x.entities.jsonl:1" in str(caught.value)


def test_missing_and_empty_files_of_triples_say_so(tmp_path):
    with pytest.raises(BadInput, match="holds no file of triples"):
        records.read(tmp_path)
    (tmp_path / "x.jsonl").write_text("")
    with pytest.raises(BadInput, match=r"no x\.entities\.jsonl beside it"):
        records.read(tmp_path)
    (tmp_path / "x.entities.jsonl").write_text('{"id": "a", "type": "T"}\n')
    with pytest.raises(BadInput, match="is empty"):
        records.read(tmp_path)
    with pytest.raises(BadInput, match="There is no graph"):
        records.read(tmp_path / "nowhere")
