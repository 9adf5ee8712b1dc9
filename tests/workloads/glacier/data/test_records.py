"""A damaged cache heals: tiles are cut again, generated scenes are drawn again, and the run is the same."""

import errno
import os

import pytest

from lib.errors import BadInput
from lib.machine import disk, records
from lib.task import load_task
from tests.workloads.glacier.data.test_datasets import GENERATED

SMALL = {**GENERATED, "workload.generator.scenes": 4}


def flip(path):
    content = bytearray(path.read_bytes())
    content[-len(content) // 3] ^= 4
    path.write_bytes(content)


DAMAGES = {  # a file of the cache, and what is done to it
    "truncated": ("tiles-*/*.image.npy", lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])),
    "missing": ("tiles-*/*.image.npy", lambda path: path.unlink()),
    "flipped": ("tiles-*/*.target.npy", flip),
    "record a folder": ("tiles-*/*.json", lambda path: (path.unlink(), path.mkdir())),
    "record flipped": ("tiles-*/*.json", flip),
    "record a number": ("tiles-*/*.json", lambda path: path.write_text('{"sha256": 1, "record": 2}')),
    "100,000 brackets": ("tiles-*/*.json", lambda path: path.write_text("[" * 100_000)),
    "band flipped": ("generated-*/Band2/img002.tif", flip),
    "label missing": ("generated-*/label/img002.tif", lambda path: path.unlink()),
    "drawn record flipped": ("generated-*/img002.json", flip),
}  # fmt: skip


def content(task):
    """Everything that training reads."""
    store = task.data.store
    return [part.tobytes() for index in range(len(store)) for part in store.read(index)], store.table.counts.tolist()


@pytest.mark.parametrize("pattern, way", DAMAGES.values(), ids=DAMAGES)
def test_damaged_tiles_and_generated_scenes_are_made_again(tiny, tmp_path, capsys, pattern, way):
    overrides = SMALL if pattern.startswith("generated") else None
    before = content(load_task(tiny(overrides)))
    path = sorted((tmp_path / "cache" / "glacier").glob(pattern))[0]
    status = path.stat()
    way(path)
    if path.exists():  # the content alone changes, and not the time, as where a disk loses what it had
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    records._checksums.clear()  # as in another process
    capsys.readouterr()
    assert content(load_task(tiny(overrides))) == before
    assert capsys.readouterr().out.count(f"such scenes are {'drawn' if overrides else 'cut'} again") == 1


def test_a_whole_cache_is_read_once_a_process_and_written_never(tiny, tmp_path, monkeypatch):
    before = content(load_task(tiny(SMALL)))
    monkeypatch.setattr(disk, "whole", None)
    read = []
    monkeypatch.setattr(records.zlib, "crc32", lambda chunk, value: read.append(len(chunk)))
    assert content(load_task(tiny(SMALL))) == before and not read


@pytest.mark.parametrize("overrides", [None, SMALL], ids=["given", "generated"])
def test_a_full_cache_is_named_and_not_the_data(tiny, tmp_path, monkeypatch, overrides):
    whole = disk.whole
    for last in (1, 4, 7):  # the disk is full from this file on
        made = []

        def full(path, cache=False, made=made, last=last):
            made.append(path)
            if len(made) >= last:
                raise OSError(errno.ENOSPC, "No space left on device")
            return whole(path, cache)

        monkeypatch.setattr(disk, "whole", full)
        with pytest.raises(BadInput) as refused:
            content(load_task(tiny(overrides)))
        folder = tmp_path / "cache" / "glacier"
        assert str(refused.value) == (
            f"The cache folder {folder} cannot be written to (No space left on device). Make room on its disk, or name "
            "another folder in the environment variable TRAINBOOK_CACHE."
        )
    monkeypatch.setattr(disk, "whole", whole)
    assert load_task(tiny(overrides)).data.store, "and with room again it goes on"
