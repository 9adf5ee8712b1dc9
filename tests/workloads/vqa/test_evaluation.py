"""Rules that see the question alone, how near an answer is to the right one, and metrics over pictures."""

import csv
import re
import unicodedata

import numpy as np
import pytest

from tests.workloads.vqa.files import record
from workloads.vqa import evaluation
from workloads.vqa.rules import BY_QUESTION, BY_TYPE, BY_WORDS, MAJORITY, Rules
from workloads.vqa.scoring import exact, normal, rouge_l, token_f1, words

TRAIN = [record(n, kind="COLOR", answer="red" if n % 3 else "blue") for n in range(12)]
TEST = [
    record(10 * p + q, p, question=f"what color is thing {q}?", kind="COLOR", answer=("red", "màu xanh")[p % 2])
    for p in range(20) for q in range(3)
]  # fmt: skip
RIGHT = [one.answer for one in TEST]


def test_right_answers_and_valid_forms_are_counted_by_type_too_and_types_of_few_questions_are_together():
    kinds = ("A", "màu đỏ"), ("A", "hai"), ("B", "ba")
    records = [record(number, kind=kind, answer=answer) for number, (kind, answer) in enumerate(kinds)]
    found = evaluation.metrics(records, ["Màu đỏ.", "màu ba", "ba"], [True, False, True])
    assert found["exact"] == pytest.approx(2 / 3) and found["valid"] == pytest.approx(2 / 3)
    assert (found["exact_A"], found["exact_B"]) == (pytest.approx(0.5), 1)
    assert found["token_f1"] == found["rouge_l"] == pytest.approx(2 / 3)
    records = [record(n, kind="MANY" if n < 30 else f"K{n}") for n in range(50)]
    found = evaluation.metrics(records, ["red"] * 50, [True] * 50)
    assert {key for key in found if key.startswith("exact_")} == {"exact_MANY", "exact_other types"}


def test_the_interval_is_over_pictures_and_not_over_questions():
    """Of 20 pictures, half with all answers right: questions as one would be sure, pictures are not."""
    values = np.array([[float(one.answer == "red")] for one in TEST])
    whole, alone = evaluation.judge(values, TEST)[0], evaluation.judge(values, [record(n) for n in range(60)])[0]
    assert whole.value == alone.value == 0.5
    assert 0.25 < whole.low < 0.34 and alone.low > whole.low + 0.05 and whole.high > alone.high
    # of a share p of n pictures: the normal interval
    assert whole.high - whole.low == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 20), rel=0.15)


def test_the_gain_is_over_the_strongest_rule_and_paired_by_picture(tmp_path):
    rules, valid = Rules(TRAIN), [True] * 60
    text = evaluation.report(TEST, RIGHT, valid, rules, tmp_path)
    assert re.search(
        r"The model is above the strongest baseline by exact match, .*: \+0.500 \[\+0.[23]\d\d, \+0.[67]", text
    )
    assert "over draws of 20 pictures, paired" in text
    same = evaluation.report(TEST, rules.answers(TEST)[BY_TYPE], valid, rules, tmp_path)
    assert "level with" in same and "+0.000 [+0.000, +0.000]" in same and "does not tell them apart" in same
    assert "The model is below" in evaluation.report(TEST, ["no"] * 60, valid, rules, tmp_path)
    assert evaluation.baseline(TEST, rules)["exact"] == 0.5


def test_the_report_has_a_row_a_rule_and_the_files_say_each_answer(tmp_path):
    predicted, valid = ["wrong", *RIGHT[1:]], [False, *[True] * 59]
    text = evaluation.report(TEST, predicted, valid, Rules(TRAIN), tmp_path)
    for part in ("the model", BY_TYPE, "0.983", "+0.483", "20 pictures", "COLOR"):
        assert part in text
    with (tmp_path / "evaluation.csv").open(encoding="utf-8") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert len(rows) == 5 and float(rows["the model"]["exact"]) == pytest.approx(59 / 60, abs=1e-6)
    assert float(rows["the model"]["gain_low"]) > 0 and float(rows[BY_TYPE]["exact_COLOR"]) == 0.5
    with (tmp_path / "answers.csv").open(encoding="utf-8") as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == 60 and answers[0]["answer"] == "wrong" and answers[0]["valid"] == "0"
    assert answers[59]["right"] == "màu xanh" and answers[59]["question"] == "what color is thing 2?"


COLOURS = ("Red", "blue", "green")
ASKED = [
    *(record(n, question=f"what color is cup {n}?", answer="Red" if n < 5 else "blue", kind="COLOR") for n in range(8)),
    *(record(n, question="how many cups?", answer="two", kind="COUNT") for n in range(10, 17)),
    *(record(n, question="how many dogs?", answer="three", kind="COUNT") for n in range(20, 23)),
]  # fmt: skip


def test_each_rule_answers_what_was_commonest_for_what_it_sees_spelled_as_it_mostly_was():
    rules = Rules(ASKED)
    asked = record(99, question="How many dogs", answer="?", kind="COUNT")
    assert rules.answers([asked]) == {MAJORITY: ["two"], BY_TYPE: ["two"], BY_QUESTION: ["three"], BY_WORDS: ["three"]}
    new = record(99, question="what color is that", kind="COLOR")
    assert rules.answers([new]) == {MAJORITY: ["two"], BY_TYPE: ["Red"], BY_QUESTION: ["Red"], BY_WORDS: ["Red"]}
    train = [record(n, answer=answer) for n, answer in enumerate(("Red.", "red", "red", "blue", "blue"))]
    for order in (train, train[::-1]):
        assert Rules(order).answers([record(9)])[MAJORITY] == ["red"]


def test_what_differs_in_writing_alone_is_equal_and_in_an_accent_a_sign_or_a_word_is_not():
    composed = unicodedata.normalize("NFD", "màu đỏ")
    for one, other in (
        (composed, "màu đỏ"), ("Màu Đỏ", "màu đỏ"), ("“màu đỏ”.", "màu đỏ"), (" màu \t đỏ\n", "màu đỏ"), ("-5", "-5."),
    ):  # fmt: skip
        assert normal(one) == normal(other) and exact(one, other) == token_f1(one, other) == rouge_l(one, other) == 1
    for one, other in (("má", "mà"), ("đỏ", "do"), ("-5", "5"), ("+", "-"), ("", "a"), ("màu đỏ", "đỏ")):
        assert exact(one, other) == 0
    assert words("Màu đỏ, (hay) xanh-lá?") == ["màu", "đỏ", "hay", "xanh", "lá"]


def test_token_f1_counts_words_and_rouge_l_their_order():
    assert token_f1("màu đỏ", "màu đen") == rouge_l("màu đỏ", "màu đen") == pytest.approx(0.5)  # .80 in letters a to z
    assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert (token_f1("b a", "a b"), rouge_l("b a", "a b")) == (1, 0.5)
    assert rouge_l("a x b y c", "a b c") == pytest.approx(6 / 8)
    assert token_f1("", "a") == rouge_l("", "a") == token_f1("a", "b") == 0 and token_f1("+", "+") == 1
