"""Tokens and inputs of the encoder, the padding of their batches, and the judgments that are made up."""

from itertools import pairwise

import pytest

from lib.errors import BadInput
from tests.workloads.legal.conftest import load, write_encoder
from workloads.legal import tokens
from workloads.legal.counting.features import POSITIONS
from workloads.legal.generated import ROLES, judgments
from workloads.legal.samples import input_of
from workloads.legal.settings import POSITIONS as PLANNED
from workloads.legal.settings import Generator
from workloads.legal.tokens import Tokens

CLS, SEP = 1, 2


def test_a_sentence_that_is_too_long_keeps_its_beginning_and_its_end():
    assert input_of([10, 11], 8, CLS, SEP) == [CLS, 10, 11, SEP] and input_of([], 8, CLS, SEP) == [CLS, SEP]
    long = input_of(list(range(100, 20_100)), 12, CLS, SEP)
    assert long == [CLS, 100, 101, 102, 103, 104, 105, 106, 20_097, 20_098, 20_099, SEP]


def test_generated_judgments_are_the_same_every_time_with_runs_of_all_roles_that_words_alone_do_not_say():
    few, many = (list(judgments(Generator(documents=number))) for number in (10, 30))
    assert few == many[:10] and len({name for name, *_ in many}) == 30
    roles = [roles for *_, roles in many]
    assert {role for own in roles for role in own} == {*ROLES}
    assert sum(one != other for own in roles for one, other in pairwise(own)) < 0.4 * sum(map(len, roles))
    seen = {}
    for _, _, sentences, own in many:
        for sentence, role in zip(sentences, own, strict=True):
            seen.setdefault(sentence.split()[0], set()).add(role)
    assert max(map(len, seen.values())) >= 4


def test_settings_that_contradict_each_other_are_refused(tmp_path):
    assert PLANNED == POSITIONS, "a plan knows how many numbers a place has"
    assert load(tmp_path, {"workload.classes": "[b, a]"}).settings.names == ("b", "a")
    for key, value, sentence in (
        ("classes", "[a, b, a]", "at least two roles, and none twice"),
        ("split.fold", "3", "the 3 folds are numbered 0 to 2"),
    ):
        with pytest.raises(BadInput, match=sentence):
            load(tmp_path, {f"workload.{key}": value})


def test_an_alphabet_of_thousands_leaves_room_for_words_and_a_text_that_names_a_special_token_is_a_text():
    texts = ["The appeal is allowed with costs .", "The High Court dismissed the appeal , with costs ."] * 5
    many = [" ".join(chr(0x4E00 + 40 * row + column) for column in range(40)) for row in range(60)]
    assert len(Tokens(tokens.trained([*many, *texts], 200)).numbers(["appeal"])[0]) < 6
    values = tokens.trained(texts, 120)
    assert [len(own) for own in Tokens(values).numbers(["The appeal", "dismissed"])] == [2, 1]
    assert not {values["cls"], values["sep"], values["pad"]} & {*Tokens(values).numbers(["[SEP] [CLS] [PAD]"])[0]}


def test_the_tokenizer_beside_published_weights_is_taken_without_its_limits_and_none_is_refused(tmp_path):
    values = tokens.published(write_encoder(tmp_path))
    long = Tokens(values).numbers(["the appeal " * 1000])[0]
    assert len(long) >= 2000 and (values["cls"], values["sep"], values["pad"]) == (2, 3, 0)
    with pytest.raises(BadInput, match="needs tokenizer.json, or"):
        tokens.published(tmp_path / "none")
