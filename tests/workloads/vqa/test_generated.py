"""Drawn pictures with questions of all types, each with one right answer."""

import json
import random
import unicodedata
from collections import defaultdict

import numpy as np

from workloads.vqa import generated
from workloads.vqa.data import split
from workloads.vqa.rules import Rules
from workloads.vqa.settings import Generator, Split

SMALL = Generator(pictures=60, side=32)


def test_no_rule_that_sees_the_question_alone_answers_most_of_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path))
    parts = split(generated.collection(SMALL).records, Split(validation=0.2, test=0.4), 0)
    for answers in Rules(parts["train"]).answers(parts["test"]).values():
        assert np.mean([answer == one.answer for answer, one in zip(answers, parts["test"], strict=True)]) < 0.7


def test_the_same_records_and_pictures_are_drawn_every_time_in_the_documented_layout_with_one_answer_each(tmp_path):
    for name in "ab":
        generated.write(tmp_path / name, SMALL)
    content, images = (
        [(tmp_path / name / file).read_bytes() for name in "ab"] for file in (generated.RECORDS, "images/7.png")
    )
    assert content[0] == content[1] and images[0] == images[1]
    assert unicodedata.is_normalized("NFC", content[0].decode())
    rows, answers = [json.loads(line) for line in content[0].splitlines()], defaultdict(set)
    for row in rows:
        answers[row["image"], row["question"]].add(row["answer"])
    assert {*rows[0]} == {"image", "question", "answer", "kind", "reasoning"}
    assert all(len(own) == 1 for own in answers.values())


def test_the_shapes_are_painted_in_their_cells_and_the_answers_are_true_of_them():
    circle, square, _ = generated.SHAPES
    things = [generated.Thing(*one) for one in ((circle, "đỏ", 0, 1), (square, "đen", 2, 0), (square, "đỏ", 1, 2))]
    image = np.asarray(generated.paint(things, 96, random.Random(0)), int)
    for thing in things:
        x, y = (int((place + 0.5) * 32) for place in (thing.column, thing.row))
        assert abs(image[y, x] - generated.COLOURS[thing.colour]).max() < 20
    assert image[48, 48].min() > 200  # an empty cell
    by_kind = defaultdict(set)
    for one in generated.questions(things, random.Random(1)):
        by_kind[one.kind].add(one.answer)
    assert by_kind == {
        "COUNTING": {"ba", "một", "hai", "không"}, "DESCRIPTIVE": {"màu đỏ"}, "SPATIAL": {"bên trái"},
        "OBJECT": {"hình vuông"}, "COMMONSENSE": {"không"}, "CAUSAL": {"vì nó có bốn góc"}, "INTENT": {"cửa sổ"},
    }  # fmt: skip
