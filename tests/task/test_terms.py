"""The mean of each loss term in an evaluation: of every player, whoever's turn it is when the evaluation is due."""

import pytest
import torch

from lib.errors import BadInput
from lib.task import Task, load_task
from lib.task.terms import steps_to_ask, turns
from tests.conftest import ROOT


@pytest.fixture
def gan(toy):
    def make(overrides=None):
        return load_task(toy({"task": f"{ROOT}/tests/gan.py:Gan", **(overrides or {})}))

    return make


@torch.no_grad()
def evaluated(task, step, batches):
    task.step = step
    scores = Task.evaluate(task, evaluated.model, batches)
    assert task.step == step
    return scores


@pytest.fixture
def cls(gan):
    return type(gan())  # a module of its own, as tasks in a file are


@pytest.fixture
def batches(gan):
    task = gan()
    torch.manual_seed(0)
    evaluated.model = task.model()
    return [task.collate(samples, torch.Generator()) for samples in ([0, 1, 2], [3, 4])]


def test_a_term_that_is_not_computed_in_the_step_at_hand_is_evaluated_in_a_step_of_its_player(gan, batches):
    both = evaluated(gan({"workload.both": True}), 6, batches)
    assert min(both["generator"], both["discriminator"]) > 0
    assert both["loss"] == both["generator"] + both["discriminator"]
    task = gan()
    for step in (0, 6, 7, task.config.training.max_steps):
        assert evaluated(task, step, batches) == both


def test_a_player_whose_turn_is_rare_and_that_is_counted_then_alone_is_evaluated(gan, cls, batches, monkeypatch):
    task = gan()
    want = evaluated(task, 0, batches)
    monkeypatch.setattr(cls, "player", lambda self, step: "generator" if step == 11 else "discriminator")
    real = cls.count
    monkeypatch.setattr(cls, "count", lambda self, batch: {(p := self.player(self.step)): real(self, batch)[p]})
    assert evaluated(task, 0, batches) == want


def test_terms_of_nobody_count_once_and_with_steps_for_all(gan, cls, batches, monkeypatch):
    task = gan({"workload.both": True})
    want = evaluated(task, 0, batches)
    monkeypatch.setattr(cls, "player", lambda self, step: ("generator", "discriminator", None)[step % 3])
    real, count = cls.loss, cls.count
    monkeypatch.setattr(cls, "count", lambda self, batch: {**count(self, batch), "shared": 2})
    shared = {"shared": torch.tensor(1.0)}
    monkeypatch.setattr(cls, "loss", lambda self, *given: ({**real(self, *given)[0], **shared}, {}))
    got = evaluated(task, 2, batches)
    assert got["shared"] == 0.5
    assert {name: got[name] for name in ("generator", "discriminator")} == {
        name: want[name] for name in ("generator", "discriminator")
    }


def test_a_term_that_is_never_computed_has_no_mean_and_a_loss_without_any_is_refused(gan, cls, batches, monkeypatch):
    monkeypatch.setattr(cls, "player", lambda self, step: None)
    real = cls.loss
    task = gan()
    monkeypatch.setattr(cls, "loss", lambda self, *given: ({"generator": real(self, *given)[0]["generator"]}, {}))
    scores = evaluated(task, 0, batches)
    assert scores.keys() == {"generator", "loss"} and scores["loss"] == scores["generator"]
    monkeypatch.setattr(cls, "loss", lambda *given: ({}, {}))
    with pytest.raises(BadInput, match="Gan.loss returns no term in evaluation mode"):
        evaluated(task, 0, batches)


def test_a_very_long_run_is_asked_for_some_steps_its_ends_and_those_at_hand_among_them(gan, cls, monkeypatch):
    assert list(steps_to_ask(5)) == [0, 1, 2, 3, 4]
    total = 10**9
    asked = steps_to_ask(total, 5 * 10**8)
    assert len(asked) < 200_000 and {0, 1, 2, 5 * 10**8, 5 * 10**8 + 1, total - 1} <= {*asked}
    task = gan({"training.max_steps": total})
    monkeypatch.setattr(cls, "player", lambda self, step: "generator" if step % 300 == 299 else "discriminator")
    task.step = 5 * 10**8
    assert turns(task) == {"discriminator": 5 * 10**8, "generator": 5 * 10**8 + 99}
