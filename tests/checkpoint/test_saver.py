"""Saving in the background, and training that goes on when a save fails."""

import errno
import os
import threading

import pytest
import torch

from lib import checkpoint
from lib.checkpoint import CheckpointNotSaved
from lib.checkpoint.saver import Retention, Saver
from lib.config import Checkpoint
from lib.machine import disk
from lib.machine.disk import Disk

pytestmark = pytest.mark.usefixtures("quick")


def make(folder, **options):
    return Saver(folder, Retention(folder, Checkpoint(**options)))


def weights(value):
    return {
        "model": {"w": torch.full((100, 10), float(value)), "b": torch.full((3,), float(value))}
    }


def loaded(folder, step):
    return checkpoint.load(checkpoint.path_of(folder / "checkpoints", step))


class Gate(Disk):
    """A disk whose first write waits until it is opened."""

    def __init__(self):
        self.open, self.reached = threading.Event(), threading.Event()

    def write(self, handle, data, path):
        self.reached.set()
        assert self.open.wait(20)
        super().write(handle, data, path)


class Full(Disk):
    """A disk on which writing to a path that contains `part` fails."""

    def __init__(self, part, number=errno.ENOSPC):
        self.part = part
        self.number = number

    def write(self, handle, data, path):
        if self.part in str(path):
            raise OSError(self.number, os.strerror(self.number))
        super().write(handle, data, path)


@pytest.fixture
def gate(monkeypatch):
    gate = Gate()
    monkeypatch.setattr(disk, "calls", gate)
    yield gate
    gate.open.set()


def test_what_is_saved_is_what_was_there_when_save_was_called(tmp_path, gate):
    saver = make(tmp_path)
    tensors = weights(1)
    state = {"list": [1]}
    saver.save("checkpoints", 1, tensors, state)
    assert gate.reached.wait(20)
    tensors["model"]["w"].fill_(9)
    state["list"].append(2)
    assert checkpoint.steps(tmp_path / "checkpoints") == []
    gate.open.set()
    saver.wait()
    assert float(loaded(tmp_path, 1).tensors["model"]["w"][0, 0]) == 1
    assert loaded(tmp_path, 1).state["list"] == [1]


def test_best_weights_and_a_checkpoint_of_one_step_have_their_own_copies(tmp_path, gate):
    saver = make(tmp_path)
    tensors = weights(1)
    saver.save("best", 1, tensors, {})
    tensors["model"]["w"].fill_(2)
    saver.save(
        "checkpoints", 1, {**tensors, "optimizer": {"m": torch.ones(5)}}, {}
    )  # would block for ever
    gate.open.set()
    saver.wait()
    best = checkpoint.load(checkpoint.path_of(tmp_path / "best", 1))
    newest = loaded(tmp_path, 1)
    assert float(best.tensors["model"]["w"][0, 0]) == 1
    assert float(newest.tensors["model"]["w"][0, 0]) == 2
    assert newest.tensors.keys() == {"model", "optimizer"}


def test_a_failed_save_warns_at_the_next_one_and_raises_when_it_was_the_last(
    tmp_path, monkeypatch, capsys
):
    saver = make(tmp_path)
    monkeypatch.setattr(disk, "calls", Full("step-00000001"))
    saver.save("checkpoints", 1, weights(1), {})
    saver.save("checkpoints", 2, weights(2), {})
    saver.wait()
    out = capsys.readouterr().out
    assert "Warning: The checkpoint of step 1 was not saved" in out
    assert "No space left" in out
    assert out.endswith("Training continues.\n")
    assert checkpoint.steps(tmp_path / "checkpoints") == [2]
    monkeypatch.setattr(disk, "calls", Full("step-00000003", errno.EIO))
    saver.save("checkpoints", 3, weights(3), {})
    with pytest.raises(CheckpointNotSaved, match="step 3 was not saved.*Input/output error"):
        saver.wait()
    saver.wait()


def test_what_is_no_fault_of_the_disk_is_raised(tmp_path, monkeypatch):
    saver = make(tmp_path)
    monkeypatch.setattr(checkpoint, "write", lambda *_: 1 / 0)
    saver.save("checkpoints", 1, weights(1), {})
    with pytest.raises(ZeroDivisionError):
        saver.save("checkpoints", 2, weights(1), {})
