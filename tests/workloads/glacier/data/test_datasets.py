"""Tiles of given or generated scenes, each held-out pixel counted once, and a damaged cache that heals."""

import errno
import itertools
import os

import numpy as np
import pytest

from lib.errors import BadInput
from lib.machine import disk
from lib.task import load_task
from tests.workloads.glacier.files import scene, write_bands, write_scenes
from workloads.glacier.data import records, terrain
from workloads.glacier.scores import IGNORE

GENERATED = {"data.dir": "embedded", "workload.generator.scenes": 4, "workload.generator.size": 64}


def test_without_data_scenes_are_generated_with_bands_and_classes_as_asked(tiny):
    task = load_task(tiny({**GENERATED, "workload.source.bands": "[swir1, blue]"}))
    text = task.describe_data()
    assert "The embedded default is used: 4 generated scenes of 64 x 64 pixels" in text
    table = [line.split("  ")[0] for line in text.splitlines() if line.endswith("%")]
    assert table == ["training", "training, wanted", "training, as drawn", "validation", "test"]
    image, classes = terrain.scene(0, 0, 64)
    got, target = task.data.store.read(0)
    known = ~np.isnan(got[0])
    assert np.array_equal(got[:, known], image[[4, 0], :32, :32][:, known])
    assert np.array_equal(target[known], classes[:32, :32][known])
    sea = {"source.classes": "[background, sea]", "source.codes": "[0, 1]", "sampling.target_shares": "[]"}
    for change, sentence in (({"source.bands": "[red, uv]"}, "no band uv, only blue"), (sea, "no class sea, only")):
        with pytest.raises(BadInput, match=sentence):
            load_task(tiny({**GENERATED, **{f"workload.{key}": value for key, value in change.items()}})).datasets()


def test_every_held_out_pixel_is_counted_once_though_tiles_overlap(tiny):
    task = load_task(tiny())
    part = task.datasets()["test"]
    scenes = {int(task.data.store.table.scene[i]) for i in task.data.parts.test}
    labelled = sum(int((part[i].target != IGNORE).sum()) for i in range(len(part)))
    assert labelled == len(scenes) * 64 * 64
    assert len(part) == 4 * len(scenes), "tiles side by side are enough"


def test_the_fingerprint_follows_content_split_and_generator(tiny, tmp_path):
    def of(change=None):
        return load_task(tiny(change)).fingerprint()

    assert of() == of()
    assert of({"workload.split.seed": 1}) != of() and of({"workload.tiles.stride": 32}) != of()
    assert of(GENERATED) != of({**GENERATED, "workload.generator.seed": 1})
    before = of()
    write_scenes(tmp_path / "scenes", 8, size=(96, 64))
    assert of() != before


def test_scenes_in_other_units_are_said(tiny, tmp_path):
    assert "other units" not in load_task(tiny()).describe_data()
    for number in (1, 4, 6):
        image, classes = scene(number)
        write_bands(tmp_path / "scenes", f"img{number:03d}", image / 10_000, classes, origin=(number * 100_000, 0))
    text = load_task(tiny()).describe_data()
    assert "Warning: 3 of 8 scenes seem to be in other units: the bands of img001 are" in text


def test_a_least_value_far_below_all_others_is_named_with_the_key_that_treats_it(tiny, tmp_path):
    assert "nodata" not in load_task(tiny()).describe_data()
    image, classes = scene(1)
    image[1, 5:25, 5:25] = -9999
    write_bands(tmp_path / "scenes", "img001", image, classes, origin=(100_000, 0))
    text = load_task(tiny()).describe_data()
    assert "of the pixels of the band nir are -9999" in text and "workload.source.nodata: [-9999]" in text
    assert "band red" not in text and "set workload" not in load_task(
        tiny({"workload.source.nodata": "[-9999]"})
    ).describe_data()
    for number in range(8):
        image, classes = scene(number)
        image[1] = image[0] > 100  # a band of two codes has a gap, too
        write_bands(tmp_path / "scenes", f"img{number:03d}", image, classes, origin=(number * 100_000, 0))
    assert "set workload" not in load_task(tiny()).describe_data()


def flip(path):
    content = bytearray(path.read_bytes())
    content[-len(content) // 3] ^= 4
    path.write_bytes(content)


DAMAGES = {  # a file of the cache, and what is done to it
    "truncated": ("tiles-*/*.image", lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])),
    "missing": ("tiles-*/*.image", lambda path: path.unlink()),
    "flipped": ("tiles-*/*.target", flip),
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
    overrides = GENERATED if pattern.startswith("generated") else None
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


@pytest.mark.parametrize("overrides", [None, GENERATED], ids=["given", "generated"])
def test_a_full_cache_is_named_and_not_the_data(tiny, tmp_path, monkeypatch, overrides):
    whole = disk.whole
    for first in (1, 4, 7):  # the disk is full from this file on
        numbers = itertools.count(1)

        def full(path, cache=False, numbers=numbers, first=first):
            if next(numbers) >= first:
                raise OSError(errno.ENOSPC, "No space left on device")
            return whole(path, cache)

        monkeypatch.setattr(disk, "whole", full)
        with pytest.raises(BadInput) as refused:
            content(load_task(tiny(overrides)))
        assert str(refused.value) == (
            f"The cache folder {tmp_path / 'cache' / 'glacier'} cannot be written to (No space left on device). Make "
            "room on its disk, or name another folder in the environment variable TRAINBOOK_CACHE."
        )
    monkeypatch.setattr(disk, "whole", whole)
    assert load_task(tiny(overrides)).data.store, "and with room again it goes on"
