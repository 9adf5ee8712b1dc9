"""Saving in the background, room on the disk, what is kept; and training that goes on when a save fails."""

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lib import checkpoint, launch
from lib.checkpoint import CheckpointNotSaved, retention
from lib.checkpoint.retention import Retention
from lib.checkpoint.saver import Saver
from lib.config import Checkpoint
from lib.errors import BadInput, TrainingFailed
from lib.launch.resume import find_checkpoint
from lib.machine import disk
from lib.machine.disk import Disk, held, remove_tree
from lib.report.metrics import read
from lib.report.summary import Summary
from lib.training.session import Session

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
    assert out.endswith("Training goes on.\n") and checkpoint.steps(tmp_path / "checkpoints") == [2]
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


# --- room -------------------------------------------------------------------------------------------------------------


def limited(monkeypatch, free, budget=None, number=None):
    here = SimpleNamespace(output_dir=Path("/nowhere"), output_bytes=budget, output_files=number)
    monkeypatch.setattr(retention.platform, "detect", lambda: here)
    monkeypatch.setattr(retention.shutil, "disk_usage", lambda path: SimpleNamespace(free=free()))


def big(value):
    return {"model": {"w": torch.full((250_000,), float(value))}}  # 1 MB


def test_a_full_disk_costs_no_checkpoint_and_says_what_is_needed(tmp_path, monkeypatch):
    saver = make(tmp_path / "run", keep_last=3)
    for step in (1, 2):
        saver.save("checkpoints", step, big(step), {})
        saver.wait()
    limited(monkeypatch, lambda: 500_000)
    saver = make(tmp_path / "run", keep_last=3)
    saver.save("checkpoints", 3, big(3), {})
    with pytest.raises(CheckpointNotSaved, match=r"step 3 .* needs 1\.1 MB, and 0\.5 MB are available in .*keep_last"):
        saver.wait()
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [1, 2]


@pytest.mark.parametrize("keep_last, left", [(2, [2, 3]), (1, [2, 3])])
def test_room_is_made_by_deleting_what_goes_anyway_but_never_the_last_good_one(tmp_path, monkeypatch, keep_last, left):
    folder = tmp_path / "run" / "checkpoints"
    for step in (1, 2):
        checkpoint.save(folder, step, big(step), {})
    limited(monkeypatch, lambda: 2_800_000 - held(folder)[0])
    saver = make(tmp_path / "run", keep_last=keep_last)
    saver.save("checkpoints", 3, big(3), {})
    saver.wait()
    assert checkpoint.steps(folder) == left
    limited(monkeypatch, lambda: 0)
    saver.save("checkpoints", 4, big(4), {})
    with pytest.raises(CheckpointNotSaved):
        saver.wait()
    assert checkpoint.load_newest(folder)[0].step == 3


