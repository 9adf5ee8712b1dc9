"""Order is a pure function: nothing of it depends on history, workers or slots."""

import dataclasses
import os
import re
import signal

import pytest
import torch

from lib import launch, ranks
from lib.errors import TrainingFailed
from lib.machine import hardware
from lib.task import load_task
from lib.training import data
from lib.training.order import Order
from tests.training.test_step import run_in

pytestmark = pytest.mark.usefixtures("quick")


def batches(task, config, steps, workers):
    training_set = task.datasets()["train"]
    dealt = Order(len(training_set), config.seed, config.training.effective_batch, 2)
    options = dataclasses.replace(config.data, num_workers=workers)
    return [
        (step, [batch["x"] for batch in slots])
        for step, slots in data.train_batches(task, training_set, dealt, steps, options)
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_neither_order_nor_augmentation(toy, workers):
    task = load_task(toy())
    for (step, alone), (_, worked) in zip(
        batches(task, toy(), range(5), 0), batches(task, toy(), range(5), workers), strict=True
    ):
        for a, b in zip(alone, worked, strict=True):
            assert torch.equal(a, b), step


def test_steps_that_start_later_see_what_they_would_have_seen(toy):
    task = load_task(toy())
    late = batches(task, toy(), range(3, 5), 0)
    for (_, a), (_, b) in zip(batches(task, toy(), range(5), 0)[3:], late, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_micro_batches_cut_without_loss():
    batch = {"a": torch.arange(7), "b": torch.arange(14).view(7, 2)}
    cut = list(data.micro_batches(batch, 3))
    assert [data.size_of(part) for part in cut] == [3, 3, 1]
    assert torch.equal(torch.cat([part["b"] for part in cut]), batch["b"])


def test_a_subset_is_a_fixed_share_and_never_empty():
    assert len(data.subset(range(40), 0.25, 0)) == 10
    assert list(data.subset(range(40), 0.25, 0)) == list(data.subset(range(40), 0.25, 0))
    assert list(data.subset(range(40), 0.25, 0)) != list(data.subset(range(40), 0.25, 1))
    assert len(data.subset(range(3), 0.001, 0)) == 1
    assert data.subset(range(3), 1.0, 0) == range(3)


def test_a_data_set_can_choose_its_own_subset():
    class Documents(list):
        def subset(self, share, seed):
            return Documents(self[: round(share * len(self))])

    documents = Documents(range(40))
    assert data.subset(documents, "validate", 0) == list(range(8)) and data.subset(documents, 1.0, 0) is documents


# --- weighted sampling ------------------------------------------------------------------------------------------------


class Usage:
    free = 3 * 2**20


def test_shared_memory_that_is_too_small_means_fewer_workers_and_a_sentence(toy, monkeypatch):
    config = toy({"data.num_workers": 2, "data.prefetch_factor": 2})
    task = load_task(config)
    monkeypatch.setattr(hardware, "cpus", lambda: 8.0)
    assert data.limit_workers(task, None, 8, config.data) == (config.data, "")
    monkeypatch.setattr(data.shutil, "disk_usage", lambda _: Usage)
    slot = 40_000  # samples of 28 bytes, two slots: 2.1 MiB
    fitting, said = data.limit_workers(task, None, slot, config.data)
    assert fitting.num_workers == 1 and "/dev/shm has 3 MiB free, and a worker keeps up to 2 MiB" in said
    fitting, said = data.limit_workers(task, None, 10 * slot, config.data)
    assert fitting.num_workers == 0 and ": 0 load data" in said


def test_workers_beyond_the_cpus_are_left_out(toy, monkeypatch):
    config = toy({"data.num_workers": 8})
    monkeypatch.setattr(hardware, "cpus", lambda: 4.0)
    monkeypatch.setattr(ranks, "_here", ranks._Place(0, 2, 2))
    fitting, said = data.limit_workers(load_task(config), None, 8, config.data)
    assert fitting.num_workers == 2 and "4 CPUs serve 2 process(es): 2 load data" in said


def test_what_concerns_the_loader_reaches_it(toy, monkeypatch):
    asked = {}

    def loader(dataset, **options):
        asked.update(options)
        return []

    monkeypatch.setattr(data, "DataLoader", loader)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def options(**changes):
        config = toy({f"data.{key}": value for key, value in changes.items()})
        list(data.train_batches(load_task(config), range(8), Order(8, 0, 8, 1), range(0), config.data))
        return asked["pin_memory"], asked["prefetch_factor"]

    assert options(num_workers=2, prefetch_factor=3) == (True, 3)
    assert options(num_workers=2, pin_memory=False) == (False, 2)
    assert options(num_workers=0) == (True, None)


def test_a_containers_quota_limits_the_workers(small_container, toy):
    config = toy({"data.num_workers": 8})
    limited, notice = data.limit_workers(load_task(config), None, 8, config.data)
    assert limited.num_workers == 1 and "1.5 CPUs serve 1 process(es): 1 load data" in notice


def test_without_affinity_as_on_macos_the_default_number_of_workers_is_kept(toy, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    config = toy({"data.num_workers": 2})
    assert data.limit_workers(load_task(config), None, 8, config.data) == (config.data, "")


class Samples(list):
    """Training samples of which the last, in a loader's process, does what `do` says."""

    do = None

    def __getitem__(self, index):
        if index == len(self) - 1 and torch.utils.data.get_worker_info():
            self.do()
        return super().__getitem__(index)


def test_a_loader_worker_that_the_system_kills_is_reported_as_host_memory(toy, tmp_path, monkeypatch):
    samples = Samples(range(37))
    samples.do = lambda: os.kill(os.getpid(), signal.SIGKILL)
    sets = {"train": samples, "validation": range(5), "test": range(5)}
    config = toy({"data.num_workers": 1})
    with pytest.raises(TrainingFailed, match=r"At step \d+ the system killed.*RAM.*data.num_workers \(now 1"):
        run_in(tmp_path / "run", config, monkeypatch, datasets=lambda self: sets)


def test_an_error_inside_a_loader_worker_is_raised_as_it_is(toy, tmp_path, monkeypatch):
    samples = Samples(range(37))
    samples.do = lambda: 1 / 0
    sets = {"train": samples, "validation": range(5), "test": range(5)}
    with pytest.raises(ZeroDivisionError):
        run_in(tmp_path / "run", toy({"data.num_workers": 1}), monkeypatch, datasets=lambda self: sets)


@pytest.mark.parametrize(
    "sentence, words",
    [
        ("DataLoader worker (pid(s) 12, 13) exited unexpectedly", "RAM was full"),
        ("DataLoader worker (pid 12) is killed by signal: Killed. ", "RAM was full"),
        ("DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that", "/dev/shm.* is full"),
    ],
)
def test_every_sentence_of_torch_about_killed_workers_is_known(sentence, words):
    with pytest.raises(TrainingFailed, match=words), data.naming_killed_workers(lambda: 7, 2):
        raise RuntimeError(sentence)


def test_a_killed_worker_is_named_also_where_its_error_broke_something_else():
    """torch raises from a signal handler: inside Thread.start, say, which then trips over its own bookkeeping."""
    with pytest.raises(TrainingFailed, match="RAM was full"), data.naming_killed_workers(lambda: 7, 2):
        try:
            raise RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. ")
        except RuntimeError:
            raise KeyError("a thread")  # noqa: B904  as threading does


@pytest.mark.parametrize("sentence", ["anything", "DataLoader worker (pid 1) is killed by signal: Segmentation fault."])
def test_a_crash_in_a_worker_is_not_taken_for_memory(sentence):
    with pytest.raises(RuntimeError, match=re.escape(sentence)) as caught, data.naming_killed_workers(lambda: 7, 2):
        raise RuntimeError(sentence)
    assert not isinstance(caught.value, TrainingFailed)


def lost_connection(message=""):
    """A connection that breaks inside torch's loader."""
    code = compile(f"raise ConnectionResetError({message!r})", "site-packages/torch/utils/data/dataloader.py", "exec")
    exec(code)


def test_a_batch_that_a_dead_worker_still_owed_is_reported_as_host_memory(monkeypatch):
    waited = []
    monkeypatch.setattr(data.time, "sleep", waited.append)
    with pytest.raises(TrainingFailed, match="RAM was full"), data.naming_killed_workers(lambda: 7, 2):
        lost_connection()
    assert waited == [1.0]  # for torch's signal handler, whose error would come up elsewhere


@pytest.mark.parametrize("message", ["", "Caught ConnectionResetError in DataLoader worker process 0."])
def test_a_connection_that_the_data_set_lost_is_raised_as_it_is(message):
    with pytest.raises(ConnectionResetError), data.naming_killed_workers(lambda: 7, 2):
        if message:
            lost_connection(message)
        raise ConnectionResetError


def test_prefetch_reaches_the_loader(toy, monkeypatch):
    asked = []
    real = data.DataLoader
    monkeypatch.setattr(data, "DataLoader", lambda *a, **k: asked.append(k["prefetch_factor"]) or real(*a, **k))
    config = toy({"data.num_workers": 1, "data.prefetch_factor": 5, "training.max_steps": 1})
    launch.train(config)
    assert asked == [5]
