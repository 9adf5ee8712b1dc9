"""The tokenizer of a run: trained, published, and read back."""

import pytest

from lib.errors import BadInput
from tests.workloads.legal.conftest import write_encoder
from workloads.legal import tokens
from workloads.legal.tokens import Tokens

TEXTS = ["The appeal is allowed with costs .", "The High Court dismissed the appeal , with costs ."] * 5


def test_an_alphabet_of_thousands_leaves_room_for_words_and_a_text_that_names_a_special_token_is_a_text():
    texts = [" ".join(chr(0x4E00 + 40 * row + column) for column in range(40)) for row in range(60)]
    made = Tokens(tokens.trained([*texts, *TEXTS], 200))
    assert len(made.numbers(["appeal"])[0]) < 6
    values = tokens.trained(TEXTS, 120)
    assert [len(own) for own in Tokens(values).numbers(["The appeal", "dismissed"])] == [2, 1]
    assert not {values["cls"], values["sep"], values["pad"]} & {*Tokens(values).numbers(["[SEP] [CLS] [PAD]"])[0]}


def test_the_tokenizer_beside_published_weights_is_taken_without_its_limits(tmp_path):
    values = tokens.published(write_encoder(tmp_path))
    long = Tokens(values).numbers(["the appeal " * 1000])[0]
    assert len(long) >= 2000 and (values["cls"], values["sep"], values["pad"]) == (2, 3, 0)


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(BadInput, match="kept with the weights cannot be read"):
        Tokens({"text": "{}", "cls": 1, "sep": 2, "pad": 0})
    with pytest.raises(BadInput, match="needs tokenizer.json, or"):
        tokens.published(tmp_path)
