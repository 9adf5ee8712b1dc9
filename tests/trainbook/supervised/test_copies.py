"""Copies stay in one split, or are counted; notes name contradictions and absent classes."""

import os
from pathlib import Path

import pytest

from lib.errors import BadInput
from trainbook import records, split
from trainbook.supervised import kinds
from trainbook.supervised.copies import same_files
from trainbook.supervised.samples import read_parts, reading


class Task:
    """What `read_parts` takes of a task."""

    def __init__(self, source, read, kind="classes", classes=(), group=lambda sample: None):
        self.source = source
        self.read = read
        self.kind = kind
        self._kind = kinds.of(kind)
        self.classes = classes
        self.group = group

    def _given_names(self):
        return [*self.classes]


def folder(root, **files):
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def parts_by_path(parts):
    return {path: part for part, rows in parts.items() for path, _ in rows}


def labelled(source):
    return [(path, path.parent.name) for path in source.glob("*/*")]


def test_files_with_a_copy_are_hashed_and_others_are_not_even_opened(tmp_path, monkeypatch):
    big = b"x" * 9000
    folder(tmp_path, a=big, b=big, c=b"y" + big[1:], d=b"short", e="", f="")
    missing = tmp_path / "missing"
    contents = same_files([tmp_path / name for name in "abcdef"] + [missing])
    assert {path.name for path in contents} == {"a", "b"}
    assert len({*contents.values()}) == 1
    assert same_files([(tmp_path / "d", 1), {"image": tmp_path / "e"}]) == {}


def test_split_puts_copies_into_one_part_whatever_their_order_and_moves_no_other(tmp_path):
    for number in range(300):
        folder(tmp_path, **{f"a__{number}.png": f"picture {number}"})
    with reading(tmp_path):
        before = split(labelled(tmp_path))
    for number in range(60):
        folder(tmp_path, **{f"b__{number}.png": f"picture {number}"})
    rows = labelled(tmp_path)
    with reading(tmp_path):
        parts = split(rows)
        backwards = split(rows[::-1])
    part_of = parts_by_path(parts)
    for number in range(60):
        name = f"{number}.png"
        assert part_of[tmp_path / "b" / name] == part_of[tmp_path / "a" / name]
    assert parts_by_path(before).items() <= part_of.items()
    assert parts_by_path(backwards) == part_of


def test_copies_in_given_parts_and_contradictions_are_counted_and_named(tmp_path):
    folder(tmp_path, train__a="1", train__b="2", train__d="4", test__c="1", test__e="5")

    def read(source):
        train = [(path, "cat") for path in sorted(source.glob("train/*"))]
        test = [(path, "cat") for path in sorted(source.glob("test/*"))]
        return {"train": train, "test": test, "validation": [(source / "train" / "b", "dog")]}

    _, notes = read_parts(Task(tmp_path, read))
    assert notes == [
        "Samples with the input of an earlier one: 2 of 6, such as train/a = test/c.",
        "Samples of test that are in train too: 1, such as train/a = test/c. Their scores say nothing about new data.",
        "Samples of validation that are in train too: 1, such as train/b. Their scores say nothing about new data.",
        "Inputs with different targets: 1, such as train/b ('cat') and train/b ('dog').",
    ]


