"""The plateau by hand, from its facts, and in a run."""

import json

import numpy as np
import pytest
import torch

from lib import checkpoint, launch
from lib.config import Config, Optimizer, Scheduler, Training
from lib.launch import smoke
from lib.report.metrics import read, series
from lib.task import load_task
from lib.training.optimization import Ema, Plateau, learning_rate, make_moments
from lib.training.state import new_state
from tests.checkpoint.test_weights import net

pytestmark = pytest.mark.usefixtures("quick")


def scheduled(direction="max", factor=0.5, patience=1, min_lr=0.0, lr=1.0):
    scheduler = Scheduler(name="plateau", factor=factor, patience=patience, min_lr=min_lr)
    training = Training(effective_batch=1, evaluate_every_steps=1)
    return Plateau(Config(task="toy", training=training, scheduler=scheduler, optimizer=Optimizer(lr=lr)), direction)


def test_the_rate_falls_after_more_evaluations_without_gain_than_patience_bears():
    plateau = scheduled("min", factor=0.1, patience=2, min_lr=0.05)
    values = [3, 2, 2, 2, 2, float("nan"), 2, 2, 1, 1]  # 2 is best from the second on; NaN is better than nothing
    lowered = [plateau.observe(value) for value in values]
    assert [number for number, fell in enumerate(lowered) if fell] == [4, 7]
    assert plateau.lr == 0.05 and plateau.facts() == {"lr": 0.05, "best": 1, "waited": 1}


@pytest.mark.parametrize("kind", ["noise", "never a number", "not a number at first"])
@pytest.mark.parametrize("direction", ["min", "max"])
def test_it_continues_from_its_facts_through_json(kind, direction):
    values = np.random.default_rng(0).standard_normal(60)
    values[: {"noise": 0, "never a number": 60, "not a number at first": 30}[kind]] = np.nan
    whole, first = scheduled(direction), scheduled(direction)
    for value in values[:25]:
        first.observe(value)
    second = scheduled(direction)
    second.load(json.loads(json.dumps(first.facts(), allow_nan=False)))
    lowered = [whole.observe(value) for value in values][25:]
    assert [second.observe(value) for value in values[25:]] == lowered and any(lowered)
    assert second.facts() == whole.facts()


def test_the_warm_up_comes_first_and_only_a_plateau_has_a_plateau(toy):
    config = toy({"scheduler.name": "plateau", "scheduler.warmup_steps": 4})
    found = Plateau(config, "min")
    assert [learning_rate(config, step, found) / 0.01 for step in (0, 1, 3, 4, 11)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    found.load({"lr": 0.002, "best": None, "waited": 0})
    assert learning_rate(config, 0, found) == 0.0005 and learning_rate(config, 11, found) == 0.002
    assert new_state(load_task(toy()), toy()).plateau is None


def test_a_run_lowers_its_learning_rate_says_so_and_keeps_it(toy, tmp_path, capsys):
    more = {"scheduler.patience": 0, "optimizer.lr": 0.3, "training.evaluate_every_steps": 1}
    config = toy({"scheduler.name": "plateau", "scheduler.warmup_steps": 0, "training.log_every_steps": 1, **more})
    run = launch.prepare(config)
    smoke.test(run)
    launch.train(run)
    rows = read(run.folder / "metrics.csv")
    ours = scheduled("min", patience=0, lr=0.3)
    rates = []
    for value in series(rows, "validation", "loss")[1]:
        rates.append(ours.lr)
        ours.observe(value)
    assert series(rows, "train", "lr")[1] == rates and len(set(rates)) > 2
    said = capsys.readouterr().out
    assert "loss has not improved for 1 validations; the learning rate goes from 0.3 to 0.15" in said
    saved = checkpoint.load_newest(run.folder / "checkpoints")[0].state["plateau"]
    assert saved == ours.facts()


def test_the_average_equals_its_formula_and_is_applied_only_inside():
    model = net()
    ema = Ema(model, 0.5)
    want = {name: value.detach().clone() for name, value in model.named_parameters()}
    for step in range(4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += step + 1
        ema.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, value in model.named_parameters():
            want[name] = decay * want[name] + (1 - decay) * value.detach()
    trained = {name: value.detach().clone() for name, value in model.named_parameters()}
    with ema.applied():
        assert all(torch.allclose(value, want[name]) for name, value in model.named_parameters())
    assert all(torch.equal(value, trained[name]) for name, value in model.named_parameters())


def test_applying_the_average_moves_no_number_and_keeps_every_tensor_that_others_hold():
    model = net()
    ema = Ema(model, 0.5)
    held, own = dict(ema.average), [parameter.data_ptr() for parameter in model.parameters()]
    with ema.applied():
        assert [p.data_ptr() for p in model.parameters()] == [value.data_ptr() for value in ema.average.values()]
    assert [parameter.data_ptr() for parameter in model.parameters()] == own
    assert all(ema.average[name] is value for name, value in held.items())


def test_moments_made_beforehand_are_the_ones_that_adamw_makes(toy):
    states = [new_state(load_task(toy()), toy()) for _ in range(2)]
    for state in states:
        for parameter in state.parameters[1:]:
            parameter.grad = torch.full_like(parameter, 0.1)
    make_moments(states[0].optimizer)
    for state in states:
        state.optimizer.step()
    ours, torchs = (state.optimizer.state_dict() for state in states)
    assert ours["state"].keys() == torchs["state"].keys() and len(ours["state"]) == 3
    for number, moments in torchs["state"].items():
        assert moments.keys() == ours["state"][number].keys()
        assert all(torch.equal(value, ours["state"][number][kind]) for kind, value in moments.items())
        assert all(value.dtype == ours["state"][number][kind].dtype for kind, value in moments.items())
    assert all(torch.equal(a, b) for a, b in zip(states[0].parameters, states[1].parameters, strict=True))
