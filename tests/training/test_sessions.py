"""What must last over kills: the best weights, the samples of each epoch, and checkpoints on a mounted cloud drive."""

import errno
import math
import multiprocessing
import os
import stat
from collections import Counter

import pytest

from lib.machine import disk
from lib.task import load_task
from lib.training.session import Session
from tests.training.test_loop import fit, newest
from tests.training.test_workers import seen_by_a_worker
from trainbook import launch


class KilledAfter(Session):
    """Ends a session without a save after some steps, as a kill does."""

    def __init__(self, steps):
        super().__init__(None, 0, 0)
        self.steps = steps

    def decide(self, *facts):
        self.steps -= 1
        if not self.steps:
            raise KeyboardInterrupt
        return super().decide(*facts)


def in_sessions(config, folder, steps, make):
    """Trains in sessions that are killed after so many steps each, and once to the end; returns the end."""
    for number in steps:
        resume = newest(folder) if (folder / "checkpoints").exists() else None
        with pytest.raises(KeyboardInterrupt):
            fit(config, folder, KilledAfter(number), resume, make())
    return fit(config, folder, resume=newest(folder), task=make())


def test_the_best_weights_outlast_a_kill_and_worse_ones_and_nan(toy, tmp_path):
    config = toy(
        {"training.evaluate_every_steps": 2, "training.max_steps": 10, "checkpoint.every_steps": 1}
    )
    losses = {2: 1.0, 4: 0.5, 6: math.nan, 8: 3.0, 10: 0.7}

    def make():
        task = load_task(config)
        task.evaluate = lambda model, loader: {"loss": losses[task.step]}
        return task

    end = in_sessions(config, tmp_path, [5, 2], make)
    assert [(best["step"], best["value"]) for best in end.state.kept_best] == [(4, 0.5)]
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["step-00000004"]


def test_each_epoch_has_each_sample_once_over_three_kills(toy, tmp_path):
    options = {"workload.samples": 40, "training.max_steps": 15, "checkpoint.every_steps": 2}
    config = toy({**options, "training.evaluate_every_steps": 0})
    samples = {}

    def make():
        task = load_task(config)
        loss = task.loss

        def watched(model, batch):
            if model.training:
                samples[task.step] = batch["id"].int().tolist()
            return loss(model, batch)

        task.loss = watched
        return task

    assert in_sessions(config, tmp_path, [5, 4, 3], make).state.step == 15
    for epoch in range(3):
        seen = Counter(
            number for step in range(5 * epoch, 5 * epoch + 5) for number in samples[step]
        )
        assert seen == Counter(range(40))


class Drive(disk.Disk):
    """A mounted drive that refuses every third rename once."""

    renames = 0

    def rename(self, old, new):
        Drive.renames += 1
        if Drive.renames % 3 == 0:
            raise OSError(errno.EIO, "Input/output error")
        super().rename(old, new)


def test_a_drive_that_syncs_no_folder_and_fails_some_renames_keeps_checkpoints_and_says_so(
    toy, tmp_path, quick, monkeypatch, capsys
):
    sync = os.fsync

    def sync_files(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(handle)

    monkeypatch.setattr(os, "fsync", sync_files)
    monkeypatch.setattr(disk, "calls", Drive())
    summary = launch.train(toy({"checkpoint.every_steps": 1}))
    assert summary.reason == "completed"
    assert newest(tmp_path / "runs" / "toy").step == 12
    assert "Input/output error" in capsys.readouterr().out
    assert Drive.renames > 12


def test_workers_do_not_depend_on_the_start_method_that_a_notebook_or_python_chooses(
    toy, monkeypatch
):
    before = multiprocessing.get_start_method(allow_none=True)
    cell = {"__name__": "__main__"}
    code = "class Numbers(list):\n    def __getitem__(self, k):\n        return {'x': torch.tensor([double(k)])}\n"
    exec(f"import torch\ndouble = lambda value: 2.0 * (value + 1)\n{code}", cell)
    try:
        for method in ("forkserver", "spawn"):
            multiprocessing.set_start_method(method, force=True)
            batch = seen_by_a_worker(toy, cell["Numbers"](range(4)), monkeypatch)
            assert float(batch["x"]) == 2.0
    finally:
        multiprocessing.set_start_method(before, force=True)
