"""Questions in the documented layout or drawn, what is wrong with rows, and whole pictures dealt to parts."""

import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as some

from lib.errors import BadInput
from lib.task import load_config
from tests.workloads.vqa.files import collected, lines, picture, record, row, text
from trainbook.supervised.samples import Part
from workloads.vqa.data import read, split
from workloads.vqa.settings import Split


def said(records):
    return [(one.question, one.answer, Path(one.image).name, one.kind, one.part) for one in records]


def test_the_documented_layout_needs_no_configuration(tmp_path):
    question = unicodedata.normalize("NFD", "màu  của\tcửa")
    lines(
        tmp_path / "train.jsonl",
        row(1, question=question, kind="COLOR", reasoning="Vật đỏ."),
        row(2, answer=3.0),
    )
    lines(tmp_path / "val.jsonl", row(3, split="train"))
    for number in (1, 2, 3):
        picture(tmp_path / f"{number}.jpg", number)
    first, second, third = collected(tmp_path)[0]
    assert said([first]) == [("màu của cửa", "màu đỏ", "1.jpg", "COLOR", "train")]
    assert first.reasoning == "Vật đỏ."
    assert second.answer == "3"
    assert second.number == 2
    assert second.file == "train.jsonl"
    assert third.part == "train"
    assert Path(first.image) == tmp_path / "1.jpg"
    assert len({first.picture, second.picture, third.picture}) == 3


