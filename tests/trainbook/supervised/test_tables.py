"""Users' tables in every ending, and sentences on files and columns that cannot be used."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from lib.errors import BadInput
from trainbook.supervised.tables import find_files, read_table

COLUMNS = {"text": "Text", "label": "label"}
FORMS = {
    "a.csv": '\ufeffx,Text,label\r\n1,"one, \n two",3\r\n2,NA,\r\n',
    "b.csv": "label;Text\n3;one, two\n;NA\n",
    "c.tsv": "label\tText\n3\tone, two\n\tNA\n",
    "d.json": json.dumps([{"Text": "one, two", "label": 3}, {"Text": "NA"}]),
    "e.json": json.dumps({"Text": ["one, two", "NA"], "label": [3, None]}),
    "f.jsonl": '{"Text": "one, two", "label": 3}\n\n{"Text": "NA", "label": null}\n',
}


def written(folder, name, content):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def test_every_ending_gives_the_same_texts(tmp_path):
    for name, content in FORMS.items():
        table = read_table(written(tmp_path, name, content), name, COLUMNS)
        assert table.to_dict("records") == [
            {"text": "one, two", "label": "3"},
            {"text": "NA", "label": ""},
        ], name
    for name, content in (
        ("a.csv", "one|3\n"),
        ("b.json", '[["one", 3]]'),
    ):  # without a head: columns by number
        columns = {"text": "0", "label": "1", "kind": "kind"}
        table = read_table(written(tmp_path, name, content), name, columns, ["kind"])
        assert table.to_dict("records") == [{"text": "one", "label": "3", "kind": ""}]


def test_what_is_no_such_table_is_refused(tmp_path):
    for name, content, sentence in (
        ("a.csv", "Txt,label\n", "no column Text; its columns are Txt, label. .*columns.text"),
        ("a.csv", "Text,label\na,b\na,b,c\n", "a.csv:3: 3 cells instead of 2 .Text, label"),
        ("a.jsonl", '{"Text": "a"}\n{\n', "a.jsonl:2: it is no JSON"),
        ("a.json", "[" * 100_000, "a.json:1: it is no JSON that can be read"),
        ("a.parquet", b"PAR1", "a.parquet cannot be read as parquet"),
        ("a.json", '[{"Text": ["a"], "label": 1}]', "the column Text holds lists or objects. Flatten"),
        ("a.csv", b"Text,label\ncaf\xe9,1\n", "a.csv:2: Byte 0xe9 is not UTF-8. In Windows-1252 .*café,1.. Save"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=sentence):
            read_table(written(tmp_path, name, content), name, COLUMNS)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(some.lists(some.text(), min_size=1, max_size=5))
def test_any_text_of_json_becomes_text_that_a_file_holds(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("any") / "a.json"
    path.write_text(json.dumps([{"Text": text, "label": 1} for text in [*texts, "\ud83d"]]))
    cells = read_table(path, "a.json", COLUMNS)["text"].tolist()
    assert len(cells) == len(texts) + 1
    assert all(cell == " ".join(cell.encode().decode().split()) for cell in cells)


def test_files_are_those_that_match_and_are_not_hidden(tmp_path):
    for name in ("a.csv", "deep/b.csv", "._a.csv", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(find_files(tmp_path, "**/*.csv")) == ["a.csv", "deep/b.csv"]
    assert list(find_files(tmp_path / "c.txt", "*.csv")) == ["c.txt"]
    with pytest.raises(BadInput, match="No file below .* matches workload.source.files, /x"):
        find_files(tmp_path, "/x")
