"""Saving in the background, and training that goes on when a save fails."""

import errno
import itertools
import os
import threading

import pytest
import torch

from lib import checkpoint, launch
from lib.checkpoint import CheckpointNotSaved
from lib.checkpoint.retention import Retention
from lib.checkpoint.saver import Saver
from lib.config import Checkpoint
from lib.errors import TrainingFailed
from lib.machine import disk
from lib.machine.disk import Disk, remove_tree
from lib.report.summary import Summary

pytestmark = pytest.mark.usefixtures("quick")

KEEP = Checkpoint()


def make(folder, **options):
    return Saver(folder, Retention(folder, Checkpoint(**options)))


def weights(value):
    return {"model": {"w": torch.full((100, 10), float(value)), "b": torch.full((3,), float(value))}}


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
        self.part, self.number = part, number

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


# --- in the background ------------------------------------------------------------------------------------------------


def test_what_is_saved_is_what_was_there_when_save_was_called(tmp_path, gate):
    saver, tensors, state = make(tmp_path), weights(1), {"list": [1]}
    saver.save("checkpoints", 1, tensors, state)
    assert gate.reached.wait(20)
    tensors["model"]["w"].fill_(9)
    state["list"].append(2)
    assert checkpoint.steps(tmp_path / "checkpoints") == []
    gate.open.set()
    saver.wait()
    assert float(loaded(tmp_path, 1).tensors["model"]["w"][0, 0]) == 1 and loaded(tmp_path, 1).state["list"] == [1]


def test_a_second_save_waits_for_the_first_and_uses_its_buffers(tmp_path, gate):
    saver = make(tmp_path)
    saver.save("checkpoints", 1, weights(1), {})
    addresses = {key: value.data_ptr() for key, value in saver._buffers.items()}
    threading.Timer(0.2, gate.open.set).start()
    saver.save("checkpoints", 2, weights(2), {})
    assert checkpoint.steps(tmp_path / "checkpoints")[:1] == [1]
    saver.wait()
    assert {key: value.data_ptr() for key, value in saver._buffers.items()} == addresses
    assert [float(loaded(tmp_path, n).tensors["model"]["w"][0, 0]) for n in (1, 2)] == [1, 2]


def test_best_weights_and_the_checkpoint_of_a_step_share_one_copy_without_waiting(tmp_path, gate):
    saver, tensors = make(tmp_path), weights(1)
    saver.save("best", 1, tensors, {})
    saver.save("checkpoints", 1, {**tensors, "optimizer": {"m": torch.ones(5)}}, {})  # would block for ever
    gate.open.set()
    saver.wait()
    assert checkpoint.steps(tmp_path / "best") == checkpoint.steps(tmp_path / "checkpoints") == [1]
    assert loaded(tmp_path, 1).tensors.keys() == {"model", "optimizer"}


@pytest.mark.parametrize("change", ["in place", "another tensor", "freed memory"])
def test_weights_that_changed_within_a_step_are_never_taken_for_the_copied_ones(tmp_path, gate, change):
    saver, tensors = make(tmp_path), weights(1)
    saver.save("best", 1, tensors, {})
    threading.Timer(0.2, gate.open.set).start()
    if change == "in place":
        tensors["model"]["w"].fill_(2)
    elif change == "another tensor":
        tensors = weights(2)
    else:
        tensors = None  # the allocator will likely hand out the same address again
        tensors = weights(2)
    saver.save("checkpoints", 1, tensors, {})
    saver.wait()
    assert float(loaded(tmp_path, 1).tensors["model"]["w"][0, 0]) == 2
    best = checkpoint.load(checkpoint.path_of(tmp_path / "best", 1))
    assert float(best.tensors["model"]["w"][0, 0]) == 1


def test_prepared_buffers_are_the_ones_that_are_used(tmp_path):
    saver = make(tmp_path)
    saver.prepare(weights(1))
    saver.wait()
    addresses = {key: value.data_ptr() for key, value in saver._buffers.items()}
    saver.prepare(weights(1))
    saver.save("checkpoints", 1, weights(3), {})
    saver.wait()
    assert addresses and addresses == {key: value.data_ptr() for key, value in saver._buffers.items()}
    assert float(loaded(tmp_path, 1).tensors["model"]["w"][0, 0]) == 3


def test_tensors_of_another_shape_get_buffers_of_their_own(tmp_path):
    saver = make(tmp_path)
    saver.save("checkpoints", 1, weights(1), {})
    saver.save("checkpoints", 2, {"model": {"w": torch.ones(2, dtype=torch.int64)}}, {})
    saver.wait()
    assert loaded(tmp_path, 2).tensors["model"]["w"].tolist() == [1, 1] and "b" not in loaded(tmp_path, 2).tensors


def test_a_failed_save_warns_at_the_next_one_and_raises_when_it_was_the_last(tmp_path, monkeypatch, capsys):
    saver = make(tmp_path)
    monkeypatch.setattr(disk, "calls", Full("step-00000001"))
    saver.save("checkpoints", 1, weights(1), {})
    saver.save("checkpoints", 2, weights(2), {})
    saver.wait()
    out = capsys.readouterr().out
    assert "Warning: The checkpoint of step 1 was not saved" in out and "No space left" in out
    assert out.endswith("Training continues.\n") and checkpoint.steps(tmp_path / "checkpoints") == [2]
    monkeypatch.setattr(disk, "calls", Full("step-00000003", errno.EIO))
    saver.save("checkpoints", 3, weights(3), {})
    with pytest.raises(CheckpointNotSaved, match="step 3 was not saved.*Input/output error"):
        saver.wait()
    saver.wait()


