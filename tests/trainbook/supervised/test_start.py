"""The simple method beside the network, and answers that start from it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from lib.errors import BadInput
from tests.trainbook.supervised.tasks import Following, Tags, Words
from tests.trainbook.supervised.test_methods import Pages, rows_of
from trainbook import launch
from trainbook.supervised import evaluation
from trainbook.supervised.scoring import Judged

pytestmark = pytest.mark.usefixtures("quick", "few")
STARTS = {"training.start_from_baseline": True}


def test_the_samples_of_a_group_share_a_fold(configured, words):
    task = Pages(configured("Words"), words)
    part = task.parts["train"]
    folds = [part.fold(index) for index in range(len(part))]
    pages = [task.group(sample) for sample in part.samples]
    assert len({*zip(pages, folds, strict=True)}) == len({*pages})
    assert len({*folds}) > 1


def classes_task(**members):
    task = Tags.__new__(Tags)
    vars(task).update({"kind": "classes", "balanced": False, **members})
    return task


def judgement(true, size=1):
    """What is judged where each `size` samples in a row are a group."""
    return Judged(true.numpy(), np.zeros(0), None, None, np.arange(len(true)) // size)


@settings(derandomize=True, max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), size=st.integers(1, 4), units=st.integers(1, 30))
def test_the_gate_opens_where_validation_is_sure_and_never_for_noise_or_a_single_group(
    seed, size, units
):
    draw = torch.Generator().manual_seed(seed)
    number = size * units
    true = torch.randint(3, (number,), generator=draw)
    begin = (torch.randn(number, 3, generator=draw) / 9).log_softmax(-1)
    sure = 9 * nn.functional.one_hot(true, 3)
    noise, wrong, right = (
        evaluation._opened(classes_task(), scores, begin, judgement(true, size))
        for scores in (begin, begin - sure, begin + sure)
    )
    assert noise == wrong == 0
    assert units <= 4 or right == 1
    assert units > 1 or right == 0


def test_the_network_alone_answers_where_it_gains_and_else_a_share_of_it_that_does():
    draw = torch.Generator().manual_seed(0)
    true = torch.randint(3, (300,), generator=draw)
    task = classes_task()
    judged = judgement(true)
    strong, weak, other = (
        nn.functional.one_hot(true, 3) * k + torch.randn(300, 3, generator=draw) for k in (3, 1, 1)
    )
    assert evaluation._opened(task, strong, weak.log_softmax(-1), judged) == 1
    assert (
        0 < evaluation._opened(task, other, weak.log_softmax(-1), judged) < 1
    )  # each errs where the other does not


def test_the_answer_is_as_right_as_a_network_that_is_surely_better_by_the_metric_however_sure_of_itself():
    """A network that errs rarely, but then with a loss of 30: a share of it has less loss than a coin."""
    draw = torch.Generator().manual_seed(0)
    true = torch.randint(2, (400,), generator=draw)
    right, wrong = (30.0 * nn.functional.one_hot(of, 2) for of in (true, 1 - true))
    network = torch.where(torch.rand(400, 1, generator=draw) < 0.1, wrong, right)
    coin = torch.randn(400, 2, generator=draw).log_softmax(-1)
    assert nn.functional.cross_entropy(network, true) > nn.functional.cross_entropy(coin, true)
    gate = evaluation._opened(classes_task(), network, coin, judgement(true))
    right = (coin + gate * (network - coin)).argmax(1) == true
    assert 0 < gate < 1
    assert right.float().mean() >= (network.argmax(1) == true).float().mean()


def test_the_gate_stays_shut_where_answers_at_random_gain_macro_f1_over_the_commonest_class():
    draw = torch.Generator().manual_seed(0)
    true = (torch.rand(2000, generator=draw) < 0.2).long()
    task = classes_task(metrics=("macro_f1",), selection=("macro_f1", "max"))
    judged = judgement(true)
    commonest = torch.tensor([0.8, 0.2]).log().expand(2000, 2)
    at_random = commonest + 2 * torch.randn(2000, 2, generator=draw)
    answers = [evaluation.guessed(task, each, judged) for each in (commonest, at_random)]
    assert len({*answers[1].guess}) == 2
    assert task._strongest(dict(zip("cr", answers, strict=True))) == "r"
    assert evaluation._opened(task, at_random, commonest, judged) == 0


def test_a_run_that_starts_from_the_simple_method_says_which_answers_and_learns_as_it_does_without(
    configured, words
):
    options = {"data.dir": str(words), "training.max_steps": 4}
    without = launch.train(configured("Words", {**options, "run.name": "without"}))
    alone = launch.train(configured("Words", {**options, **STARTS, "run.name": "alone"}))
    assert "The gate is " in alone.report
    assert "'answer' is " in alone.report
    assert "gate" not in without.report
    plain, started = (
        load_file(Path("runs", name, "checkpoints/step-00000004/model.safetensors"))
        for name in ("without", "alone")
    )
    assert plain
    assert all(torch.equal(started[name], tensor) for name, tensor in plain.items())


@pytest.mark.parametrize("name", ["Heights", "Tags", "Topics"])
def test_every_other_kind_starts_and_has_the_simple_method_beside_the_answer(configured, name):
    summary = launch.train(configured(name, STARTS))
    rows = {row["method"]: row for row in rows_of(Path("runs/small/evaluation.csv"))}
    *_, network, answer = rows
    assert network == "network"
    assert answer == "answer"
    assert not summary.missing
    scores = {
        row: [value for key, value in columns.items() if key != "method" and "gain" not in key]
        for row, columns in rows.items()
    }
    beside = [scores[row] for row in rows if row not in (network, answer)]
    assert "The gate is open" in summary.report or scores[answer] in beside


def test_what_cannot_start_from_a_simple_method_is_refused_with_the_reason(configured):
    class Own(Words):
        def combined(self, model, outputs, part):
            return {}

    for make, why in (
        (lambda: Own(configured("Words", STARTS)), "not for Own, which has its own `combined`"),
        (
            lambda: Following(configured("Following", STARTS)),
            "not for Following, whose kind is 'next_tokens'",
        ),
    ):
        with pytest.raises(BadInput, match=why):
            make()
