"""What the preloaded library sees and what it does, in small processes of their own; and what is drawn for it."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from tests.faults import disk_calls

PRELUDE = """
import ctypes, os, sys
library = ctypes.CDLL(None)
def watch(fault=0, number=0, error=0):
    log = os.open("log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    library.faults_set(os.fsencode(os.path.abspath("below")), fault, ctypes.c_long(number), error, log)
os.mkdir("below")
"""
EVERY_CALL = """
watch()
os.mkdir("below/folder")
folder = os.open("below/folder", os.O_RDONLY)
os.mkdir("inner", dir_fd=folder)
file = os.open("below/a", os.O_CREAT | os.O_RDWR)
os.write(file, b"1234")
os.pwrite(file, b"12", 0)
os.writev(file, [b"1", b"2"])
os.sendfile(file, os.open("outside", os.O_RDONLY), 0, 4)
os.copy_file_range(os.open("outside", os.O_RDONLY), file, 4)
os.fsync(file), os.fdatasync(file), os.ftruncate(file, 3), os.truncate("below/a", 2), os.posix_fallocate(file, 0, 8)
os.link("below/a", "below/b")
os.symlink("a", "below/c")
os.rename("below/b", "below/d"), os.replace("below/d", "b", dst_dir_fd=folder)
os.unlink("b", dir_fd=folder), os.remove("below/c"), os.rmdir("inner", dir_fd=folder), os.rmdir("below/folder")
open("below/a").read(), open("outside", "a").write("x"), os.open("below/a", os.O_WRONLY)
"""
SEEN = [
    "mkdir folder", "mkdirat folder/inner", "open a", "write a", "write a", "write a", "write a", "write a", "fsync a",
    "fdatasync a", "ftruncate a", "truncate a", "fallocate a", "link b", "symlink c", "rename d",
    "renameat folder/b", "unlinkat folder/b", "unlink c", "unlinkat folder/inner", "rmdir folder", "open a",
]  # fmt: skip
TWO_WRITES = """
file = os.open("below/a", os.O_CREAT | os.O_WRONLY)
for data in (b"12345678", b"abcd", b"efgh"):
    try:
        print(os.write(file, data))
    except OSError as error:
        print(error.errno)
os.rename("below/a", "below/b")
print("done", flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "disk_calls.so"
    if missing := disk_calls.build(path):
        pytest.skip(missing)
    return path


@pytest.fixture
def preloaded(tmp_path, library):
    """preloaded(script) -> the process, ended, which ran it in tmp_path below the library."""
    (tmp_path / "outside").write_text("12345678")

    def run(script):
        environment = {**os.environ, "LD_PRELOAD": str(library)}
        command = [sys.executable, "-S", "-c", PRELUDE + script]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    return run


def test_every_call_that_changes_the_disk_below_the_folder_is_seen_and_no_other(
    preloaded, tmp_path
):
    done = preloaded(EVERY_CALL)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert [f"{name.removesuffix('64')} {path}" for _, name, _, path in lines] == SEEN
    assert [int(number) for number, *_ in lines] == list(range(1, len(SEEN) + 1))


FULL = errno.ENOSPC


@pytest.mark.parametrize(
    ("fault", "number", "printed", "left"),
    [
        ((1, errno.EIO), 3, ["8", str(errno.EIO), "4", "done"], b"12345678efgh"),
        ((2, FULL), 3, ["8", str(FULL), str(FULL), "done"], b"12345678"),
        ((3, FULL), 1, ["4", str(FULL), "4", "done"], b"1234efgh"),
        ((4, 0), 3, [], b"12345678"),
        ((5, 0), 2, [], b"12345678ab"),
    ],
    ids=["an error once", "a full disk", "a torn write", "killed", "a torn write, then killed"],
)
def test_the_operation_of_a_number_meets_its_fault(
    preloaded, tmp_path, fault, number, printed, left
):
    done = preloaded(f"watch({fault[0]}, {number}, {fault[1]})\n" + TWO_WRITES)
    kills = not printed
    assert done.returncode == (-signal.SIGKILL if kills else 0), done.stderr
    assert kills or done.stdout.split() == printed
    assert (tmp_path / "below" / ("a" if kills else "b")).read_bytes() == left
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 1, (
        "only the operation that met it is written down"
    )
