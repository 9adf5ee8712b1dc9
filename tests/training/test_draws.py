"""Draws from the generators that a process has anyway: functions of (seed, step, slot), and put back after."""

import random

import numpy as np
import pytest
import torch

from lib.task import load_task
from lib.training import data
from lib.training.evaluation import baseline_of, evaluate
from lib.training.order import Order
from lib.training.state import new_state
from tests.toy import Toy
from tests.training.test_loop import check_resume


def draw_of_three():
    """One number from each of the three generators, added."""
    return float(torch.rand(())) + random.random() + np.random.rand()


class Rows:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index, draw_of_three() + np.random.randn()


class Noisy(Toy):
    """Draws from all three generators in its data set and in collate."""

    def datasets(self):
        return {name: Rows(len(items)) for name, items in super().datasets().items()}

    def collate(self, samples, generator):
        batch = super().collate([index for index, _ in samples], generator)
        noise = torch.tensor([drawn for _, drawn in samples])
        noise = noise + torch.randn(len(samples)) + random.gauss(0, 1)
        return {**batch, "x": batch["x"] + noise[:, None]}


class Draws(Toy):
    """Draws in an evaluation and in the baseline."""

    def evaluate(self, model, loader):
        first = [float(torch.rand(())), np.random.rand(), random.random()]
        batches = [draw_of_three() for batch in loader]
        scores = {"loss": sum(batches)}
        scores |= {f"first_{n}": value for n, value in enumerate(first)}
        scores |= {f"batch_{n}": value for n, value in enumerate(batches)}
        return scores

    def baseline(self):
        return {"loss": draw_of_three()}


@pytest.fixture
def noisy(toy):
    return lambda **changes: toy({"task": f"{__file__}:Noisy", **changes})


def states():
    of_torch = torch.random.get_rng_state().tolist()
    name, keys, *rest = np.random.get_state()
    return of_torch, (name, keys.tolist(), *rest), random.getstate()


def disturb():
    """Draws an odd number of normal ones, of which two generators keep the next one aside."""
    torch.randn(3), np.random.randn(3), random.gauss(0, 1)


def batches(config, steps, workers=0):
    task = load_task(config)
    train_set = task.datasets()["train"]
    options = config.data.__class__(num_workers=workers)
    order = Order(len(train_set), config.seed, 8, 2)
    loaded = data.train_batches(task, train_set, order, steps, options)
    return [batch["x"] for _, slots in loaded for batch in slots]


def test_draws_of_any_kind_follow_from_step_and_slot(noisy):
    whole = torch.stack(batches(noisy(), range(4)))
    disturb()
    late = torch.stack(batches(noisy(), range(2, 4), workers=2))
    assert torch.equal(whole[4:], late)
    assert len(set(whole.flatten().tolist())) == whole.numel(), "no two slots draw the same numbers"
    assert not torch.equal(whole, torch.stack(batches(noisy(seed=1), range(4))))


def test_a_data_set_that_draws_from_all_three_resumes_to_the_same_bytes(noisy, tmp_path):
    check_resume(noisy(), tmp_path, 5, between=disturb)


def test_draws_of_an_evaluation_follow_from_its_step_and_samples_and_leave_no_trace(toy):
    config = toy({"task": f"{__file__}:Draws", "data.evaluation_batch": 4})
    task = load_task(config)
    state = new_state(task, config)

    def scores(dataset, step):
        state.step = step
        disturb()
        before = states()
        found = evaluate(state, task, config, dataset)
        assert states() == before
        return found

    once = scores(range(11), 3)
    again = scores(range(11), 3)
    assert once == again
    assert len(set(once.values())) == len(once) == 7
    longer = scores(range(17), 3)
    assert {**longer, **once, "loss": 0} == {**longer, "loss": 0}, "each batch by itself"
    assert not {*once.values()} & {*scores(range(11), 4).values()}
    baseline = baseline_of(load_task(config))
    disturb()
    before = states()
    assert baseline_of(load_task(config)) == baseline
    assert states() == before
