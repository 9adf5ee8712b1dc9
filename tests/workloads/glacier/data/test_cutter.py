"""Tiles are cut once, each pixel once, in bounded memory; a damaged cache heals, and odd data is named."""

import errno
import os

import numpy as np
import pytest

from lib.errors import BadInput
from lib.machine import disk
from lib.task import load_task
from tests.workloads.glacier.files import TWO, scene, write_bands, write_scenes
from workloads.glacier.data import cutter, datasets, layout
from workloads.glacier.settings import IGNORE, Cut


def cut(root, source=TWO, limit=0, **options):
    match = layout.find(root, source)
    return cutter.cut(match, root.parent / "folder", source, Cut(size=32, **options), limit)


def test_tiles_of_a_scene_hold_its_pixels_and_their_places(tmp_path):
    image, classes = scene()
    write_bands(tmp_path / "data", "img001", image, classes, origin=(600, 9000))
    store = cut(tmp_path / "data")
    assert len(store) == 4
    for index, (row, column) in enumerate(((0, 0), (0, 32), (32, 0), (32, 32))):
        got, target = store.read(index)
        assert np.array_equal(got, image[:, row : row + 32, column : column + 32])
        assert np.array_equal(target, classes[row : row + 32, column : column + 32])
        left = 600 + 30 * column
        top = 9000 - 30 * row
        assert store.table.bounds[index].tolist() == [left, top - 960, left + 960, top]
    assert store.table.counts.tolist() == (1024 * np.eye(4, dtype=int)).tolist()


def test_a_small_scene_is_filled_with_no_data(tmp_path):
    image, classes = scene()
    write_bands(tmp_path / "small", "img001", image[:, :20, :24], classes[:20, :24])
    got, target = cut(tmp_path / "small").read(0)
    assert np.array_equal(got[:, :20, :24], image[:, :20, :24])
    assert np.isnan(got[:, 20:]).all()
    assert (target[20:] == IGNORE).all()
    assert (target[:, 24:] == IGNORE).all()


def test_unusable_scenes_are_all_named_and_refused_past_the_limit(tmp_path, capsys):
    data = write_scenes(tmp_path / "data", 3)
    image, classes = scene()
    write_bands(data, "img100", np.full_like(image, np.nan), classes)
    write_bands(data, "img102", image, classes)
    band = data / "Band2" / "img102.tif"
    band.write_bytes(band.read_bytes()[:9000])
    with pytest.raises(BadInput) as refused:
        cut(data)
    message = str(refused.value)
    assert message.startswith("Scenes that cannot be used: 2; workload.bad_input_limit allows 0.")
    assert "Band1/img100.tif holds no data at all" in message
    assert "Band2/img102.tif ends or breaks in the middle" in message
    capsys.readouterr()
    assert len(cut(data, limit=2)) == 12
    assert "Left out 2 unusable scenes" in capsys.readouterr().out
    assert not list((tmp_path / "folder").glob("*.tmp")), "nothing half written stays"


def test_statistics_are_those_of_all_pixels_with_data(tmp_path):
    data = write_scenes(tmp_path / "data", 3)
    image, classes = scene(9)
    image[:, 10:20, 5:9] = np.nan
    write_bands(data, "img900", image + 50, classes, origin=(0, 900_000))
    store = cut(data)
    chosen = np.array([0, 3, 5, 12, 13])
    tiles = [store.read(index)[0].reshape(2, -1) for index in chosen]
    pixels = np.concatenate(tiles, 1).astype(np.float64)
    mean, deviation = datasets.tile_statistics(store.table, chosen)
    assert np.allclose(mean, np.nanmean(pixels, 1), rtol=1e-12)
    assert np.allclose(deviation, np.nanstd(pixels, 1), rtol=1e-12)


GENERATED = {"data.dir": "embedded", "workload.generator.scenes": 4, "workload.generator.size": 64}


def test_every_held_out_pixel_is_counted_once_though_tiles_overlap(tiny):
    task = load_task(tiny())
    store = task.data.store
    part = task.datasets()["test"]
    scenes = {int(store.table.scene[index]) for index in task.data.parts.test}
    targets = [part[index].sample.target for index in range(len(part))]
    assert np.count_nonzero(np.stack(targets) != IGNORE) == len(scenes) * 64 * 64
    assert len(part) == 4 * len(scenes), "tiles side by side are enough"
    names = {store.names[scene] for scene in scenes}
    assert {*task._groups("test")} == names, "what is drawn for intervals"


def test_the_fingerprint_follows_content_split_and_generator(tiny, tmp_path):
    def of(change=None):
        return load_task(tiny(change)).fingerprint()

    assert of() == of()
    assert of({"workload.split.seed": 1}) != of()
    assert of({"workload.tiles.stride": 32}) != of()
    assert of(GENERATED) != of({**GENERATED, "workload.generator.seed": 1})
    before = of()
    write_scenes(tmp_path / "scenes", 8, size=(96, 64))
    assert of() != before


def test_a_least_value_far_below_all_others_is_named_with_the_key_that_treats_it(tiny, tmp_path):
    assert "nodata" not in load_task(tiny()).describe_data()
    image, classes = scene(1)
    image[1, 5:25, 5:25] = -9999
    write_bands(tmp_path / "scenes", "img001", image, classes, origin=(100_000, 0))
    text = load_task(tiny()).describe_data()
    assert "of the pixels of the band nir are -9999" in text
    assert "workload.source.nodata: [-9999]" in text
    treated = load_task(tiny({"workload.source.nodata": "[-9999]"})).describe_data()
    assert "set workload" not in treated


def content(task):
    """Everything that training reads."""
    store = task.data.store
    tiles = [store.read(index) for index in range(len(store))]
    pixels = [part.tobytes() for tile in tiles for part in tile]
    return pixels, store.table.counts.tolist()


@pytest.mark.parametrize("pattern", ["*.tiles", "*.json"])
def test_damaged_tiles_are_made_again(tiny, tmp_path, capsys, pattern):
    before = content(load_task(tiny()))
    path = sorted((tmp_path / "cache" / "glacier").glob(f"tiles-*/{pattern}"))[0]
    status = path.stat()
    path.write_bytes(path.read_bytes()[: status.st_size // 2])
    # the content alone changes, and not the time, as if a disk loses it
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    capsys.readouterr()
    assert content(load_task(tiny())) == before
    assert capsys.readouterr().out.count("this scene is cut again") == 1


def test_a_full_cache_is_named_and_not_the_data(tiny, tmp_path, monkeypatch):
    def full(path, cache=False):
        raise OSError(errno.ENOSPC, "No space left on device")

    reason = "cannot be written to .No space left on device.. Make room"
    with monkeypatch.context() as patched:
        patched.setattr(disk, "whole", full)
        with pytest.raises(BadInput, match=reason) as refused:
            content(load_task(tiny()))
        assert str(tmp_path / "cache" / "glacier") in str(refused.value)
    assert load_task(tiny()).data.store, "with room again tiles are stored"
