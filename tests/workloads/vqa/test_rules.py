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


def test_each_rule_answers_what_was_commonest_for_what_it_sees():
    rules = Rules(TRAIN)
    asked = record(99, question="How many dogs", answer="?", kind="COUNT")
    assert rules.answers([asked]) == {MAJORITY: ["two"], BY_TYPE: ["two"], BY_QUESTION: ["three"], BY_WORDS: ["three"]}
    new = record(99, question="what color is that", kind="COLOR")
    assert rules.answers([new]) == {MAJORITY: ["two"], BY_TYPE: ["Red"], BY_QUESTION: ["Red"], BY_WORDS: ["Red"]}


def test_an_answer_is_spelled_as_it_mostly_was_and_counted_however_it_was():
    train = [record(1, answer="Red."), record(2, answer="red"), record(3, answer="red"), record(4, answer="blue")]
    assert Rules(train).answers([record(9)])[MAJORITY] == ["red"]


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


def test_the_order_of_records_changes_no_rule():
    train = [record(1, answer="b"), record(2, answer="a"), record(3, answer="a."), record(4, answer="b")]
    assert Rules(train).answers([record(9)]) == Rules(train[::-1]).answers([record(9)])
    alone = Rules([record(1, answer="x")]).answers([record(2, question="new")])
    assert all(answers == ["x"] for answers in alone.values())


SAME = {
    "composition": (unicodedata.normalize("NFD", "màu đỏ"), "màu đỏ"), "case": ("Màu Đỏ", "màu đỏ"),
    "punctuation": ("“màu đỏ”.", "màu đỏ"), "spaces": (" màu \t đỏ\n", "màu đỏ"), "a sign": ("-5", "-5."),
}  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_what_differs_in_writing_alone_is_equal(one, other):
    assert normal(one) == normal(other) and exact(one, other) == token_f1(one, other) == rouge_l(one, other) == 1


OTHER = [("má", "mà"), ("đỏ", "do"), ("-5", "5"), ("+", "-"), ("", "a"), ("màu đỏ", "đỏ")]


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_what_differs_in_an_accent_a_sign_or_a_word_is_not(one, other):
    assert exact(one, other) == 0


def test_words_keep_their_accents_and_signs_are_none():
    assert words("Màu đỏ, (hay) xanh-lá?") == ["màu", "đỏ", "hay", "xanh", "lá"]
    assert words(unicodedata.normalize("NFD", "đỏ")) == ["đỏ"]


def test_token_f1_counts_words_and_rouge_l_their_order():
    assert token_f1("màu đỏ", "màu đen") == rouge_l("màu đỏ", "màu đen") == pytest.approx(0.5)  # .80 in letters a to z
    assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert (token_f1("b a", "a b"), rouge_l("b a", "a b")) == (1, 0.5)
    assert rouge_l("a x b y c", "a b c") == pytest.approx(6 / 8)
    assert token_f1("", "a") == rouge_l("", "a") == token_f1("a", "b") == 0 and token_f1("+", "+") == 1
