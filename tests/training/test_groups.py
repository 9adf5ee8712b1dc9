"""Groups of parameters: rates, weight decay and freezing by step, the same after a kill; mistakes are sentences."""

import itertools

import pytest
import torch
from torch import nn

from lib.errors import BadInput
from lib.task import Task, load_task
from lib.training import optimization
from lib.training.optimization import groups_of
from lib.training.state import new_state
from tests.training.test_loop import check_resume, fit, stable

HEAD = {"names": "blocks.3.*", "lr": 10.0, "weight_decay": 0.0}
BODY = {"names": ["blocks.0.*"], "from_step": 4, "until_step": 9, "lr": 0.5}


@pytest.fixture
def grouped(monkeypatch):
    """grouped(entry, ...): every task has these groups."""
    return lambda *entries: monkeypatch.setattr(
        Task, "parameter_groups", lambda self, model: entries
    )


def test_a_factor_and_a_weight_decay_of_its_own_give_what_torch_gives_with_them(toy, grouped):
    """The first match counts, and the rest is as configured: matrices decayed, vectors not."""
    grouped({"names": "*.bias", "lr": 3.0}, HEAD)
    config = toy({"optimizer.weight_decay": 0.5})
    state = new_state(load_task(config), config)
    optimization.set_learning_rate(state.optimizer, 0.01)
    expected = {}
    for name, parameter in state.model.named_parameters():
        parameter.grad = torch.randn_like(parameter)
        twin = nn.Parameter(parameter.detach().clone())
        twin.grad = parameter.grad.clone()
        lr, decay = 1.0, 0.5
        if name.endswith("bias"):
            lr, decay = 3.0, 0.0
        elif name.startswith("blocks.3"):
            lr, decay = 10.0, 0.0
        torch.optim.AdamW([twin], lr=0.01 * lr, weight_decay=decay).step()
        expected[name] = twin
    state.optimizer.step()
    assert all(torch.equal(value, expected[name]) for name, value in state.model.named_parameters())


def test_a_frozen_group_keeps_weights_and_moments(toy, tmp_path, grouped, monkeypatch):
    grouped(BODY, HEAD)
    config = toy({"optimizer.weight_decay": 0.5, "training.log_every_steps": 1})
    seen = []
    set_rate = optimization.set_learning_rate

    def watched(optimizer, value):
        """Copies weight and moments of the first two parameters, which are those of BODY."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        copies = []
        for parameter in parameters[:2]:
            moments = optimizer.state.get(parameter, {}).values()
            copies.append([parameter.detach().clone(), *map(torch.clone, moments)])
        seen.append(copies)
        set_rate(optimizer, value)

    monkeypatch.setattr(optimization, "set_learning_rate", watched)
    fit(config, tmp_path)
    rows = [row for row in stable(tmp_path / "metrics.csv") if row["split"] == "train"]
    base = [float(row["lr"]) for row in rows]
    assert len(base) == 12
    trained = range(4, 9)
    for step, (row, lr) in enumerate(zip(rows, base, strict=True)):
        assert float(row["lr_blocks.3"]) == pytest.approx(10 * lr)
        assert float(row["lr_blocks.0"]) == pytest.approx(0.5 * lr * (step in trained))
    for step, (before, after) in enumerate(itertools.pairwise(seen)):
        assert all(map(same, before, after)) == (step not in trained)
    assert [len(copies) for copies in seen[4]] == [1, 1], "no moments before its first step"


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    "overrides",
    [
        {"training.ema_decay": 0.9, "workload.dropout": 0.5, "training.micro_batch": 3},
        {"optimizer.name": "sgd", "optimizer.nesterov": True, "scheduler.name": "linear"},
    ],
)
def test_a_run_killed_while_groups_are_frozen_ends_in_the_same_bytes(
    toy, tmp_path, grouped, overrides
):
    grouped(BODY, HEAD)
    for cut in (4, 7):
        check_resume(toy({"training.log_every_steps": 1, **overrides}), tmp_path, cut)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"lr": 1.0}, "it has no names"),
        ({"names": "*", "rate": 1}, "rate is 1. Known are names"),
        ({"names": "*", "lr": float("nan")}, "lr is nan"),
        ({"names": ["blocks.0.*", "head.*"]}, "'head.*' matches no trained parameter"),
    ],
)
def test_a_mistake_in_a_group_is_named_with_its_entry(toy, grouped, entry, sentence):
    grouped(entry)
    with pytest.raises(BadInput, match=f"Toy.parameter_groups, entry 1: .*{sentence}"):
        new_state(load_task(toy()), toy())


def test_a_tied_weight_has_all_of_its_names_and_frozen_ones_no_group(toy):
    model = nn.Module()
    task = load_task(toy())
    model.embed = nn.Embedding(4, 3)
    model.head = nn.Linear(3, 4)
    model.base = nn.Linear(2, 2).requires_grad_(False)
    model.head.weight = model.embed.weight
    task.parameter_groups = lambda model: [{"names": "head.weight", "lr": 2.0}]
    groups = groups_of(task, model)
    assert [list(group.parameters) for group in groups] == [["embed.weight"], ["head.bias"]]
    assert groups[0].parameters["embed.weight"] is model.head.weight


def test_where_nothing_is_trained_is_a_sentence(toy, tmp_path, grouped):
    config = toy()
    task = load_task(config)
    frozen = task.model().requires_grad_(False)
    task.model = lambda: frozen
    with pytest.raises(
        BadInput, match=r"Toy.model\(\) .* in which nothing is trained: .*all of its 4 tensors"
    ):
        new_state(task, config)
    grouped({"names": "*", "until_step": 2})
    with pytest.raises(BadInput, match="The loss of step 2 has no gradient.*until_step"):
        fit(config, tmp_path / "frozen")
