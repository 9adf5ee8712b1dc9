"""Drawn pictures with questions of all types, each with one right answer."""

import json
import random
import unicodedata
from collections import Counter, defaultdict

import numpy as np
import pytest

from tests.workloads.vqa.files import teacher
from workloads.vqa import generated, pictures
from workloads.vqa.records.settings import Generator, Split
from workloads.vqa.rules import Rules
from workloads.vqa.splits import split

SMALL = Generator(pictures=60, side=32)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINBOOK_CACHE", str(tmp_path_factory.mktemp("drawn")))
        return generated.collection(SMALL)


def test_the_records_have_the_eight_fields_of_the_teacher_composed_and_a_path_of_another_machine(tmp_path):
    generated.write(tmp_path / "a", SMALL)
    content = (tmp_path / "a" / generated.RECORDS).read_text("utf-8")
    rows = [json.loads(line) for line in content.splitlines()]
    assert unicodedata.is_normalized("NFC", content) and {*rows[0]} == {*teacher(1)}
    for row in rows:
        assert row["teacher_raw"] == (
            f"Answer: {row['teacher_answer']}\nType: {row['reasoning_type']}\nReasoning: {row['teacher_reasoning']}"
        )
    generated.write(tmp_path / "b", SMALL)
    assert (tmp_path / "b" / generated.RECORDS).read_text("utf-8") == content
    images = [(tmp_path / name / "images" / "7.png").read_bytes() for name in "ab"]
    assert images[0] == images[1]


def test_all_question_types_are_there_and_a_picture_has_no_more_questions_than_asked(drawn):
    counts = Counter(one.kind for one in drawn.records)
    assert counts.keys() == generated.WEIGHTS.keys() and min(counts.values()) >= 10
    assert max(Counter(one.picture for one in drawn.records).values()) <= SMALL.questions
    assert len({one.picture for one in drawn.records}) == 60 and drawn.layout == "drawn shapes"


def test_a_question_about_a_picture_has_one_answer():
    for number in range(40):
        draw = random.Random(number)
        things = generated.scene(draw)
        answers = defaultdict(set)
        for _ in range(3):
            for one in generated.questions(things, draw):
                answers[one.question].add(one.answer)
        assert all(len(found) == 1 for found in answers.values())


def test_the_answers_are_true_of_the_scene():
    circle, square, _ = generated.SHAPES
    places = (circle, "đỏ", 0, 1), (square, "đen", 2, 0), (square, "đỏ", 1, 2)
    things = [generated.Thing(*one) for one in places]
    said = {(one.kind, one.question): one.answer for one in generated.questions(things, random.Random(1))}
    by_kind = defaultdict(set)
    for (kind, question), answer in said.items():
        by_kind[kind].add(answer)
        assert "hình tròn" in question or "hình màu đen" in question or "vật màu đen" in question or kind == "COUNTING"
    assert by_kind == {
        "COUNTING": {"ba", "một", "hai", "không"}, "DESCRIPTIVE": {"màu đỏ"}, "SPATIAL": {"bên trái"},
        "OBJECT": {"hình vuông"}, "COMMONSENSE": {"không"}, "CAUSAL": {"vì nó có bốn góc"}, "INTENT": {"cửa sổ"},
    }  # fmt: skip


def test_the_shapes_are_painted_in_their_cells_and_colours():
    circle, square, triangle = generated.SHAPES
    places = (circle, "đỏ", 0, 0), (square, "đen", 2, 1), (triangle, "xanh lá", 1, 2)
    things = [generated.Thing(*one) for one in places]
    image = np.asarray(generated.paint(things, 96, random.Random(0)), int)
    for thing in things:
        x, y = (int((place + 0.5) * 32) for place in (thing.column, thing.row))
        assert abs(image[y, x] - generated.COLOURS[thing.colour]).max() < 20
    assert image[48, 48].min() > 200  # an empty cell


def test_no_rule_that_sees_the_question_alone_answers_most_of_them(drawn):
    parts = split(drawn.records, Split(validation=0.2, test=0.4), 0)
    for answers in Rules(parts["train"]).answers(parts["test"]).values():
        right = np.mean([given == one.answer for given, one in zip(answers, parts["test"], strict=True)])
        assert right < 0.7


def test_the_pictures_are_drawn_once_and_decoded_like_anybodys(drawn, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path))
    few = Generator(pictures=12, side=32, questions=2)
    first = generated.collection(few)
    monkeypatch.setattr(generated, "write", None)
    assert generated.collection(few) == first
    assert pictures.load(drawn.records[0].image, 16, 2**20).shape == (16, 16, 3)