def test_a_disk_that_cannot_be_asked_for_its_room_is_a_warning(tmp_path, monkeypatch):
    def broken(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    saver = make(tmp_path)
    monkeypatch.setattr(retention.shutil, "disk_usage", broken)
    saver.save("checkpoints", 1, weights(1), {})
    with pytest.raises(CheckpointNotSaved, match="step 1 was not saved: .*Input/output error"):
        saver.wait()
    monkeypatch.undo()
    monkeypatch.setattr(retention.checkpoint, "steps", broken)
    saver.save("checkpoints", 2, weights(2), {}, lambda: saver.retention.after_checkpoint(2, []))
    saver.wait()
    assert (tmp_path / "checkpoints" / "step-00000002").is_dir()


def test_an_old_good_checkpoint_is_not_deleted_for_room_when_the_newer_one_is_damaged(tmp_path, monkeypatch):
    folder = tmp_path / "run" / "checkpoints"
    for step in (1, 2):
        checkpoint.save(folder, step, big(step), {})
    (folder / "step-00000002" / "model.safetensors").write_bytes(b"")
    limited(monkeypatch, lambda: 100_000)
    saver = make(tmp_path / "run", keep_last=2)
    saver.save("checkpoints", 3, big(3), {})
    with pytest.raises(CheckpointNotSaved):
        saver.wait()
    assert checkpoint.load_newest(folder)[0].step == 1


def test_the_platforms_budget_counts_everything_in_the_output_folder(tmp_path, monkeypatch):
    limited(monkeypatch, lambda: 10**12, budget=2_500_000)
    saver = make(tmp_path / "run")
    saver.save("checkpoints", 1, big(1), {})
    saver.wait()
    (tmp_path / "other.bin").write_bytes(b"x" * 1_000_000)
    saver.save("checkpoints", 2, big(2), {})
    with pytest.raises(CheckpointNotSaved, match=f"available in {tmp_path}"):
        saver.wait()


# --- what is kept -----------------------------------------------------------------------------------------------------


def kept_after(folder, saved, best=(), **options):
    keeper = Retention(folder, Checkpoint(**options))
    for step in saved:
        checkpoint.save(folder / "checkpoints", step, weights(step), {})
        keeper.after_checkpoint(step, best)
    return checkpoint.steps(folder / "checkpoints")


def test_the_newest_are_kept_and_what_the_run_did_not_write_is_left(tmp_path):
    foreign = [tmp_path / "checkpoints" / name for name in ("mine", "step-00000000", "step-00000001.damaged")]
    for path in foreign:
        path.mkdir(parents=True)
    assert kept_after(tmp_path, [1, 2, 10], keep_last=2) == [0, 2, 10]
    assert all(path.is_dir() for path in foreign)


def test_a_run_taken_back_to_an_earlier_step_keeps_what_it_saves(tmp_path):
    assert kept_after(tmp_path, [20, 10], keep_last=1) == [10]


def test_a_budget_of_bytes_or_files_keeps_fewer_but_always_the_newest(tmp_path, monkeypatch):
    size = held(checkpoint.save(tmp_path / "probe", 1, weights(1), {}))[0]
    assert kept_after(tmp_path / "a", range(5), keep_last=4, keep_bytes=2 * size + 10) == [3, 4]
    assert kept_after(tmp_path / "b", range(5), keep_last=4, keep_bytes=1) == [4]
    limited(monkeypatch, lambda: 10**12, number=7)  # three files each
    assert kept_after(tmp_path / "c", range(5), keep_last=4) == [3, 4]


def test_the_best_folder_keeps_the_best_by_metric(toy, tmp_path):
    launch.train(toy({"checkpoint.keep_best": 2, "training.evaluate_every_steps": 2, "optimizer.lr": 0.05}))
    state = checkpoint.load_newest(tmp_path / "runs" / "toy" / "checkpoints")[0].state
    rows = read(tmp_path / "runs" / "toy" / "metrics.csv")
    scores = sorted((float(row["loss"]), int(row["step"])) for row in rows if row["split"] == "validation")
    assert [(best["value"], best["step"]) for best in state["kept_best"]] == scores[:2]
    assert checkpoint.steps(tmp_path / "runs" / "toy" / "best") == sorted(step for _, step in scores[:2])


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
    assert "are passed over" in out and "Testing the weights of step 12" in out


def test_a_run_whose_every_checkpoint_is_damaged_never_starts_from_0_in_silence(toy, tmp_path):
    launch.train(toy())
    folder = tmp_path / "runs" / "toy" / "checkpoints"
    for step in checkpoint.steps(folder):
        (checkpoint.path_of(folder, step) / "manifest.json").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"(?s)step-00000012 is damaged.*step-00000009 is damaged.*run\.name"):
            launch.train(toy({"training.max_steps": 15}))
    assert checkpoint.steps(folder) == [9, 12]


def test_a_damaged_checkpoint_is_set_aside_in_the_runs_own_folder_and_not_in_a_mount(toy, tmp_path, capsys):
    launch.train(toy())
    runs = tmp_path / "runs"
    (runs / "toy" / "checkpoints" / "step-00000012" / "state.json").write_bytes(b"{}")
    find_checkpoint(launch.prepare(toy({"run.resume_from": str(runs), "output_dir": "elsewhere"})))
    assert checkpoint.steps(runs / "toy" / "checkpoints") == [9, 12]
    assert find_checkpoint(launch.prepare(toy())).step == 9
    assert "It is kept as step-00000012.damaged." in capsys.readouterr().out
    assert checkpoint.steps(runs / "toy" / "checkpoints") == [9]


def test_leftovers_are_cleaned_when_a_run_starts(toy, tmp_path):
    folder = tmp_path / "runs" / "toy" / "checkpoints"
    (folder / "step-00000003.tmp").mkdir(parents=True)
    launch.train(toy())
    assert [p.name for p in sorted(folder.iterdir())] == ["step-00000009", "step-00000012"]


def test_the_save_that_went_on_in_the_background_is_reserved_for_at_the_end():
    clock = Session(None, 0, 0)
    clock.record("save", 10.0)
    assert clock.reserve("save") == 20.0
