"""Rules that see the question alone, and how near an answer is to the right one: accents always count."""

import unicodedata

import pytest

from tests.workloads.vqa.files import record
from workloads.vqa.rules import BY_QUESTION, BY_TYPE, BY_WORDS, MAJORITY, Rules
from workloads.vqa.scoring import exact, normal, rouge_l, token_f1, words

COLOURS = ("Red", "blue", "green")
TRAIN = [
    *(record(n, question=f"what color is cup {n}?", answer="Red" if n < 5 else "blue", kind="COLOR") for n in range(8)),
    *(record(n, question="how many cups?", answer="two", kind="COUNT") for n in range(10, 17)),
    *(record(n, question="how many dogs?", answer="three", kind="COUNT") for n in range(20, 23)),
]  # fmt: skip


def test_each_rule_answers_what_was_commonest_for_what_it_sees_spelled_as_it_mostly_was():
    rules = Rules(TRAIN)
    asked = record(99, question="How many dogs", answer="?", kind="COUNT")
    assert rules.answers([asked]) == {MAJORITY: ["two"], BY_TYPE: ["two"], BY_QUESTION: ["three"], BY_WORDS: ["three"]}
    new = record(99, question="what color is that", kind="COLOR")
    assert rules.answers([new]) == {MAJORITY: ["two"], BY_TYPE: ["Red"], BY_QUESTION: ["Red"], BY_WORDS: ["Red"]}
    train = [record(n, answer=answer) for n, answer in enumerate(("Red.", "red", "red", "blue", "blue"))]
    for order in (train, train[::-1]):
        assert Rules(order).answers([record(9)])[MAJORITY] == ["red"]


def test_without_types_they_are_the_wordings_without_what_answers_are_made_of():
    train = [
        *(record(n, question=f"is there a {colour} shape?", answer="no") for n, colour in enumerate(COLOURS)),
        *(record(n, question="what color is it?", answer=colour) for n, colour in enumerate(COLOURS)),
        record(9, question="is there a circle?", answer="yes"), record(9, question="what is it?", answer="dark circle"),
    ]  # fmt: skip
    rules = Rules(train)
    assert rules.type_of(record(1, question="Is there a BLUE shape")) == "is there a _ shape"
    assert rules.type_of(record(1, question="is there a dark blue circle?")) == "is there a _"
    assert rules.answers([record(1, question="is there a green shape?")])[BY_TYPE] == ["no"]


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
