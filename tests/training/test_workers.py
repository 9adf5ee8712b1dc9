"""What loads data in other processes is sent there whole, once, or not at all; and they end as they should."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.task import load_task
from lib.training import data, workers
from lib.training.order import Order
from tests.toy import Toy
from trainbook import launch

pytestmark = pytest.mark.usefixtures("quick")


class Given:
    """One sample: what `look` says about this object where it is asked."""

    def __init__(self, look, **attributes):
        self.look = look
        vars(self).update(attributes)

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.look(self)


def seen_by_a_worker(toy, dataset, monkeypatch):
    """The batch that a worker makes of it: the sample as it is."""
    config = toy({"data.num_workers": 1})
    task = load_task(config)
    task.collate = lambda samples, generator: samples[0]
    ((_, (batch,)),) = data.train_batches(task, dataset, Order(1, 0, 1, 1), range(1), config.data)
    return batch


def as_tensor(value):
    if isinstance(value, np.ndarray):
        value = np.array(value)
    return torch.as_tensor(value)


def test_arrays_tensors_and_code_arrive_as_they_were(toy, tmp_path, monkeypatch):
    np.save(tmp_path / "mapped.npy", np.arange(10_000).reshape(100, 100))
    mapped = np.load(tmp_path / "mapped.npy", mmap_mode="r")
    given = {
        "a slice of a mapped file": mapped[3:9, ::-2].T,
        "a view of it": np.asarray(mapped)[7],
        "a large array": np.arange(100_000.0)[1::2],
        "a large array by columns": np.asfortranarray(np.arange(90_000).reshape(300, 300)),
        "numbers NumPy has not": torch.arange(9, dtype=torch.bfloat16),
    }
    monkeypatch.setenv("A_VARIABLE", "set after the server had started")

    def look(self):
        assert isinstance(
            workers._place_of(self.given["a view of it"]), tuple
        )  # it is mapped there too
        self.given["a large array"][0] = self.given["a large array"][0]  # its own to write to
        assert os.environ["A_VARIABLE"].startswith("set")
        assert Path.cwd() == self.folder
        tensors = {name: as_tensor(value) for name, value in given.items()}
        return {**tensors, "process": torch.tensor([os.getpid(), os.getppid()])}

    batch = seen_by_a_worker(toy, Given(look, given=given, folder=tmp_path), monkeypatch)
    assert os.getpid() not in batch.pop("process")
    for name, value in given.items():
        assert torch.equal(batch[name], as_tensor(value))


def test_a_mapped_file_and_a_large_array_are_not_copied_for_each_worker(tmp_path):
    np.save(tmp_path / "mapped.npy", np.arange(100_000))
    mapped = np.load(tmp_path / "mapped.npy", mmap_mode="r")
    sent = workers.Sent({"mapped": mapped, "large": np.arange(100_000)}, "")
    assert len(sent.pickled) < 2000
    assert sent.pieces == [(0, 800_000)]


def test_what_a_notebook_defines_works_in_a_worker_and_no_cell_runs_there_again(toy, monkeypatch):
    cell = """
import torch

FACTOR = 3.0
runs.append(1)

def scaled(value):
    return FACTOR * value

class Base:
    def value(self, index):
        return float(index)

class Numbers(Base):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"x": torch.tensor([scaled(super().value(index) + 1)])}
"""
    notebook = {"__name__": "__main__", "runs": []}
    exec(cell, notebook)
    assert notebook["Numbers"].__module__ == "__main__"
    batch = seen_by_a_worker(toy, notebook["Numbers"](), monkeypatch)
    assert float(batch["x"]) == 3.0
    assert notebook["runs"] == [1]


class Locked(list):
    """Samples with something that belongs to one process."""

    def __init__(self, samples):
        super().__init__(samples)
        self.inner = {"lock": threading.Lock()}


class LockedToy(Toy):
    def datasets(self):
        return {**super().datasets(), "train": Locked(range(37))}


def test_a_data_set_that_cannot_be_sent_is_named_and_loaded_here(toy, capsys):
    alone = launch.train(toy())
    capsys.readouterr()
    locked = launch.train(
        toy({"data.num_workers": 2, "task": f"{__file__}:LockedToy", "run.name": "locked"})
    )
    said = capsys.readouterr().out
    assert (
        "data.num_workers is 2, but what loads the data cannot be sent to another process" in said
    )
    assert "the data set.inner: cannot pickle '_thread.lock' object" in said
    assert locked.metrics == alone.metrics
    assert locked.test_loss == alone.test_loss


def test_a_batch_comes_also_where_dev_shm_is_full(toy, monkeypatch, capsys):
    def look(self):
        def full(storage):
            raise RuntimeError(
                "unable to allocate shared memory(shm): No space left on device (28)"
            )

        torch.UntypedStorage._share_fd_cpu_ = full
        return {"x": torch.arange(9.0), "half": torch.ones(2, dtype=torch.bfloat16)}

    batch = seen_by_a_worker(toy, Given(look), monkeypatch)
    assert batch["x"].tolist() == [*range(9)]
    assert batch["half"].dtype is torch.bfloat16
    said = capsys.readouterr().out
    assert said.count("/dev/shm is full") == 1
    assert "RAM" not in said


def test_a_crash_of_a_worker_is_told_from_a_kill(toy, monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    with pytest.raises(
        RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: Segmentation fault"
    ):
        seen_by_a_worker(toy, Given(lambda self: os.kill(os.getpid(), signal.SIGSEGV)), monkeypatch)


def test_a_tasks_own_file_is_found_by_a_worker_from_another_folder(toy, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text(
        "from tests.toy import Toy\n\nclass Mine(Toy):\n"
        "    def collate(self, samples, generator):\n        return helper(super().collate(samples, generator))\n\n"
        "def helper(batch):\n    return {**batch, 'x': batch['x'] + 1}\n"
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    summaries = [
        launch.train(
            toy({"task": "mine.py:Mine", "data.num_workers": count, "run.name": f"with-{count}"})
        )
        for count in (0, 1)
    ]
    assert summaries[0].metrics == summaries[1].metrics
    assert summaries[0].test_loss == summaries[1].test_loss
