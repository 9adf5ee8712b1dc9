"""The plateau against torch's, and in a run."""

import math

import numpy as np
import pytest
import torch

from lib import checkpoint, launch
from lib.errors import BadInput
from lib.launch import smoke
from lib.report.metrics import read, series
from lib.training.optimization import Plateau, learning_rate, plateau


def values(kind):
    rng = np.random.default_rng(len(kind))
    steps = np.arange(60)
    return {
        "falling": 1 / (1 + steps),
        "rising": np.tanh(steps / 20),
        "noise": rng.standard_normal(60),
        "noise above 0": 1 + 0.1 * rng.random(60),
        "nearly the same": 0.5 + 3e-5 * rng.random(60),
        "levelling off": np.exp(-steps / 5) + 0.01 * rng.random(60),
        "not a number": np.where(rng.random(60) < 0.5, np.nan, -steps),
        "never a number": np.full(60, np.nan),
    }[kind]


@pytest.mark.parametrize("direction", ["min", "max"])
@pytest.mark.parametrize("factor, patience, min_lr", [(0.5, 5, 1e-6), (0.5, 0, 0.0), (0.1, 2, 1e-4), (0.9, 1, 5e-4)])
@pytest.mark.parametrize(
    "kind",
    ["falling", "rising", "noise", "noise above 0", "nearly the same", "levelling off", "not a number",
     "never a number"],
)  # fmt: skip
def test_every_step_is_that_of_torch(direction, factor, patience, min_lr, kind):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=5e-4)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, direction, factor, patience, min_lr=min_lr)
    ours = Plateau(direction, factor, patience, min_lr, 5e-4)
    for value in values(kind):
        theirs.step(float(value))
        ours.observe(float(value))
        assert ours.lr == optimizer.param_groups[0]["lr"] and ours.waited == theirs.num_bad_epochs
        assert ours.best == (theirs.best if math.isfinite(theirs.best) else None)


def test_it_goes_on_from_its_facts():
    noise = values("noise")
    whole, first = (Plateau("max", 0.5, 1, 0.0, 1.0) for _ in range(2))
    for value in noise[:25]:
        first.observe(value)
    second = Plateau("max", 0.5, 1, 0.0, 1.0)
    second.load(first.facts())
    lowered = [whole.observe(value) for value in noise][25:]
    assert [second.observe(value) for value in noise[25:]] == lowered and any(lowered) and second == whole


def test_the_warm_up_comes_first_and_only_a_plateau_has_a_plateau(toy):
    config = toy({"scheduler.name": "plateau", "scheduler.warmup_steps": 4})
    found = plateau(config, "min")
    assert [learning_rate(config, step, found) / 0.01 for step in (0, 1, 3, 4, 11)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    found.lr = 0.002
    assert learning_rate(config, 0, found) == 0.0005 and learning_rate(config, 11, found) == 0.002
    assert plateau(toy(), "min") is None


def test_a_plateau_without_evaluations_is_refused(toy):
    with pytest.raises(BadInput, match="A plateau is found by evaluations, and there is only one, at the end"):
        toy({"scheduler.name": "plateau", "training.evaluate_every_steps": 0})
    overrides = {"training.evaluate_every_steps": 0, "training.evaluate_every_epochs": 1}
    assert toy({"scheduler.name": "plateau", **overrides}).scheduler.factor == 0.5


def test_a_run_lowers_its_learning_rate_says_so_and_keeps_it(toy, tmp_path, capsys):
    more = {"scheduler.patience": 0, "optimizer.lr": 0.3, "training.evaluate_every_steps": 1}
    config = toy({"scheduler.name": "plateau", "scheduler.warmup_steps": 0, "training.log_every_steps": 1, **more})
    run = launch.prepare(config)
    smoke.test(run)
    launch.train(run)
    rows = read(run.folder / "metrics.csv")
    ours = Plateau("min", 0.5, 0, 0.0, 0.3)
    rates = []
    for value in series(rows, "validation", "loss")[1]:
        rates.append(ours.lr)
        ours.observe(value)
    assert series(rows, "train", "lr")[1] == rates and len(set(rates)) > 2
    said = capsys.readouterr().out
    assert "loss has not become better for 1 validations; the learning rate goes from 0.3 to 0.15" in said
    saved = checkpoint.load_newest(run.folder / "checkpoints")[0].state["plateau"]
    assert saved == ours.facts()


def test_a_ramp_in_epochs_reaches_the_task_in_steps(toy, tmp_path):
    (tmp_path / "ramped.py").write_text(
        "from dataclasses import dataclass\n"
        "from lib.tasks.glacier.losses import weights\n"
        "from lib.tasks.glacier.settings import Loss\n"
        "from tests.toy import Settings, Toy\n"
        "@dataclass(frozen=True)\n"
        "class WithLoss(Settings):\n"
        "    loss: Loss = Loss(boundary=0.2)\n"
        "class Ramped(Toy):\n"
        "    Settings = WithLoss\n"
        "    def term_weights(self, step):\n"
        "        return weights(self.config.workload.loss, step)\n"
    )
    run = launch.prepare(toy({"task": f"{tmp_path / 'ramped.py'}:Ramped", "workload.loss.ramp_epochs": 2}))
    assert run.config.workload.loss.ramp_steps == math.ceil(2 * 37 / 8)
    assert [run.task.term_weights(step)["boundary"] for step in (0, 5, 10, 99)] == pytest.approx([0, 0.1, 0.2, 0.2])
