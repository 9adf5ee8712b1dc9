"""Files and folders that are written whole or not at all."""

import errno

import pytest

from lib import checkpoint
from lib.errors import BadInput
from lib.machine import disk
from lib.machine.disk import Disk, whole
from tests.checkpoint.test_checkpoint import FailingAt, put


def test_a_file_is_replaced_only_when_the_block_ends(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with whole(path) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and [p.name for p in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("cache", [False, True])
def test_an_error_leaves_the_old_content_and_nothing_beside_it(tmp_path, cache):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole(path, cache=cache) as aside:
        aside.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_a_folder_appears_with_everything_in_it_and_leftovers_of_a_kill_are_not_part_of_it(tmp_path):
    (tmp_path / "run.tmp").mkdir()
    (tmp_path / "run.tmp" / "stale").touch()
    with whole(tmp_path / "run") as aside:
        aside.mkdir()
        (aside / "a.txt").write_text("a")
        assert not (tmp_path / "run").exists()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["a.txt"]


def test_a_file_is_synced_before_it_is_renamed_and_a_cache_is_not(tmp_path, monkeypatch):
    synced = []

    class Recorder(Disk):
        def sync(self, handle, path):
            synced.append((path.name, path.exists(), (tmp_path / "a").exists()))
            super().sync(handle, path)

    monkeypatch.setattr(disk, "calls", Recorder())
    with whole(tmp_path / "a") as aside:
        aside.write_text("a")
    with whole(tmp_path / "b", cache=True) as aside:
        aside.write_text("b")
    assert synced == [("a.tmp", True, False)]


def test_a_folder_that_cannot_be_written_to_is_bad_input(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written to .Not a directory.. Give another output_dir"):
        disk.check_writable(tmp_path / "file" / "run")
    monkeypatch.setattr(disk, "calls", FailingAt("create", errno.EROFS))
    with pytest.raises(BadInput, match="Read-only file system"):
        disk.check_writable(tmp_path / "run")


def test_failing_to_delete_only_warns(tmp_path, monkeypatch, capsys):
    path = put(tmp_path, 1)
    monkeypatch.setattr(disk, "calls", FailingAt("remove", errno.EIO))
    disk.discard(path)
    assert "Could not delete" in capsys.readouterr().out and checkpoint.steps(tmp_path) == []
