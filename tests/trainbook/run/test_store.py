"""Verified copies: taken of whole files alone, bounded, and unpacked as they were."""

import os
import pickle
import zipfile
from types import SimpleNamespace

import pytest
import torch

from trainbook.run import groups, store
from trainbook.run.restoring import Earlier, restore
from trainbook.run.store import Index, Store


def save(path, value, size=1000):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps((value, bytes(size))))


@pytest.fixture
def keep(tmp_path):
    (tmp_path / "keep").mkdir()
    return tmp_path / "keep"


@pytest.fixture
def made(tmp_path, keep):
    (tmp_path / "run" / store.FOLDER).mkdir(parents=True)
    return Store(tmp_path / "run" / store.FOLDER, keep, Index(), newest=3)


def earlier(made, keep=None):
    return Earlier(made.folder.parent, Index.read(made.folder), keep)


def test_a_torn_newest_file_is_replaced_by_its_copy_with_its_name_and_time(keep, made):
    save(keep / "last.pt", 1)
    os.utime(keep / "last.pt", (1000, 1000))
    before = (keep / "last.pt").read_bytes()
    made.scan()
    (keep / "last.pt").write_bytes(before[:-100])
    restored = restore(earlier(made), keep)
    assert (keep / "last.pt").read_bytes() == before
    assert (keep / "last.pt").stat().st_mtime == 1000
    assert restored.newest() == "last.pt"
    assert any("torn" in line for line in restored.lines)


