"""Order is a pure function: nothing of it depends on history, workers or slots."""

import dataclasses
import os
import signal
import sys
import time

import pytest
import torch

from lib import ranks
from lib.machine import hardware
from lib.task import load_task
from lib.training import data
from lib.training.order import Order
from lib.training.session import Session
from tests.toy import Toy
from tests.training.test_loop import fit, newest
from tests.training.test_step import run_in

pytestmark = pytest.mark.usefixtures("quick")


def test_a_subset_is_a_fixed_share_and_never_empty():
    assert len(data.subset(range(40), 0.25, 0)) == 10
    assert list(data.subset(range(40), 0.25, 0)) == list(data.subset(range(40), 0.25, 0))
    assert list(data.subset(range(40), 0.25, 0)) != list(data.subset(range(40), 0.25, 1))
    assert len(data.subset(range(3), 0.001, 0)) == 1
    assert data.subset(range(3), 1.0, 0) == range(3)


def test_workers_beyond_the_cpus_are_left_out(toy, monkeypatch):
    config = toy({"data.num_workers": 8})
    monkeypatch.setattr(hardware, "cpus", lambda: 4.0)
    monkeypatch.setattr(ranks, "_here", ranks._Place(0, 2, 2))
    notes = []
    assert data.limit_workers(load_task(config), None, config.data, notes.append).num_workers == 2
    assert len(notes) == 1
    assert "4 CPUs serve 2 process(es): 2 load data" in notes[0]


def test_a_batch_whose_values_share_memory_can_be_pinned(toy, monkeypatch):
    def pinned(batch):
        """As torch does, which refuses a copy into memory that several values share."""
        return {
            name: torch.empty_strided(v.size(), v.stride()).copy_(v) for name, v in batch.items()
        }

    class Expanded(Toy):
        def collate(self, samples, generator):
            batch = super().collate(samples, generator)
            return {**batch, "same": torch.rand(1, 3, generator=generator).expand(len(samples), 3)}

    monkeypatch.setattr(data, "_pinned", pinned)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    task = Expanded(toy())
    options = toy().data
    ((_, (batch,)),) = data.train_batches(
        task, task.datasets()["train"], Order(8, 0, 8, 1), range(1), options
    )
    assert torch.equal(batch["same"], batch["same"][:1].expand(8, 3))


class Samples(list):
    """Training samples of which the last, in a loader's process, does what `do` says."""

    do = None

    def __getitem__(self, index):
        if index == len(self) - 1 and torch.utils.data.get_worker_info():
            self.do()
        return super().__getitem__(index)


@pytest.mark.parametrize("number, why", [(signal.SIGKILL, "RAM"), (signal.SIGBUS, "shm")])
def test_what_a_lost_worker_owed_is_made_by_fewer_workers_with_the_same_bits(toy, number, why):
    samples = Samples(range(37))
    said = []
    samples.do = lambda: os.kill(os.getpid(), number)
    order = Order(37, 0, 8, 2)
    task = load_task(toy())
    options = dataclasses.replace(toy().data, num_workers=2)
    loaded = data.train_batches(task, samples, order, range(9), options, note=said.append)
    alone = data.train_batches(task, range(37), order, range(9), toy().data)
    for (_, ours), (_, theirs) in zip(loaded, alone, strict=True):
        assert all(torch.equal(a["x"], b["x"]) for a, b in zip(ours, theirs, strict=True))
    assert len(said) == 2
    assert all(why in line for line in said)
    assert "data.num_workers is 1" in said[0]
    assert "data.num_workers is 0" in said[1]


def test_a_batch_that_never_comes_does_not_hold_the_deadline(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "_SLICE", 0.1)
    monkeypatch.setattr(
        torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1
    )  # after it a worker is ended
    config = toy({"data.num_workers": 1, "checkpoint.every_steps": 0})
    samples = Samples(range(37))
    late = []
    samples.do = lambda: time.sleep(600)
    sets = {"train": samples, "validation": range(5), "test": range(5)}
    monkeypatch.setattr(type(load_task(config)), "datasets", lambda self: sets)

    class Late(Session):
        def stop_reason(self, evaluates_next=False):
            late.append(sys._getframe(1).f_code.co_name)
            if late[-1] != "decide" and "decide" in late:
                return "deadline"
            return None

    outcome = fit(config, tmp_path / "run", Late(None, 0, 0))
    assert outcome.reason == "deadline"
    assert outcome.state.step == newest(tmp_path / "run").step
    assert 0 < outcome.state.step < config.training.max_steps


def test_an_error_inside_a_loader_worker_is_raised_as_it_is(toy, tmp_path, monkeypatch):
    samples = Samples(range(37))
    samples.do = lambda: 1 / 0
    sets = {"train": samples, "validation": range(5), "test": range(5)}
    with pytest.raises(ZeroDivisionError):
        run_in(
            tmp_path / "run", toy({"data.num_workers": 1}), monkeypatch, datasets=lambda self: sets
        )
