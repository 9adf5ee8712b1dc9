"""A damaged cache heals: tiles are cut again, generated scenes are drawn again, and the run is the same."""

import errno
import json
import os
import re
from pathlib import Path

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


def keep_time(change, path):
    """Changes the content alone: time and, where it can be, size stay, as where a disk loses what it had."""
    status = path.stat()
    change(path)
    if path.exists():
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


WAYS = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "emptied": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "flipped": flip,
}
JSON_WAYS = {
    **{name: way for name, way in WAYS.items() if name != "missing"},
    "null": lambda path: path.write_text("null"),
    "a list": lambda path: path.write_text("[]"),
    "a number": lambda path: path.write_text('{"sha256": 1, "record": 2}'),
    "a null inside": lambda path: path.write_text(path.read_text().replace('"stamp": ', '"stamp": null, "x": ')),
    "another count": lambda path: path.write_text(path.read_text().replace('"valid": 1', '"valid": 2')),
    "100,000 brackets": lambda path: path.write_text("[" * 100_000),
}


def content(task):
    """Everything that training reads."""
    store = task.data.store
    return [part.tobytes() for index in range(len(store)) for part in store.read(index)], store.table.counts.tolist()


@pytest.fixture
def damaged(tiny, tmp_path):
    """damaged(pattern, way) damages one file of a full cache; returns what is read from it before and after."""

    def make(pattern, way, overrides):
        before = content(load_task(tiny(overrides)))
        path = sorted((tmp_path / "cache" / "glacier").glob(pattern))[0]
        keep_time(way, path)
        records._checksums.clear()  # as in another process
        return before, content(load_task(tiny(overrides)))

    return make


@pytest.mark.parametrize("kind", ["image", "target"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_damaged_tiles_are_cut_again(damaged, way, kind, capsys):
    before, after = damaged(f"tiles-*/*.{kind}.npy", way, None)
    assert after == before
    assert capsys.readouterr().out.count("is damaged") == 1


@pytest.mark.parametrize("way", JSON_WAYS.values(), ids=JSON_WAYS)
def test_a_damaged_record_is_no_record(damaged, way, capsys):
    before, after = damaged("tiles-*/*.json", way, None)
    assert after == before
    damage = r".json (is not what was written|cannot be read: .*)\): such scenes are cut again."
    assert re.search(damage, capsys.readouterr().out)


@pytest.mark.parametrize(
    "pattern, way",
    [
        ("Band2/img002.tif", "truncated"),
        ("Band2/img002.tif", "flipped"),
        ("label/img002.tif", "zeroed"),
        ("label/img002.tif", "missing"),
        ("img002.json", "flipped"),
    ],
)
def test_damaged_generated_scenes_are_drawn_again(damaged, pattern, way, capsys):
    before, after = damaged(f"generated-*/{pattern}", WAYS[way], SMALL)
    assert after == before and "such scenes are drawn again" in capsys.readouterr().out


def test_a_whole_cache_is_read_once_a_process_and_written_never(tiny, tmp_path, monkeypatch):
    before = content(load_task(tiny(SMALL)))
    monkeypatch.setattr(disk, "whole", None)
    read = []
    monkeypatch.setattr(records.zlib, "crc32", lambda chunk, value: read.append(len(chunk)))
    assert content(load_task(tiny(SMALL))) == before and not read


def test_a_scene_that_has_changed_is_cut_again_without_a_word(tiny, tmp_path, capsys):
    content(load_task(tiny()))
    os.utime(tmp_path / "scenes" / "Band1" / "img000.tif", (1, 1))
    content(load_task(tiny()))
    assert "damaged" not in capsys.readouterr().out


# --- a cache that cannot be written to --------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [None, SMALL], ids=["given", "generated"])
def test_a_full_cache_is_named_and_not_the_data(tiny, tmp_path, monkeypatch, overrides):
    """The disk is full from the n-th file on, whichever it is."""
    whole = disk.whole
    for last in range(1, 8, 2):
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


def test_a_cache_in_a_place_that_cannot_be_written_to_is_named(tiny, monkeypatch):
    monkeypatch.setenv("TRAINBOOK_CACHE", "/proc/trainbook")
    with pytest.raises(BadInput, match=r"cache folder /proc/trainbook/glacier cannot be written to .*TRAINBOOK_CACHE"):
        content(load_task(tiny()))


def test_an_error_of_the_data_is_not_blamed_on_the_cache(tmp_path):
    with pytest.raises(FileNotFoundError), records.writing(tmp_path / "cache"):
        Path(tmp_path / "data" / "x").read_bytes()
    with pytest.raises(BadInput), records.writing(tmp_path / "cache"):
        (tmp_path / "cache" / "x").read_bytes()


def test_records_carry_numbers_as_they_are(tmp_path):
    verified = records.Verified(tmp_path, "again")
    content = {"stamp": [1], "values": [0.1, float("inf"), 1e-300, 2**60], "name": "ö"}
    verified.write("a.json", content)
    assert verified.read("a.json") == {**content, "files": {}} and verified.read("b.json") is None
    assert json.loads((tmp_path / "a.json").read_text()).keys() == {"sha256", "record"}
    assert verified.read("a.json", [2]) is None
