"""Users' tables in every ending, and sentences on files and columns that cannot be used."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from lib.errors import BadInput
from trainbook.supervised.tables import find_files, read_table

COLUMNS = {"text": "Text", "label": "label"}


def written(folder, name, content):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", '\ufeffx,Text,label\r\n1,"one, \n two",3\r\n2,NA,\r\n'),
        ("b.csv", "label;Text\n3;one, two\n;NA\n"),
        ("c.tsv", "label\tText\n3\tone, two\n\tNA\n"),
        ("d.json", json.dumps([{"Text": "one, two", "label": 3}, {"Text": "NA"}])),
        ("e.json", json.dumps({"Text": ["one, two", "NA"], "label": [3, None]})),
        ("f.jsonl", '{"Text": "one, two", "label": 3}\n\n{"Text": "NA", "label": null}\n'),
    ],
)
def test_every_ending_gives_the_same_texts(tmp_path, name, content):
    table = read_table(written(tmp_path, name, content), name, COLUMNS)
    assert table.text.to_list() == ["one, two", "NA"]
    assert table.label.to_list() == ["3", ""]


@pytest.mark.parametrize(("name", "content"), [("a.csv", "one|3\n"), ("b.json", '[["one", 3]]')])
def test_columns_without_a_head_have_numbers(tmp_path, name, content):
    columns = {"text": "0", "label": "1", "kind": "kind"}
    table = read_table(written(tmp_path, name, content), name, columns, ["kind"])
    assert table.to_dict("records") == [{"text": "one", "label": "3", "kind": ""}]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "Txt,label\n", "no column Text; its columns are Txt, label. .*columns.text"),
        ("a.csv", "Text,label\na,b\na,b,c\n", "a.csv:3: 3 cells instead of 2 .Text, label"),
        ("a.jsonl", '{"Text": "a"}\n{\n', "a.jsonl:2: it is no JSON"),
        ("a.json", "[" * 100_000, "a.json:1: it is no JSON that can be read"),
        ("a.parquet", b"PAR1", "a.parquet cannot be read as parquet"),
        ("a.json", '[{"Text": ["a"], "label": 1}]', "column Text holds lists or objects. Flatten"),
        (
            "a.csv",
            b"Text,label\ncaf\xe9,1\n",
            "a.csv:2: Byte 0xe9 is not UTF-8. In Windows-1252 .*café,1.. Save",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path, name, content, sentence):
    with pytest.raises(BadInput, match=sentence):
        read_table(written(tmp_path, name, content), name, COLUMNS)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(some.lists(some.text(), min_size=1, max_size=5))
def test_any_text_of_json_becomes_text_that_a_file_holds(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("any") / "a.json"
    rows = [{"Text": text, "label": 1} for text in [*texts, "\ud83d"]]
    path.write_text(json.dumps(rows))
    cells = read_table(path, "a.json", COLUMNS)["text"].tolist()
    assert len(cells) == len(texts) + 1
    for cell in cells:
        text = cell.encode().decode()
        assert cell == " ".join(text.split())


def test_files_are_those_that_match_and_are_not_hidden(tmp_path):
    for name in ("a.csv", "deep/b.csv", "._a.csv", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(find_files(tmp_path, "**/*.csv")) == ["a.csv", "deep/b.csv"]
    assert list(find_files(tmp_path / "c.txt", "*.csv")) == ["c.txt"]
    with pytest.raises(BadInput, match="No file below .* matches workload.source.files, /x"):
        find_files(tmp_path, "/x")