# Of each collection: a small sample as it is published, and the lines of `workload:` that name its columns
COLLECTIONS = {
    "easy-VQA": (
        {"train/questions.json": [["what?", "circle", 0]], "test/questions.json": [["what?", "circle", 0]]},
        ["train/images/0.png", "test/images/0.png"],
        "source: {files: '*/questions.json', picture: '{folder}/images/{image}.png'}\n"
        "columns: {question: 0, answer: 1, image: 2}",
        [("what?", "circle", "0.png", "", "test"), ("what?", "circle", "0.png", "", "train")],
    ),
    "ViVQA": (
        {"train.csv": ",question,answer,img_id,type\n0,màu gì,cam,7,2\n", "test.csv": ",question,answer,img_id,type\n"},
        ["images/train2014/COCO_train2014_000000000007.jpg"],
        "source: {files: '*.csv', picture: 'images/{split}2014/COCO_{split}2014_{image:0>12}.jpg'}\n"
        "columns: {image: img_id, kind: type}",
        [("màu gì", "cam", "COCO_train2014_000000000007.jpg", "2", "train")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("files", "images", "wanted", "found"), COLLECTIONS.values(), ids=COLLECTIONS
)
def test_public_collections_load_by_six_lines(tmp_path, files, images, wanted, found):
    for name, content in files.items():
        text(tmp_path / "data" / name, content)
    for number, name in enumerate(images):
        picture(tmp_path / "data" / name, number)
    assert wanted.count("\n") < 6
    assert said(read(tmp_path / "data", settings_of(tmp_path, wanted))) == found


def settings_of(folder, workload):
    training = {"effective_batch": 8, "max_steps": 4}
    content = {"task": "vqa", "training": training, "workload": yaml.safe_load(workload)}
    (folder / "vqa.yaml").write_text(yaml.safe_dump(content), "utf-8")
    return load_config(folder / "vqa.yaml").workload


BAD = {
    "no answer": ({"answer": None}, "a.jsonl, row 2: There is no answer"),
    "no picture": ({"image": "9.jpg"}, "row 2: There is no picture .*9.jpg"),
    "no picture's content": ({"image": "2.html"}, "row 2: .*cannot be decoded"),
}


@pytest.mark.parametrize(("change", "sentence"), BAD.values(), ids=BAD)
def test_a_bad_row_is_refused_or_left_out_within_the_limit_and_described(
    tmp_path, change, sentence
):
    lines(tmp_path / "a.jsonl", row(1), row(2, **change), row(3))
    text(tmp_path / "2.html", "<!DOCTYPE html>")
    for number in (1, 2, 3):
        picture(tmp_path / f"{number}.jpg", number)
    with pytest.raises(BadInput, match=f"(?s)bad_input_limit: 1.*{sentence}"):
        collected(tmp_path)
    records, notes = collected(tmp_path, limit=1)
    assert [one.number for one in records] == [1, 3]
    assert notes[0].startswith(
        "Questions with their picture: 2; rows that are left out: 1.\n  a.jsonl, row"
    )


def test_what_is_said_twice_stays_once_and_parts_of_files_that_show_the_same_pictures_do_not_count(
    tmp_path,
):
    lines(
        tmp_path / "a" / "a.jsonl",
        row(1, reasoning="Vì"),
        row(1, answer="Màu đỏ."),
        row(1, answer="cam"),
    )
    picture(tmp_path / "a" / "1.jpg")
    records, _ = collected(tmp_path / "a")
    assert [(one.answer, bool(one.reasoning)) for one in records] == [
        ("màu đỏ", True),
        ("cam", False),
    ]
    lines(tmp_path / "b" / "train.jsonl", row(1), row(2))
    lines(tmp_path / "b" / "test.jsonl", row(3))
    for number, colour in ((1, 1), (2, 2), (3, 2)):  # the second picture under two names
        picture(tmp_path / "b" / f"{number}.jpg", colour)
    assert {one.part for one in collected(tmp_path / "b")[0]} == {""}


def test_the_fingerprint_is_of_what_records_say_and_pictures_show_wherever_they_lie(vqa):
    def fingerprint(**parts):
        task = vqa()
        task.parts = {name: Part(task, name, samples) for name, samples in parts.items()}
        return task.fingerprint()

    one = record(1)
    assert fingerprint(test=[one]) == fingerprint(
        test=[one._replace(image="/elsewhere/x.png", number=9)]
    )
    for change in (
        {"picture": "other"},
        {"answer": "blue"},
        {"question": "x"},
        {"kind": "X"},
        {"reasoning": "x"},
    ):
        assert fingerprint(test=[one]) != fingerprint(test=[one._replace(**change)])
    assert fingerprint(test=[one]) != fingerprint(train=[one])


RECORDS = [record(10 * p + q, p, kind="ABC"[(p + q) % 3]) for p in range(40) for q in range(5)]


def pictures(records):
    return {one.picture for one in records}


@settings(max_examples=8, deadline=None, derandomize=True)
@given(some.randoms(use_true_random=False))
def test_each_record_is_in_one_part_with_its_picture_whatever_their_order(draw):
    parts = split(RECORDS, Split(0.25, 0.25))
    assert sorted(one.number for part in parts.values() for one in part) == sorted(
        one.number for one in RECORDS
    )
    sides = [pictures(part) for part in parts.values()]
    assert list(parts) == ["train", "validation", "test"]
    assert [len(side) for side in sides] == [
        20,
        10,
        10,
    ]
    assert not sides[0] & sides[1]
    assert not (sides[0] | sides[1]) & sides[2]
    counts = [Counter(one.kind for one in part) for part in parts.values()]
    assert all(max(own.values()) - min(own.values()) <= 8 for own in counts), (
        "each has its share of each type"
    )
    shuffled = draw.sample(RECORDS, len(RECORDS))
    assert [pictures(part) for part in split(shuffled, Split(0.25, 0.25)).values()] == sides


@pytest.mark.parametrize("names", [("train", "test"), ("train", "validation", "test")])
def test_parts_of_the_files_count_and_what_is_missing_comes_out_of_the_training(names):
    records = [one._replace(part=names[int(one.picture[1:]) % len(names)]) for one in RECORDS]
    parts = split(records, Split())
    for name in names[1:]:
        assert {one.number for one in parts[name]} == {
            one.number for one in records if one.part == name
        }
    assert all(parts.values())
    assert {one.part for one in parts["train"]} == {"train"}
    with pytest.raises(BadInput, match="No picture is left for validation: there are 2 in all"):
        split([record(1), record(2)], Split())


def test_repeats_contradictions_and_rare_types_are_counted_and_named(tmp_path):
    source = tmp_path / "data"  # beside the cache
    source.mkdir()
    rows = [row(number, kind="COLOR") for number in range(1, 101)]
    more = [
        row(1, kind="COLOR"),
        row(2, answer="Màu đỏ.", kind="COLOR"),
        row(3, answer="cam", kind="ODD"),
    ]
    lines(source / "a.jsonl", *rows, *more)
    for number in range(1, 101):
        picture(source / f"{number}.jpg", number)
    records, notes = collected(source)
    assert len(records) == 101
    assert notes[1:] == [
        "Rows with picture, question and answer of an earlier one: 2, left out, such as a.jsonl, row 101.",
        "Questions about one picture with several answers: 1, such as màu đỏ (a.jsonl, row 3) "
        "and cam (a.jsonl, row 103). All are trained.",
        "Questions that count as other types: 1, of 1 rare or odd types (ODD).",
        "a.jsonl: 103 rows of 103 lines.",
    ]


def test_splits_of_files_that_share_pictures_are_named(tmp_path):
    lines(tmp_path / "train.jsonl", row(1), row(2))
    lines(tmp_path / "test.jsonl", row(3))
    for number, colour in ((1, 1), (2, 2), (3, 2)):
        picture(tmp_path / f"{number}.jpg", colour)
    sentence = collected(tmp_path)[1][1]
    assert sentence.startswith("Pictures in two of the files' splits: 1, such as ")
    assert "3.jpg = " in sentence
    assert sentence.endswith("2.jpg. All pictures are split anew.")
