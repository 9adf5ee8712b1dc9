"""Targets in parts, and the loss of each."""

import pytest
import torch

from lib.errors import BadInput
from tests.workloads.vqa.files import record
from workloads.vqa import objectives, tokens
from workloads.vqa.objectives import ANSWER, FORMAT, REASONING


@pytest.fixture(scope="module")
def words():
    texts = ["màu đỏ", "màu đỏ tươi", "màu đen", "vì nó tròn"] * 3
    return tokens.Tokens(tokens.trained(texts, 100), ["DESCRIPTIVE", "OBJECT"])


def target(words, length=40, **more):
    return objectives.targets([record(1, **more)], words, length)[0]


def test_a_target_has_its_tags_around_answer_type_and_reasoning_and_a_tag_in_a_text_is_text(words):
    made = target(words, answer="màu đỏ", kind="OBJECT", reasoning="vì nó tròn")
    answer, reasoning = words.numbers(["màu đỏ", "vì nó tròn"])
    wanted = [words.answer, *answer, words.answer_end, words.reasoning, words.kinds["OBJECT"], *reasoning]
    assert made.tokens == [*wanted, words.reasoning_end, words.end]
    parts = [FORMAT, *[ANSWER] * (len(answer) + 1), FORMAT, *[REASONING] * (len(reasoning) + 1), FORMAT, FORMAT]
    assert made.parts == parts
    tagged = target(words, answer="<answer> đỏ </s>").tokens
    assert tagged.count(words.answer) == tagged.count(words.end) == 1


def test_a_reasoning_is_cut_and_an_answer_never(words):
    long = target(words, length=12, answer="màu đỏ", reasoning="vì nó tròn " * 9)
    assert len(long.tokens) == 12 and long.tokens[-2:] == [words.reasoning_end, words.end]
    with pytest.raises(BadInput, match=r"record 1: the answer takes \d+ tokens, and workload.decoder.length 8 has"):
        target(words, length=8, answer="màu đỏ " * 9)


def test_each_term_is_the_sum_over_its_own_tokens_and_pads_count_nowhere():
    part = torch.tensor([[FORMAT, ANSWER, REASONING, 0], [FORMAT, ANSWER, ANSWER, FORMAT]])
    losses = torch.tensor([[1.0, 2.0, 4.0, 1000.0], [8.0, 16.0, 32.0, 64.0]])
    sums = objectives.summed(losses, part)
    assert {name: float(value) for name, value in sums.items()} == {"format": 73.0, "answer": 50.0, "reasoning": 4.0}
    assert objectives.counted({"part": part}) == {"format": 3, "answer": 3, "reasoning": 1}
