"""Samples: dealt by a hash, whatever the machine; padded, read from files, told from each other."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import BadInput
from trainbook import fingerprint, padded, records, split
from trainbook.supervised.samples import in_order, reading

ROWS = st.lists(
    st.tuples(st.integers(0, 9), st.text(max_size=3), st.sampled_from("ab")), max_size=30
)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(ROWS, ROWS, st.sampled_from([None, lambda row: row[0]]), st.booleans())
def test_a_split_has_every_item_once_moves_none_and_parts_no_group(rows, others, group, as_dicts):
    def dealt(items):
        items = [
            dict(zip("gxy", item, strict=True)) if as_dicts and not group else item
            for item in items
        ]
        with reading(None, group=group):
            parts = split(items)
        assert sum(map(len, parts.values())) == len(items)
        pairs = [
            (part, [*item.values()] if as_dicts and not group else item)
            for part in parts
            for item in parts[part]
        ]
        return {(value[0] if group else tuple(value[:2]), part) for part, value in pairs}

    places = dealt(rows)
    assert len({key for key, _ in places}) == len(places)
    assert places <= dealt([*rows, *others])


def test_shares_are_kept_wherever_the_folder_lies_and_new_data_is_not_dealt():
    parts = split(range(4000), validation=0.1, test=0.3)
    assert abs(len(parts["validation"]) - 400) < 60
    assert abs(len(parts["test"]) - 1200) < 100
    with pytest.raises(BadInput, match="leaves nothing to train on"):
        split(range(3), validation=0.6, test=0.4)

    def dealt(root, as_text):
        with reading(Path(root)):
            items = [
                (f"{root}/{k}.png" if as_text else Path(root, f"{k}.png"), k) for k in range(100)
            ]
            return {part: [k for _, k in samples] for part, samples in split(items).items()}

    for as_text in (False, True):
        assert dealt("/kaggle/input/shapes", as_text) == dealt("/home/me/data", as_text)
    with reading(Path("/new"), is_new=True):
        assert split(range(50)) == {"train": [], "validation": [], "test": [*range(50)]}


def test_samples_have_an_order_and_a_hash_that_a_later_session_finds_again():
    class Picture:
        pass

    with pytest.raises(BadInput, match="A Picture cannot be told from another"):
        split([(Picture(), 1)])
    assert (
        sum(map(len, split([({"a": np.ones(2)}, torch.ones(3), 1.5, None, b"x", 0)]).values())) == 1
    )
    mixed = [(Path("/d/b.txt"), "2"), (Path("/d/a.txt"), "9"), (Path("/d/b.txt"), "1")]
    assert [text for _, text in in_order(mixed, Path("/d"))] == [
        "9",
        "2",
        "1",
    ]  # of paths, in a file its own


def test_rows_of_a_file_or_of_a_folder_are_read_by_its_ending(tmp_path):
    for name, text in {
        "a.csv": "\ufeffname,price\nx,1\ny,\n", "b.tsv": "name\tprice\nx\t1\ny\t\n",
        "c.jsonl": '{"name": "x", "price": "1"}\n\n{"name": "y", "price": ""}',
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text, "utf-8")
        rows = [{"name": "x", "price": "1"}, {"name": "y", "price": ""}]
        assert [*records(tmp_path / name)] == rows == [*records(tmp_path, f"{name[0]}.*")]
    for line in ("{", "[1]"):
        (tmp_path / "a.jsonl").write_text(f"{{}}\n{line}\n")
        with pytest.raises(BadInput, match=r"a.jsonl:2: it is .*Correct or delete the line"):
            list(records(tmp_path / "a.jsonl"))


def test_columns_of_numbers_are_floats_and_what_is_none_is_named_with_its_line_and_column(tmp_path):
    (tmp_path / "a.csv").write_text("name,area\nx,1.5\ny,nan\n")
    rows = records(tmp_path, numbers=("area", "price"))
    assert next(rows) == {"name": "x", "area": 1.5}
    with pytest.raises(
        BadInput, match="a.csv:3: 'nan' in the column area is no number. Write it as 1234.5, leave"
    ):
        next(rows)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(-9, 9), max_size=6), min_size=1),
    st.integers(-100, 0),
    st.integers(1, 8),
)
def test_rows_are_cut_to_a_length_and_filled_to_the_longest(rows, filling, length):
    width = max(1, *(min(len(row), length) for row in rows), 1)
    assert padded(rows, filling, length).tolist() == [
        (row + [filling] * width)[:width] for row in rows
    ]
    assert padded([[0.5]], 0.0, 4).dtype == torch.float32


def test_a_fingerprint_is_of_names_and_bytes_alone(tmp_path):
    for root in ("one", "two"):
        for name in ("b/x.txt", "a.txt"):
            (tmp_path / root / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / root / name).write_text(name)
    first = fingerprint(tmp_path / "one")
    assert fingerprint(tmp_path / "two") == first
    (tmp_path / "two" / "a.txt").rename(tmp_path / "two" / "c.txt")
    renamed = fingerprint(tmp_path / "two")
    (tmp_path / "two" / "c.txt").write_text("c.txt")
    assert (
        len(
            {first, renamed, fingerprint(tmp_path / "two"), fingerprint(tmp_path / "one" / "a.txt")}
        )
        == 4
    )
