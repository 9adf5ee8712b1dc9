"""The gate between a network and a simple method: what validation surely shows, and no more."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.bench import bench_verdicts
from tests.trainbook.supervised.tasks import Tags
from trainbook.supervised import evaluation, gate, simple
from trainbook.supervised.scoring import Judged


def classes_task(**members):
    """A task of three classes that are as common in training, beside a simple method that has learned something."""
    task = Tags.__new__(Tags)
    simple = SimpleNamespace(name="linear model", is_constant=False)
    seen = {"classes of train": np.array([2, 1, 1])}
    known = {"kind": "classes", "balanced": False, "_simples": [simple], "_seen": seen, **members}
    vars(task).update(known)
    return task


def judgement(true, size=1):
    """What is judged where each `size` samples in a row are a group."""
    return Judged(true.numpy(), np.zeros(0), None, None, np.arange(len(true)) // size)


def opened(scores, start, true, size=1, **members):
    return gate.opened(classes_task(**members), scores, start, judgement(true, size)).gate


def one_hot(true, times, classes=3):
    return times * nn.functional.one_hot(true, classes).float()


@settings(derandomize=True, max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), size=st.integers(1, 4), units=st.integers(1, 30))
def test_the_gate_opens_where_validation_is_sure_and_never_for_noise_or_a_single_group(
    seed, size, units
):
    draw = torch.Generator().manual_seed(seed)
    true = torch.randint(3, (size * units,), generator=draw)
    begin = (torch.randn(len(true), 3, generator=draw) / 9).log_softmax(-1)
    noise, wrong, right = (
        opened(scores, begin, true, size)
        for scores in (begin, begin - one_hot(true, 9), begin + one_hot(true, 9))
    )
    assert noise == wrong == 0
    assert units <= 20 or right == 1
    assert units > 5 or right == 0, "five groups that agree may do so by chance"


def test_the_network_alone_answers_where_it_gains_and_else_a_share_of_it_that_does():
    draw = torch.Generator().manual_seed(0)
    true = torch.randint(3, (2000,), generator=draw)
    strong, weak, other = (
        one_hot(true, k) + torch.randn(2000, 3, generator=draw) for k in (3, 1, 1)
    )
    assert opened(strong, weak.log_softmax(-1), true) == 1
    each_errs_where_the_other_does_not = opened(other, weak.log_softmax(-1), true)
    assert 0 < each_errs_where_the_other_does_not < 1


def test_a_mixture_takes_the_place_of_a_network_that_it_is_surely_better_than():
    """A network that is better than the simple method, which knows a third of the samples that it errs in."""
    draw = torch.Generator().manual_seed(0)
    true = torch.randint(3, (3000,), generator=draw)
    network = one_hot(true, 1.5) + torch.randn(3000, 3, generator=draw)
    simple = one_hot(true, 1.2) + torch.randn(3000, 3, generator=draw)
    assert 0 < opened(network, simple, true) < 1


def test_a_share_that_would_silence_the_network_is_not_taken_from_a_method_no_better_than_a_constant():
    """It always says class 0 and is sure of it; half of it would make the network say that, too."""
    draw = torch.Generator().manual_seed(0)
    true = torch.randint(3, (300,), generator=draw)
    constant = torch.tensor([2.0, 0.0, 0.0]) + 0.1 * torch.randn(300, 3, generator=draw)
    network = one_hot(true, 1.0) + torch.randn(300, 3, generator=draw)
    members = {"metrics": ("macro_f1",), "selection": ("macro_f1", "max")}
    assert opened(network, constant, true, **members) == 1
    assert opened(network - one_hot(true, 2.0), constant, true, **members) == 0


def test_the_metric_alone_opens_the_gate_however_sure_a_network_is_of_its_errors():
    """A network that errs rarely, but then with a loss of 30: a coin has less."""
    draw = torch.Generator().manual_seed(0)
    true = torch.randint(2, (400,), generator=draw)
    right, wrong = (one_hot(of, 30.0, 2) for of in (true, 1 - true))
    network = torch.where(torch.rand(400, 1, generator=draw) < 0.1, wrong, right)
    coin = torch.randn(400, 2, generator=draw).log_softmax(-1)
    assert nn.functional.cross_entropy(network, true) > nn.functional.cross_entropy(coin, true)
    assert opened(network, coin, true) == 1


def test_the_gate_stays_shut_where_answers_at_random_gain_macro_f1_over_the_commonest_class():
    draw = torch.Generator().manual_seed(0)
    true = (torch.rand(2000, generator=draw) < 0.2).long()
    members = {"metrics": ("macro_f1",), "selection": ("macro_f1", "max")}
    task = classes_task(**members)
    judged = judgement(true)
    commonest = torch.tensor([0.8, 0.2]).log().expand(2000, 2)
    at_random = commonest + 2 * torch.randn(2000, 2, generator=draw)
    answers = [evaluation.guessed(task, each, judged) for each in (commonest, at_random)]
    assert len({*answers[1].guess}) == 2
    assert task._strongest(dict(zip("cr", answers, strict=True))) == "r"
    assert opened(at_random, commonest, true, **members) == 0


@pytest.mark.parametrize("seed", [70, 175, 779])
def test_few_units_open_it_to_a_network_that_is_surely_better_by_the_metric_whatever_its_loss(seed):
    """Experiments of the bench in which the loss of few samples shows nothing, and the metric does."""
    run = bench_verdicts.gated(seed)
    assert run["sure"]
    assert run["answer"] > run["network"] - 0.005 > run["simple"]


@pytest.mark.parametrize(("better", "metric"), [(1, "rmse"), (0, "rmse"), (1, "mape")])
def test_numbers_open_it_by_their_error_or_by_the_loss_where_that_follows_from_no_sums(
    better, metric
):
    draw = torch.Generator().manual_seed(0)
    true = 5 + torch.randn(200, generator=draw)
    near, far = (true + spread * torch.randn(200, generator=draw) for spread in (0.3, 1.0))
    network, simple = (near, far) if better else (far, near)
    members = {"kind": "numbers", "metrics": (metric,), "selection": (metric, "min")}
    found = opened(network, simple, true, **members)
    assert found >= 0.75 if better else found < 0.5


def test_noise_hardly_ever_opens_it_beside_the_mean_of_numbers():
    """Validations follow each other, so one in twenty is too many."""
    constant = SimpleNamespace(name="always the same", is_constant=True)
    members = {"kind": "numbers", "metrics": ("rmse",), "selection": ("rmse", "min")}
    mean = torch.zeros(60)
    found = []
    for seed in range(150):
        draw = torch.Generator().manual_seed(seed)
        true = torch.randn(60, generator=draw)
        network = 0.1 * torch.randn(60, generator=draw)
        found.append(opened(network, mean, true, _simples=[constant], **members))
    assert sum(gate > 0 for gate in found) <= 2


def test_a_gate_that_stays_shut_beside_a_gain_says_why():
    model = nn.Module()
    model.register_buffer(gate.LEAD, torch.tensor([0.2, 0.1, 0.3]))
    model.register_buffer(simple.GATE, torch.zeros(()))
    task = SimpleNamespace(_simple=SimpleNamespace(name="always the same"))
    said = gate.about(task, model)
    assert "+0.200 [+0.100, +0.300]" in said
    assert "may have learned nothing" in said
    assert "does not surely gain" not in said


@pytest.mark.parametrize(
    ("groups", "folds", "is_said"), [(4, 0, True), (10, 0, False), (4, 5, False)]
)
def test_few_groups_that_cannot_tell_are_said_with_what_compares_by_all(groups, folds, is_said):
    model = nn.Module()
    model.register_buffer(gate.LEAD, torch.tensor([0.28, -0.22, 0.64]))
    model.register_buffer(simple.GATE, torch.zeros(()))
    task = SimpleNamespace(
        _simple=SimpleNamespace(name="boosting"),
        _has_groups=True,
        _groups=lambda part: [f"{part} {number % groups}" for number in range(40)],
        _unit="site",
        config=SimpleNamespace(folds=SimpleNamespace(number=folds)),
    )
    said = gate.about(task, model)
    assert "does not surely gain" in said
    assert ("Only 4 sites validate, too few to tell: `folds: 5`" in said) == is_said
