"""Files and folders that are written whole or not at all."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from lib.machine import disk
from lib.machine.disk import whole


def test_a_file_is_replaced_only_when_the_block_ends_without_an_error(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole(path) as aside:
        aside.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]
    with whole(path) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_a_folder_appears_whole_and_without_leftovers_of_a_kill(
    tmp_path,
):
    (tmp_path / "run.tmp").mkdir()
    (tmp_path / "run.tmp" / "stale").touch()
    with whole(tmp_path / "run") as aside:
        aside.mkdir()
        (aside / "a.txt").write_text("a")
        assert not (tmp_path / "run").exists()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["a.txt"]


HOLD = """
import fcntl, os, sys, time
handle = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_is_held_against_others_and_given_back_by_a_kill(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(disk.Busy, match="in use"), disk.lock(tmp_path, "in use"):
        pass
    other.kill()
    other.wait()
    with disk.lock(tmp_path, "in use"):
        with disk.lock(tmp_path, "in use"):  # the same process may take it again
            pass
        with pytest.raises(BlockingIOError):
            flock(tmp_path)
    flock(tmp_path)
    assert not list(tmp_path.iterdir())


def flock(folder):
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)


def test_a_forked_child_such_as_a_loader_process_does_not_keep_a_lock(tmp_path):
    here, there = os.pipe()
    with disk.lock(tmp_path, "in use"):
        if not (child := os.fork()):
            os.write(there, b"x")
            signal.pause()
        os.read(here, 1)
    try:
        flock(tmp_path)  # the child still lives
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
