"""Tiles of given or generated scenes, in parts, each held-out pixel counted once, with a fingerprint."""

import numpy as np
import pytest
import rasterio

from lib.errors import BadInput
from lib.scores import IGNORE
from lib.task import load_task
from tests.workloads.glacier.files import scene, write_bands, write_scenes
from workloads.glacier.data import terrain
from workloads.glacier.settings import Generator, Source

GENERATED = {"data.dir": "embedded", "workload.generator.scenes": 5, "workload.generator.size": 64}


def test_without_data_scenes_are_generated_with_bands_and_classes_as_asked(tiny):
    task = load_task(tiny({**GENERATED, "workload.source.bands": "[swir1, blue]"}))
    told = task.describe_data()
    assert "The embedded default is used: 5 generated scenes of 64 x 64 pixels" in told
    table = [line.split("  ")[0] for line in told.splitlines() if line.endswith("%")]
    assert table == ["training", "training, wanted", "training, as drawn", "validation", "test"]
    image, classes = terrain.scene(0, 0, 64)
    sample = task.data.store.read(0)
    known = ~np.isnan(sample[0][0])
    assert np.array_equal(sample[0][:, known], image[[4, 0], :32, :32][:, known])
    assert np.array_equal(sample[1][known], classes[:32, :32][known])
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
    told = load_task(tiny()).describe_data()
    assert "Warning: 3 of 8 scenes seem to be in other units: the bands of img001 are" in told


def test_generated_scenes_are_plausible():
    """Shares near those of the real data, every class there, some scenes with ground that was not seen."""
    counts, missing = np.zeros(4), 0
    for index in range(12):
        image, classes = terrain.scene(3, index, 128)
        counts += np.bincount(classes.ravel(), minlength=4)
        missing += bool((image == 0).any())
        assert image.shape == (7, 128, 128) and image.dtype == np.uint16
    shares = counts / counts.sum()
    assert 0.55 < shares[0] < 0.85 and 0.12 < shares[1] < 0.4 and 0.02 < shares[2] < 0.15 and 0 < shares[3] < 0.01
    assert 0 < missing < 12
    again = terrain.scene(3, 5, 128)
    assert all(np.array_equal(a, b) for a, b in zip(again, terrain.scene(3, 5, 128), strict=True))


def test_scenes_are_written_apart_on_the_map(tmp_path):
    source = Source(bands=("red", "blue"), classes=("background", "lake"), codes=(0, 9))
    terrain.write(tmp_path, Generator(scenes=2, size=32), source)
    paths = sorted(tmp_path.glob("*/*.tif"))
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        f"{folder}/img00{number}.tif" for folder in ("Band1", "Band2", "label") for number in (1, 2)
    ]
    bounds = [rasterio.open(path).bounds for path in paths[4:]]
    assert bounds[0].right < bounds[1].left
    image, classes = terrain.scene(0, 0, 32)
    with rasterio.open(paths[0]) as band, rasterio.open(paths[4]) as label:
        assert np.array_equal(band.read(1), image[2]) and band.nodata == 0
        assert np.array_equal(label.read(1), np.where(classes == 3, 9, 0)), "a class without a name is the first one"