def test_an_error_that_passes_costs_nothing(tmp_path, monkeypatch):
    faulty = Full("model.safetensors", errno.EIO)
    monkeypatch.setattr(disk, "calls", faulty)
    original = remove_tree
    monkeypatch.setattr(disk, "remove_tree", lambda path: (setattr(faulty, "part", "nothing"), original(path)))
    saver = make(tmp_path)
    saver.save("checkpoints", 1, weights(1), {})
    saver.wait()
    assert checkpoint.load_newest(tmp_path / "checkpoints")[0].step == 1 and faulty.part == "nothing"


def test_what_is_no_fault_of_the_disk_is_raised(tmp_path, monkeypatch):
    saver = make(tmp_path)
    monkeypatch.setattr(checkpoint, "write", lambda *_: 1 / 0)
    saver.save("checkpoints", 1, weights(1), {})
    with pytest.raises(ZeroDivisionError):
        saver.save("checkpoints", 2, weights(1), {})


def test_the_clock_is_told_how_long_the_whole_save_took(tmp_path, gate):
    told = []
    saver = Saver(tmp_path, Retention(tmp_path, KEEP), told.append)
    saver.save("checkpoints", 1, weights(1), {})
    threading.Timer(0.3, gate.open.set).start()
    saver.wait()
    assert len(told) == 1 and told[0] > 0.25


# --- in a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_training_goes_on_when_a_save_fails_and_ends_the_same(toy, tmp_path, monkeypatch, capsys, number):
    launch.train(toy({"output_dir": str(tmp_path / "whole")}))
    monkeypatch.setattr(disk, "calls", Full("checkpoints/step-00000006", number))
    assert launch.train(toy()).reason == "completed"
    assert "Warning: The checkpoint of step 6 was not saved" in capsys.readouterr().out
    assert checkpoint.steps(tmp_path / "runs" / "toy" / "checkpoints") == [9, 12]
    one, other = (checkpoint.path_of(tmp_path / n / "toy" / "checkpoints", 12) for n in ("whole", "runs"))
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_a_last_save_that_fails_is_an_error_that_says_so_and_running_again_mends_it(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "calls", Full("checkpoints/step-00000012"))
    with pytest.raises(TrainingFailed, match=r"step 12 was not saved.*the last save of the session"):
        launch.train(toy())
    assert Summary.read(tmp_path / "runs" / "toy").step == 9
    monkeypatch.setattr(disk, "calls", Disk())
    assert launch.train(toy()).step == 12


def test_best_weights_that_could_not_be_saved_end_no_run(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(disk, "calls", Full("/best/"))
    assert launch.train(toy()).reason == "completed"
    out = capsys.readouterr().out
    assert "are skipped" in out and "Testing the weights of step 12" in out




# --- memory that runs out ---------------------------------------------------------------------------------------------


def full_memory(monkeypatch, *calls):
    """These calls of Tensor.copy_ raise, as where there is no memory for a copy."""
    original, count = torch.Tensor.copy_, itertools.count(1)

    def copy(self, *arguments, **more):
        if next(count) in calls:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        return original(self, *arguments, **more)

    monkeypatch.setattr(torch.Tensor, "copy_", copy)


def test_a_copy_for_which_memory_runs_out_once_is_made_again(tmp_path, monkeypatch):
    full_memory(monkeypatch, 2)
    saver = make(tmp_path)
    saver.save("checkpoints", 1, weights(1), {})
    saver.wait()
    assert all(float(value.unique()) == 1 for value in loaded(tmp_path, 1).tensors["model"].values())


def test_a_save_for_which_there_is_no_memory_is_left_out_with_a_warning(tmp_path, monkeypatch, capsys):
    full_memory(monkeypatch, 1, 2)
    saver = make(tmp_path)
    saver.save("checkpoints", 1, weights(1), {})
    saver.save("checkpoints", 2, weights(2), {})
    saver.wait()
    warning = "Warning: The checkpoint of step 1 was not saved: there was no memory for a copy of it."
    assert warning in capsys.readouterr().out and checkpoint.steps(tmp_path / "checkpoints") == [2]
    assert all(float(value.unique()) == 2 for value in loaded(tmp_path, 2).tensors["model"].values())


def test_a_last_save_for_which_there_is_no_memory_is_an_error_of_the_session(tmp_path, monkeypatch):
    full_memory(monkeypatch, 1, 2)
    saver = make(tmp_path)
    saver.save("checkpoints", 1, weights(1), {})
    with pytest.raises(TrainingFailed, match="no memory for a copy .* was the last save of the session"):
        saver.finish()


def test_buffers_that_cannot_be_prepared_are_made_by_the_save(tmp_path, monkeypatch, capfd):
    original = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
    saver = make(tmp_path)
    saver.prepare(weights(1))
    saver.wait()
    monkeypatch.setattr(torch, "empty", original)
    saver.save("checkpoints", 1, weights(1), {})
    saver.wait()
    assert checkpoint.steps(tmp_path / "checkpoints") == [1] and "Traceback" not in capfd.readouterr().err
