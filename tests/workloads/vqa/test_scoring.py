"""Answers are compared after NFC, small letters and outer punctuation; accents always count."""

import unicodedata

import pytest

from workloads.vqa.scoring import exact, normal, rouge_l, token_f1, words

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
