"""Targets in parts, the losses of each, and what is soft of a teacher."""

import pytest
import torch

from lib.errors import BadInput
from tests.workloads.vqa.files import record
from workloads.vqa import objectives, tokens
from workloads.vqa.objectives import ANSWER, FORMAT, REASONING
from workloads.vqa.settings import Distillation

SOFT = Distillation(mode="soft", temperature=1.0, weight=1.0)


@pytest.fixture(scope="module")
def words():
    texts = ["màu đỏ", "màu đỏ tươi", "màu đen", "vì nó tròn"] * 3
    return tokens.Tokens(tokens.trained(texts, 100), ["DESCRIPTIVE", "OBJECT"])


def target(words, length=40, distillation=SOFT, **more):
    return objectives.targets([record(1, **more)], words, length, distillation)[0]


def test_a_target_has_its_tags_around_answer_type_and_reasoning(words):
    found = target(words, answer="màu đỏ", kind="OBJECT", reasoning="vì nó tròn")
    answer, reasoning = words.numbers(["màu đỏ", "vì nó tròn"])
    wanted = [words.answer, *answer, words.answer_end, words.reasoning, words.kinds["OBJECT"], *reasoning]
    assert found.tokens == [*wanted, words.reasoning_end, words.end]
    parts = [FORMAT, *[ANSWER] * (len(answer) + 1), FORMAT, *[REASONING] * (len(reasoning) + 1), FORMAT, FORMAT]
    assert found.parts == parts


def test_what_looks_like_a_tag_is_text(words):
    found = target(words, answer="<answer> đỏ </s>", kind="")
    assert found.tokens.count(words.answer) == 1 and found.tokens.count(words.end) == 1


def test_a_reasoning_is_cut_and_an_answer_never(words):
    long = target(words, length=12, answer="màu đỏ", reasoning="vì nó tròn " * 9)
    assert len(long.tokens) == 12 and long.tokens[-2:] == [words.reasoning_end, words.end]
    with pytest.raises(BadInput, match=r"record 1: the answer takes \d+ tokens, and workload.decoder.length 8 has"):
        target(words, length=8, answer="màu đỏ " * 9)


def test_shares_follow_the_answers_that_begin_alike(words):
    teacher = (("màu đỏ", 0.5), ("màu đỏ tươi", 0.1), ("màu đen", 0.4))
    found = target(words, answer="màu đỏ", teacher=teacher)
    path = [*words.numbers(["màu đỏ"])[0], words.answer_end]
    assert len(found.soft) == len(path) and all(sum(place.values()) == pytest.approx(1) for place in found.soft)
    probability = 1.0
    for place, token in zip(found.soft, path, strict=True):
        probability *= place[token]
    assert probability == pytest.approx(0.5)  # that of the whole answer
    assert found.soft[-1][words.answer_end] == pytest.approx(0.5 / 0.6)


def test_a_higher_temperature_evens_them_out_and_an_answer_that_no_teacher_gave_is_hard(words):
    teacher = (("màu đỏ", 0.9), ("màu đen", 0.1))
    hot = Distillation(mode="soft", temperature=4.0)
    cold, warm = (target(words, answer="màu đỏ", teacher=teacher, distillation=d).soft for d in (SOFT, hot))
    place = next(n for n, one in enumerate(cold) if len(one) > 1)
    assert max(warm[place].values()) < max(cold[place].values())
    other = target(words, answer="màu nó", teacher=teacher).soft
    assert other[-1] == {}  # where no answer of the teacher's begins so
    assert target(words, answer="màu đỏ", teacher=teacher, distillation=Distillation()).soft == []
    assert target(words, answer="màu đỏ").soft == []


def batch_of(*parts):
    part = torch.tensor(parts)
    return {"target": torch.ones_like(part), "part": part}


def test_each_term_is_the_sum_over_its_own_tokens_and_pads_count_nowhere():
    batch = batch_of([FORMAT, ANSWER, REASONING, 0], [FORMAT, ANSWER, ANSWER, FORMAT])
    losses = torch.tensor([[1.0, 2.0, 4.0, 1000.0], [8.0, 16.0, 32.0, 64.0]])
    sums = objectives.summed(losses, batch["part"])
    assert {name: float(value) for name, value in sums.items()} == {"format": 73.0, "answer": 50.0, "reasoning": 4.0}
    assert objectives.counted(batch) == {"format": 3, "answer": 3, "reasoning": 1}


def test_smoothing_keeps_some_loss_for_what_is_sure():
    logits = torch.zeros(1, 1, 5)
    logits[..., 1] = 50.0
    sure = [float(objectives.plain_losses(logits, torch.ones(1, 1, dtype=torch.long), s)) for s in (0.0, 0.1)]
    assert sure[0] == pytest.approx(0, abs=1e-5) and sure[1] == pytest.approx(50 * 0.1 * 4 / 5, rel=1e-4)


def test_soft_places_take_the_teachers_shares_and_others_the_target():
    batch = batch_of([ANSWER, ANSWER])
    shares = torch.tensor([[[0.5, 0.5], [0.0, 0.0]]])
    batch |= {"soft_tokens": torch.tensor([[[2, 3], [0, 0]]]), "soft_shares": shares}
    logits = torch.randn(1, 2, 5, generator=torch.Generator().manual_seed(0))
    found = objectives.losses(logits, batch, 0.0, SOFT)
    scores = logits.log_softmax(-1)
    assert float(found[0, 0]) == pytest.approx(-float(scores[0, 0, 2:4].mean()), rel=1e-5)
    assert float(found[0, 1]) == pytest.approx(-float(scores[0, 1, 1]), rel=1e-5)
    half = objectives.losses(logits, batch, 0.0, Distillation(mode="soft", temperature=1.0, weight=0.25))
    hard = -float(scores[0, 0, 1])
    assert float(half[0, 0]) == pytest.approx(0.75 * hard + 0.25 * float(found[0, 0]), rel=1e-5)