def test_a_kept_folder_that_the_command_deleted_comes_back(keep, made):
    save(keep / "a.pt", 1)
    save(keep / "run" / "model_1.pt", 1)
    made.scan(is_over=True)
    for path in sorted(keep.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    restore(earlier(made), keep)
    assert (keep / "a.pt").is_file()
    assert (keep / "run" / "model_1.pt").is_file()


def test_a_damaged_copy_is_passed_over_for_the_one_before(keep, made):
    save(keep / "last.pt", "old")
    made.scan()
    save(keep / "last.pt", "new", size=2000)
    made.scan(is_over=True)
    newest = made.folder / made.index.copies[-1].file
    newest.write_bytes(newest.read_bytes()[:-50])
    (keep / "last.pt").unlink()
    restored = restore(earlier(made), keep)
    assert pickle.loads((keep / "last.pt").read_bytes())[0] == "old"
    assert any("damaged" in line for line in restored.lines)


def test_a_copy_cannot_be_unpacked_outside_of_the_kept_folder(tmp_path, keep, made):
    save(tmp_path / "evil.pt", 1)
    store._zip(made.folder / "1.zip", keep, ["../evil.pt"])
    copy = store.Copy("evil.pt", "1.zip", store._sha256(made.folder / "1.zip"), 1, 1)
    (tmp_path / "evil.pt").unlink()
    assert not store.unpack(made.folder, copy, keep)
    assert not (tmp_path / "evil.pt").exists()


def test_the_copies_stay_few_however_often_the_command_saves(keep, made):
    for step in range(10):
        save(keep / f"step-{step}.pt", step)
        save(keep / "last.pt", step, size=1000 + step)
        made.scan(is_over=True)
    copies = Index.read(made.folder).copies
    assert len(copies) == 3
    assert copies[-1].entry in ("last.pt", "step-9.pt")
    assert len(list(made.folder.iterdir())) == 4, "three copies and the index"


def test_named_entries_are_copied_besides_the_newest(tmp_path, keep):
    (tmp_path / "other").mkdir()
    made = Store(tmp_path / "other", keep, Index(), newest=1, also="best*")
    save(keep / "best.pt", 1)
    os.utime(keep / "best.pt", (1, 1))
    for step in range(3):
        save(keep / f"step-{step}.pt", step)
        made.scan(is_over=True)
    assert {copy.entry for copy in made.index.copies} == {"best.pt", "step-2.pt"}


def test_a_file_that_changes_while_it_is_copied_is_copied_later(keep, made, monkeypatch):
    save(keep / "last.pt", 1)
    zipped = store._zip

    def slow(target, folder, paths):
        zipped(target, folder, paths)
        save(keep / "last.pt", 2, size=5000)

    monkeypatch.setattr(store, "_zip", slow)
    assert made.scan(is_over=True) == []
    assert made.index.copies == []
    monkeypatch.setattr(store, "_zip", zipped)
    assert len(made.scan(is_over=True)) == 1


def test_a_checkpoint_without_room_for_its_copy_is_named(keep, made, monkeypatch):
    save(keep / "last.pt", 1)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert made.scan(is_over=True) == []
    assert "no room for a copy of last.pt" in made.problems["last.pt"]


def test_a_mounted_folder_is_copied_writable_without_what_is_torn(tmp_path, keep, made):
    mounted = tmp_path / "mounted"
    for step in (1, 2, 3, 4):
        save(mounted / f"checkpoint-{step}" / "model.pt", step)
        (mounted / f"checkpoint-{step}" / "state.json").write_text("{}")
    (mounted / "checkpoint-4" / "model.pt").write_bytes(b"\x80\x04")
    (mounted / "log.txt").write_text("lines")
    for path in mounted.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    restored = restore(Earlier(None, Index(), mounted), keep)
    assert sorted(path.name for path in keep.iterdir()) == ["checkpoint-3", "log.txt"]
    assert restored.newest() == "checkpoint-3"
    save(keep / "checkpoint-3" / "model.pt", 5)
    (keep / "log.txt").write_text("more")


def test_a_newer_file_of_the_same_size_is_not_replaced_by_an_older_copy(tmp_path, keep, made):
    save(keep / "last.pt", 1)
    made.scan()
    mounted = tmp_path / "mounted"
    save(mounted / "last.pt", 2)
    (keep / "last.pt").unlink()
    restore(earlier(made, mounted), keep)
    assert pickle.loads((keep / "last.pt").read_bytes())[0] == 2


def test_a_much_newer_file_of_the_same_size_is_not_replaced_by_the_copy_before_it(
    tmp_path, keep, made
):
    """The command was killed after its save, and before the index knew of it."""
    save(keep / "last.pt", 1)
    os.utime(keep / "last.pt", (1000, 1000))
    made.scan()
    mounted = tmp_path / "mounted"
    save(mounted / "last.pt", 2)
    (keep / "last.pt").unlink()
    restored = restore(earlier(made, mounted), keep)
    assert pickle.loads((keep / "last.pt").read_bytes())[0] == 2
    assert restored.newest() == "last.pt"


def test_times_that_a_mount_has_changed_come_from_the_index(tmp_path, keep, made):
    for name, seconds in (("best.pt", 1000), ("last.pt", 2000)):
        save(keep / name, name)
        os.utime(keep / name, (seconds, seconds))
    made.scan()
    mounted = tmp_path / "mounted"
    keep.rename(mounted)
    keep.mkdir()
    os.utime(made.folder / store.INDEX, (9000, 9000))
    os.utime(mounted / "last.pt", (9000, 9000))
    os.utime(mounted / "best.pt", (9001, 9001))
    restored = restore(earlier(made, mounted), keep)
    assert restored.newest() == "last.pt"
    assert (keep / "last.pt").stat().st_mtime == 2000


def test_of_names_that_differ_in_numbers_the_newest_is_restored_and_the_others_counted(
    tmp_path, keep
):
    mounted = tmp_path / "mounted"
    for step in range(8):
        save(mounted / f"step-{step}.pt", step)
    restored = restore(Earlier(None, Index(), mounted), keep)
    assert [path.name for path in keep.iterdir()] == ["step-7.pt"]
    assert "7 others stay there" in restored.lines[0]


def test_what_the_newest_names_and_what_also_matches_comes_back_too(tmp_path, keep):
    mounted = tmp_path / "mounted"
    for step in (1, 2, 10, 20):
        save(mounted / f"checkpoint-{step}" / "model.pt", step)
    state = '{"best_model_checkpoint": "out/checkpoint-10"}'  # as Trainer writes it
    (mounted / "checkpoint-20" / "trainer_state.json").write_text(state)
    restore(Earlier(None, Index(), mounted), keep, also="*-2")
    found = sorted(path.name for path in keep.iterdir())
    assert found == ["checkpoint-10", "checkpoint-2", "checkpoint-20"]


def test_the_best_that_a_file_of_torch_names_comes_back_from_a_copy(keep, made):
    for score in (0.5, 0.9, 0.7):
        save(keep / f"score={score}.ckpt", score)
        os.utime(keep / f"score={score}.ckpt", (1000 + 10 * score, 1000 + 10 * score))
    torch.save({"best": "/kaggle/working/keep/score=0.5.ckpt"}, keep / "last.ckpt")
    made.newest = 4
    made.scan(is_over=True)
    for path in keep.iterdir():
        path.unlink()
    restored = restore(earlier(made), keep)
    assert restored.newest() == "last.ckpt"
    found = sorted(path.name for path in keep.iterdir())
    assert found == ["last.ckpt", "score=0.5.ckpt", "score=0.9.ckpt"]


def test_of_copies_of_one_form_the_newest_undamaged_is_unpacked(keep, made):
    for step in range(3):
        save(keep / f"step-{step}.pt", step)
    made.scan(is_over=True)
    for path in keep.iterdir():
        path.unlink()
    (newest,) = [copy for copy in made.index.copies if copy.entry == "step-2.pt"]
    (made.folder / newest.file).write_bytes(b"torn")
    restore(earlier(made), keep)
    assert [path.name for path in keep.iterdir()] == ["step-1.pt"]


def test_folds_and_shards_are_no_steps_of_one_another(tmp_path, keep):
    mounted = tmp_path / "mounted"
    shards = [f"model-0000{number}-of-00005.safetensors.pt" for number in range(1, 6)]
    for name in (*shards, "random_states_0.pkl", "random_states_1.pkl"):
        save(mounted / "checkpoint-7" / name, name)
    for fold in range(5):
        save(mounted / f"model_fold{fold}.pth", fold)
    restore(Earlier(None, Index(), mounted), keep)
    assert len(list(keep.glob("model_fold*.pth"))) == 5
    assert len(list(keep.glob("checkpoint-7/*"))) == 7


def test_a_copy_has_all_shards_of_a_checkpoint(keep, made):
    for number in range(1, 6):
        save(keep / "checkpoint-7" / f"model-0000{number}-of-00005.pt", number)
    made.scan(is_over=True)
    with zipfile.ZipFile(made.folder / made.index.copies[0].file) as archive:
        assert len(archive.namelist()) == 5


def test_a_run_folder_without_a_checkpoint_is_never_the_newest(tmp_path, keep):
    mounted = tmp_path / "mounted"
    save(mounted / "20260101-unet" / "weights" / "model_1.pt", 1)
    (mounted / "20260102-unet").mkdir()
    (mounted / "20260102-unet" / "train.log").write_text("begun")
    assert restore(Earlier(None, Index(), mounted), keep).newest() == "20260101-unet"


def test_the_longest_save_is_that_of_one_file_and_not_of_many_quick_ones(keep, made, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(store.time, "monotonic", lambda: clock[0])
    for step in range(100):
        save(keep / "last.pt", step, size=1000 + step)
        made.scan()
        clock[0] += 0.5
    assert made.longest_save < 1
    for size in range(10):  # a slow drive
        (keep / "last.pt").write_bytes(b"\x80\x04" + bytes(size))
        made.scan()
        clock[0] += 0.5
    assert 4 <= made.longest_save <= 5


def test_files_are_opened_again_only_when_one_has_changed(keep, made, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(store.time, "monotonic", lambda: clock[0])
    looks = []
    look = groups.whole_groups
    monkeypatch.setattr(
        groups, "whole_groups", lambda *given, **more: looks.append(1) or look(*given, **more)
    )
    save(keep / "last.pt", 1)
    for _ in range(10):
        made.scan()
        clock[0] += 0.5
    assert len(looks) < 6
    seen = len(looks)
    save(keep / "last.pt", 2, size=2000)
    assert len(made.scan()) == 1
    assert len(looks) == seen + 1


def test_the_first_folder_of_a_command_that_was_killed_is_not_taken_for_whole(keep, made):
    save(keep / "checkpoint-5" / "model.pt", 5)
    save(keep / "last.pt", 5)
    made.was_cut = True
    made.scan(is_over=True)
    assert [copy.entry for copy in made.index.copies] == ["last.pt"]


@pytest.mark.parametrize("way", ["mounted", "copied"])
def test_pictures_of_each_epoch_stay_behind_and_files_beside_checkpoints_come(
    tmp_path, keep, made, way
):
    run = keep / "20260101-unet"
    save(run / "weights" / "model_5.pt", 5)
    for name in ("config.yaml", "tb/events.1"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("x")
    for number in range(16):
        save(run / "samples" / "5" / f"{number}.npy", number)
    made.scan(is_over=True)
    keep.rename(tmp_path / "mounted")
    keep.mkdir()
    restore(earlier(made, tmp_path / "mounted" if way == "mounted" else None), keep)
    found = {path.relative_to(keep).as_posix() for path in keep.rglob("*") if path.is_file()}
    names = ("weights/model_5.pt", "config.yaml", "tb/events.1")
    assert found == {f"20260101-unet/{name}" for name in names}


def test_restoring_again_changes_nothing(keep, made):
    save(keep / "last.pt", 1)
    made.scan()
    restore(earlier(made), keep)
    first = {path: path.read_bytes() for path in keep.rglob("*")}
    restore(earlier(made), keep)
    assert {path: path.read_bytes() for path in keep.rglob("*")} == first
