"""Optimizers and schedules beside AdamW and the cosine: torch's own numbers, the same after a kill, and planned."""

import pytest
import torch
from torch import nn

from lib.checkpoint import contents
from lib.errors import BadInput
from lib.planner import find_card
from lib.planner.trace import predict_task
from lib.task import load_task
from lib.training import optimization
from lib.training.groups import Group
from lib.training.sizes import saved_bytes
from lib.training.state import new_state
from tests.training.test_loop import StopAfter, fit, newest, same_tensors, stable

KINDS = {
    "sgd": {"optimizer.name": "sgd"},
    "sgd with nesterov": {"optimizer.name": "sgd", "optimizer.momentum": 0.8, "optimizer.nesterov": True},
    "sgd without momentum": {"optimizer.name": "sgd", "optimizer.momentum": 0},
}
SHAPES = [(4, 3), (2, 3, 3, 3), (40,), ()]
STATES = {"sgd without momentum": set()}


def built(config, shapes=SHAPES):
    """An optimizer of parameters of these shapes, and what torch itself would make of them."""
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    return optimization.build([Group(dict(zip("abcd", ours, strict=True)))], config), ours, theirs


def give_gradients(parameters, seed, without=()):
    """Gradients with zeros of both signs."""
    draw = torch.Generator().manual_seed(seed)
    for number, parameter in enumerate(parameters):
        kept = torch.rand(parameter.shape, generator=draw) > 0.3
        gradient = torch.randn(parameter.shape, generator=draw) * kept
        parameter.grad = None if number in without else gradient


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_those_of_torchs_own_optimizer_bit_for_bit(toy, kind):
    options = toy(KINDS[kind]).optimizer
    optimizer, ours, theirs = built(toy(KINDS[kind]))
    groups = [
        {"params": [p for p in theirs if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in theirs if p.dim() < 2], "weight_decay": 0.0},
    ]
    torchs = torch.optim.SGD(groups, options.lr, momentum=options.momentum, nesterov=options.nesterov)
    for seed in range(4):
        without = () if seed else (1,)  # one joins later
        give_gradients(ours, seed, without)
        give_gradients(theirs, seed, without)
        optimization.make_moments(optimizer)
        optimizer.step()
        torchs.step()
        for a, b in zip(ours, theirs, strict=True):
            mine, its = optimizer.state.get(a, {}), torchs.state.get(b, {})
            assert torch.equal(a, b) and mine.keys() == its.keys()
            for name, value in its.items():
                assert (value.dtype, value.shape) == (mine[name].dtype, mine[name].shape)
                assert value.flatten().numpy().tobytes() == mine[name].flatten().numpy().tobytes(), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_stopped_anywhere_ends_in_the_same_bytes_and_learns(toy, tmp_path, kind):
    config = toy({**KINDS[kind], "training.log_every_steps": 1, "training.max_steps": 8})
    fit(config, tmp_path / "whole")
    fit(config, tmp_path / "parts", StopAfter(3))
    saved = newest(tmp_path / "parts")
    contents.check(saved)
    fit(config, tmp_path / "parts", resume=saved)
    whole, parts = newest(tmp_path / "whole"), newest(tmp_path / "parts")
    assert all(same_tensors(whole.tensors[group], parts.tensors[group]) for group in ("model", "optimizer"))
    assert whole.state == parts.state
    assert stable(tmp_path / "whole" / "metrics.csv") == stable(tmp_path / "parts" / "metrics.csv")
    assert {key.partition("/")[0] for key in whole.tensors["optimizer"]} == STATES.get(kind, {"momentum_buffer"})
    rows = stable(tmp_path / "whole" / "metrics.csv")
    scores = [float(row["loss"]) for row in rows if row["split"] == "validation"]
    assert scores[-1] != scores[0]


@pytest.mark.parametrize("before, after", [("adamw", "sgd"), ("sgd", "adamw")])
def test_a_checkpoint_of_another_optimizer_says_that_its_states_begin_anew(toy, tmp_path, capsys, before, after):
    fit(toy({"optimizer.name": before}), tmp_path, StopAfter(5))
    saved = newest(tmp_path)
    assert "begins anew" not in capsys.readouterr().out
    outcome = fit(toy({"optimizer.name": after}), tmp_path, resume=saved)
    assert outcome.state.step == 12
    said = "The checkpoint is of another optimizer, which begins anew for 4 of 4 parameters."
    assert said in capsys.readouterr().out
    kinds = {key.partition("/")[0] for key in newest(tmp_path).tensors["optimizer"]}
    assert kinds == ({"momentum_buffer"} if after == "sgd" else {"step", "exp_avg", "exp_avg_sq"})


BYTES = {"adamw": 8, "sgd": 4, "sgd without momentum": 0}


@pytest.mark.parametrize("kind", BYTES)
def test_plan_and_preflight_count_the_bytes_that_each_optimizer_takes_a_parameter(toy, kind):
    config = toy(KINDS.get(kind, {}))
    task = load_task(config)
    task.model = lambda: nn.Sequential(nn.Linear(3, 1000), nn.Linear(1000, 1000), nn.Linear(1000, 1))
    planned = predict_task(task, config, find_card("t4"), 4, 1, 1).by_category
    parameters = sum(p.numel() for p in task.model().parameters())
    assert planned.get("optimizer", 0) / parameters == pytest.approx(BYTES[kind], abs=0.1)
    whole, model = saved_bytes(task, config)
    assert model == 4 * parameters and (whole - model) / parameters == pytest.approx(BYTES[kind], abs=0.1)
    assert optimization.copies(config) == 2 + round(BYTES[kind] / 4)


def test_what_does_not_go_together_is_refused(toy):
    with pytest.raises(BadInput, match="nesterov looks ahead along optimizer.momentum, which is 0"):
        toy({"optimizer.name": "sgd", "optimizer.momentum": 0, "optimizer.nesterov": True})


# --- schedules --------------------------------------------------------------------------------------------------------


def test_linear_falls_in_equal_steps_to_its_floor(toy):
    lengths = {"scheduler.warmup_steps": 2, "training.max_steps": 10, "scheduler.min_lr_ratio": 0.2}
    config = toy({"scheduler.name": "linear", "optimizer.lr": 1.0, **lengths})
    rates = [optimization.learning_rate(config, step) for step in range(11)]
    assert rates == pytest.approx([0.5, 1.0, *(1 - 0.1 * k for k in range(9))])


def test_state_of_the_default_optimizer_is_as_before(toy):
    state = new_state(load_task(toy()), toy())
    assert [group["weight_decay"] for group in state.optimizer.param_groups] == [0.01, 0.0]
    assert [[p.dim() for p in group["params"]] for group in state.optimizer.param_groups] == [[2, 2], [1, 1]]
