"""Room on the disk, and which checkpoints are kept."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lib import checkpoint
from lib.checkpoint import CheckpointNotSaved, saver
from lib.checkpoint.saver import Retention
from lib.config import Checkpoint
from lib.machine.disk import held
from tests.checkpoint.test_saver import make, weights

pytestmark = pytest.mark.usefixtures("quick")


def limited(monkeypatch, free, number=None):
    here = SimpleNamespace(output_dir=Path("/nowhere"), output_bytes=None, output_files=number)
    monkeypatch.setattr(saver.platform, "detect", lambda: here)
    monkeypatch.setattr(saver.shutil, "disk_usage", lambda path: SimpleNamespace(free=free()))


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
    with pytest.raises(
        CheckpointNotSaved,
        match=r"step 3 .* needs 1\.1 MB, and 0\.5 MB are available in .*keep_last",
    ):
        saver.wait()
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [1, 2]


def test_room_is_made_by_deleting_what_goes_anyway_but_never_the_last_good_one(
    tmp_path, monkeypatch
):
    folder = tmp_path / "run" / "checkpoints"
    for step in (1, 2):
        checkpoint.save(folder, step, big(step), {})
    limited(monkeypatch, lambda: 2_800_000 - held(folder)[0])
    saver = make(tmp_path / "run", keep_last=1)
    saver.save("checkpoints", 3, big(3), {})
    saver.wait()
    assert checkpoint.steps(folder) == [2, 3]
    limited(monkeypatch, lambda: 0)
    saver.save("checkpoints", 4, big(4), {})
    with pytest.raises(CheckpointNotSaved):
        saver.wait()
    assert checkpoint.load_newest(folder)[0].step == 3


def test_an_old_good_checkpoint_is_not_deleted_for_room_when_the_newer_one_is_damaged(
    tmp_path, monkeypatch
):
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


def kept_after(folder, saved, **options):
    keeper = Retention(folder, Checkpoint(**options))
    for step in saved:
        checkpoint.save(folder / "checkpoints", step, weights(step), {})
        keeper.after_checkpoint(step, ())
    return checkpoint.steps(folder / "checkpoints")


def test_the_newest_are_kept_and_what_the_run_did_not_write_is_left(tmp_path):
    foreign = [
        tmp_path / "checkpoints" / name
        for name in ("mine", "step-00000000", "step-00000001.damaged")
    ]
    for path in foreign:
        path.mkdir(parents=True)
    assert kept_after(tmp_path, [1, 2, 10], keep_last=2) == [0, 2, 10]
    assert all(path.is_dir() for path in foreign)


def test_a_budget_of_bytes_or_files_keeps_fewer_but_always_the_newest(tmp_path, monkeypatch):
    size = held(checkpoint.save(tmp_path / "probe", 1, weights(1), {}))[0]
    assert kept_after(tmp_path / "a", range(5), keep_last=4, keep_bytes=2 * size + 10) == [3, 4]
    assert kept_after(tmp_path / "b", range(5), keep_last=4, keep_bytes=1) == [4]
    limited(monkeypatch, lambda: 10**12, number=7)  # three files each
    assert kept_after(tmp_path / "c", range(5), keep_last=4) == [3, 4]
