"""Files of conversations: JSON lines, lists and tables; mistakes are named by line, what is left out by its name."""

import bz2
import gzip
import json
import os

import pandas as pd
import pytest

from lib.errors import BadInput
from tests.workloads.chat.conftest import write_rows
from trainbook.supervised.notes import collecting
from workloads.chat import rows
from workloads.chat.records import read_records

RECORDS = [{"prompt": f"question {n}", "answer": f"line\u2028 {n}"} for n in range(3)]
LINES = "\n".join(map(json.dumps, RECORDS))
FILES = {
    "rows.jsonl": LINES, "rows.ndjson": LINES.replace("\n", "\r\n"), "rows.JSONL": f"\ufeff{LINES}\n\n",
    "lines.json": LINES, "list.json": json.dumps(RECORDS), "indented.json": json.dumps(RECORDS, indent=2),
    "list.jsonl": json.dumps(RECORDS), "objects.json": "\n".join(json.dumps(record, indent=1) for record in RECORDS),
    "raw.jsonl": "\n".join(json.dumps(record, ensure_ascii=False) for record in RECORDS),
    "rows.csv": pd.DataFrame(RECORDS).to_csv(index=False),
    "rows.tsv": pd.DataFrame(RECORDS).to_csv(index=False, sep="\t"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_rows_are_the_same_in_every_kind_of_file_alone_and_in_a_folder(name, tmp_path):
    (tmp_path / name).write_text(FILES[name], "utf-8")
    for source in (tmp_path / name, tmp_path):
        (read,) = rows.read_files(source).values()
        assert [(row.question, row.answer) for row in read] == [
            tuple(record.values()) for record in RECORDS
        ]


TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
OTHERS = {
    "columns.json": json.dumps({"prompt": ["a", "a"], "completion": ["b", "b"]}).encode(),
    "pandas.json": pd.DataFrame({"prompt": ["a", "a"], "completion": ["b", "b"]}).to_json().encode(),
    "lists.json": json.dumps([TALK, TALK]).encode(),
    "rows.csv.gz": gzip.compress(b"prompt,answer\na,b\na,b\n"),
    "rows.jsonl.bz2": bz2.compress(b'{"prompt": "a", "answer": "b"}\n' * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_columns_lists_of_talks_and_packed_files_are_rows_too(name, tmp_path):
    (tmp_path / name).write_bytes(OTHERS[name])
    for source in (tmp_path / name, tmp_path):
        (read,) = rows.read_files(source).values()
        assert read == [rows.Row((("user", "a"),), "b")] * 2


def test_one_row_of_lists_of_messages_is_a_row(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"prompt": TALK[:1], "completion": TALK[1:]}))
    (read,) = rows.read_files(tmp_path).values()
    assert read == [rows.Row((("user", "a"),), "b")]


def test_an_answer_before_which_nothing_is_asked_is_not_trained_and_an_empty_file_is_named(
    tmp_path,
):
    write_rows(
        tmp_path / "a.jsonl", [{"messages": [{"role": "assistant", "content": "Hello!"}, *TALK]}]
    )
    (tmp_path / "b.jsonl").touch()
    with collecting() as notes:
        (row,) = rows.read_files(tmp_path)[tmp_path / "a.jsonl"]
    assert [each.answer for each in rows.answered(row)] == ["b"]
    first, second = notes
    assert first == "b.jsonl has no rows."
    assert second.startswith("1 conversations begin with an answer (the first: a.jsonl:1).")


def test_a_row_has_the_line_where_it_begins(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(RECORDS, indent=2))
    ((_, read),) = read_records(tmp_path).items()
    assert [origin for origin, _ in read] == ["a.json:2", "a.json:6", "a.json:10"]


def test_columns_of_a_table_may_hold_messages_as_json(tmp_path):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    pd.DataFrame({"messages": [json.dumps(messages)], "id": [1]}).to_csv(
        tmp_path / "a.csv", index=False
    )
    with collecting() as notes:
        (read,) = rows.read_files(tmp_path).values()
    assert read == [rows.Row((("user", "a"),), "b")]
    assert notes == ["a.csv: 1 row of 2 lines (1 head).", "Keys that are not read: id (1 rows)."]


def test_parquet_has_lists_and_gaps_as_pandas_gives_them(tmp_path, monkeypatch):
    import numpy as np

    turns = np.array(
        [{"role": "user", "content": "a", "name": None}, {"role": "assistant", "content": "b"}],
        object,
    )
    frame = pd.DataFrame({"messages": [turns], "images": [np.array([])], "weight": [float("nan")]})
    monkeypatch.setattr(pd, "read_parquet", lambda content: frame)
    (tmp_path / "a.parquet").write_bytes(b"x")
    (read,) = rows.read_files(tmp_path).values()
    assert read == [rows.Row((("user", "a"),), "b")]


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
BROKEN = {
    "cut.jsonl": (LINES[:-9], r"cut.jsonl:3: it is no JSON"),
    "cut.json": (json.dumps(RECORDS, indent=2)[:-9], r"cut.json:\d+: it is no JSON"),
    "open.json": (json.dumps(RECORDS)[:-1], "the end of the list"),
    "more.json": (json.dumps(RECORDS) + "x", "more text comes after it"),
    "comma.json": (json.dumps(RECORDS).replace("}, {", "} {"), "neither a comma"),
    "array.jsonl": (
        "\n".join(json.dumps([record]) for record in RECORDS),
        "more text comes after it",
    ),
    "number.jsonl": (f"{LINES}\n7", "number.jsonl:4: it is 7 instead of an object"),
    "wide.csv": ("prompt,answer\na,b,c\n", "wide.csv:2: 3 cells instead of 2"),
    "gap.csv": ("prompt,answer\na,b\nc,\n", "gap.csv:3: it has no answer"),
    "keys.json": (json.dumps({"train": RECORDS}), "keys.json:1: it has the keys train"),
    "twice.jsonl": (
        '{"prompt": "a", "prompt": "b", "answer": "c"}',
        "twice.jsonl:1: .*the key 'prompt' twice",
    ),
    "twice.json": (
        '[{"prompt": "a", "prompt": "b", "answer": "c"}]',
        "twice.json:1: .*the key 'prompt' twice",
    ),
    "half.jsonl": (
        json.dumps({"prompt": "a \ud83d", "answer": "c"}),
        "half.jsonl:1: .*user has half a letter",
    ),
    "greeting.jsonl": (
        json.dumps({"messages": [{"role": "assistant", "content": "Hello!"}]}),
        "nothing is asked before it",
    ),
    "other.jsonl": (
        json.dumps({"query": "a", "answers": ["b"]}),
        "it has no answer: its keys are query, answers",
    ),
    "lfs.jsonl": (POINTER, "lfs.jsonl cannot be read .it is a pointer of Git LFS"),
    "lfs.csv": (POINTER, "lfs.csv cannot be read .it is a pointer of Git LFS"),
    "deep.json": ("[" * 100_000, "deep.json:1: it is no JSON that can be read"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_by_line(name, tmp_path):
    text, reason = BROKEN[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=reason):
        rows.read_files(tmp_path / name)


def test_all_kinds_of_broken_rows_are_named_in_one_round(tmp_path):
    empty = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}
    write_rows(
        tmp_path / "a.jsonl", [*RECORDS, empty, {"prompt": "x", "answer": "y", "images": ["a.png"]}]
    )
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"prompt": \n')
    with pytest.raises(BadInput, match="^3 rows cannot be used:") as refused:
        rows.read(tmp_path)
    reasons = [
        "a.jsonl:4: it has an empty answer",
        "a.jsonl:5: it has the key images",
        "a.jsonl:6: it is no JSON",
    ]
    assert all(reason in str(refused.value) for reason in reasons)


def test_a_pipe_and_a_file_above_the_limit_are_named_and_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(BadInput, match="a.jsonl cannot be read .*it is a pipe"):
        rows.read_files(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.jsonl").write_text(LINES)
    monkeypatch.setattr("trainbook.supervised.files._MOST_BYTES", 20)
    with pytest.raises(BadInput, match="at most 20 are read"):
        rows.read_files(tmp_path)


def test_what_a_folder_has_beside_conversations_is_named(tmp_path):
    write_rows(tmp_path / "a.jsonl", [{**record, "id": n} for n, record in enumerate(RECORDS)])
    for name, text in {
        "dataset_info.json": '{"license": "mit"}',
        "x.md": "",
        "y.md": "",
        ".z.jsonl": "no",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "base").mkdir()
    with collecting() as notes:
        assert len(rows.read_files(tmp_path)[tmp_path / "a.jsonl"]) == 3
    assert notes == [
        "Files that hold no conversations and are left out: .md (2 files).",
        "dataset_info.json holds no conversations and is left out.", "Keys that are not read: id (3 rows).",
    ]  # fmt: skip


def test_turns_after_the_last_trained_answer_are_left_out_and_said(tmp_path):
    turns = [("user", "a"), ("assistant", "b"), ("user", "and?"), ("assistant", "c")]
    messages = [{"role": role, "content": content} for role, content in turns]
    records = [
        {"messages": messages[:3]},
        {"messages": [*messages[:3], {**messages[3], "weight": 0}]},
    ]
    write_rows(tmp_path / "a.jsonl", records)
    with collecting() as notes:
        parts = rows.read(tmp_path)
    assert [row for some in parts.values() for row in some] == [rows.Row((("user", "a"),), "b")] * 2
    (sentence,) = notes
    assert sentence.startswith(
        "2 conversations go on after their last trained answer (the first: a.jsonl:1)."
    )


def test_new_conversations_need_no_answers(tmp_path):
    write_rows(
        tmp_path / "a.jsonl", [{"prompt": "x"}, {"messages": [{"role": "user", "content": "y"}]}]
    )
    (read,) = rows.read_files(tmp_path, is_new=True).values()
    assert [(row.question, row.answer) for row in read] == [("x", ""), ("y", "")]