def test_rows_of_a_table_are_compared_without_their_target(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,price\n1,2,3\n4,5,6\n1,2,7\n1,2,3\n")

    def read(source):
        return split([row["x"], row["y"], row["price"]] for row in records(source))

    _, notes = read_parts(Task(tmp_path, read, kind="numbers"))
    assert notes == [
        "a.csv: 4 rows of 5 lines (1 head).",
        "Samples with the input of an earlier one: 2 of 4, such as ['1', '2'].",
        "Inputs with different targets: 1, such as ['1', '2'] ('3') and ['1', '2'] ('7').",
    ]


def test_copies_with_masks_of_the_same_content_do_not_contradict_each_other(tmp_path):
    folder(tmp_path, a="1", b="1", a_mask="m", b_mask="m")

    def read(source):
        return [(source / name, source / f"{name}_mask") for name in "ab"]

    _, notes = read_parts(Task(tmp_path, read, kind="tokens"))
    assert notes == ["Samples with the input of an earlier one: 1 of 2, such as a = b."]


def test_new_data_and_groups_are_left_where_they_are(tmp_path):
    for number in range(20):
        folder(tmp_path, **{f"a__{number}": "same", f"b__{number}": "same"})
    rows = labelled(tmp_path)
    with reading(tmp_path, is_new=True):
        assert len(split(rows)["test"]) == 40
    with reading(tmp_path, group=lambda sample: sample[0].parent.name):
        parts = split(rows)
    for part in parts.values():
        folders = {path.parent for path, _ in part}
        assert len(part) == 20 * len(folders)


ABSENT = "Classes without a training sample: {}. Is a folder or a label spelled otherwise?"


def notes_on(source, rows, kind="classes", classes=()):
    """Returns the notes on rows for training."""
    return read_parts(Task(source, lambda _: {"train": rows}, kind, classes))[1]


@pytest.mark.parametrize(
    ("kind", "rows", "classes", "notes"),
    [
        pytest.param(
            "classes",
            [("x", "cat"), ("y", "Cat "), ("z", "dog")],
            ("cat", "Cat ", "dog", "horse"),
            [ABSENT.format("horse"), "Classes that differ in spelling alone: 'cat', 'Cat '."],
            id="names",
        ),
        pytest.param("classes", [("x", 0), ("y", 2)], [*"abc"], [ABSENT.format("b")], id="numbers"),
        pytest.param(
            "labels", [("x", ["a", "c"]), ("y", [])], [*"abc"], [ABSENT.format("b")], id="labels"
        ),
        pytest.param(
            "tokens",
            [(["x", "y"], ["O", "B-LOC"]), (["z"], [""])],
            ("O", "LOC"),
            [ABSENT.format("LOC"), "Tags in no setting `classes`: 'B-LOC' (1)."],
            id="tags",
        ),
    ],
)
def test_a_class_without_a_sample_is_named_before_training(tmp_path, kind, rows, classes, notes):
    assert notes_on(tmp_path, rows, kind, classes) == notes


def test_texts_without_any_tag_are_refused_before_training(tmp_path):
    rows = [(["Rome O"], [""]), (["x"], [-100])]
    sentence = r"No training sample has a tag, such as \(\['Rome O'\], \[''\]\)"
    with pytest.raises(BadInput, match=sentence):
        notes_on(tmp_path, rows, "tokens")
    assert notes_on(tmp_path, [*rows, (["y"], ["O"])], "tokens") == []
    assert notes_on(tmp_path, [("image", [[0, 1], [1, 0]])], "tokens") == []


def test_a_sample_without_a_target_is_shown(tmp_path):
    rows = [(Path(tmp_path / "a.tsv"), "text", None)]
    sentence = r"1 samples whose target is None or empty, such as .*a.tsv.*, 'text', None"
    with pytest.raises(BadInput, match=sentence):
        notes_on(tmp_path, rows)


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_class_is_refused_with_what_the_reader_noted(tmp_path, empty):
    (tmp_path / "a.csv").write_text(f"x,y\n1,a\n2,{empty}\n", "utf-8")

    def read(source):
        return [(row["x"], row["y"]) for row in records(source)]

    sentence = r"1 samples whose target is None or empty, such as (?s:.*)a.csv: 2 rows of 3"
    with pytest.raises(BadInput, match=sentence):
        read_parts(Task(tmp_path, read))


def test_classes_that_are_one_number_or_called_as_a_missing_value_are_named(tmp_path):
    rows = [("x", "1"), ("y", "1.0"), ("z", "NA")]
    assert notes_on(tmp_path, rows) == [
        "Classes that differ in spelling alone: '1', '1.0'.",
        "Classes that are called as a missing value: 'NA'. Leave their samples out, if they have no class.",
    ]


def test_a_file_that_changes_is_hashed_again(tmp_path):
    folder(tmp_path, a="same", b="same")
    assert len(same_files([tmp_path / "a", tmp_path / "b"])) == 2
    (tmp_path / "b").write_text("else")
    os.utime(tmp_path / "b", ns=(1, 1))
    assert same_files([tmp_path / "a", tmp_path / "b"]) == {}
