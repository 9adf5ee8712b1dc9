"""Generated scenes are plausible, pure functions of their seed, and written once with the classes that are named."""

import numpy as np
import rasterio

from workloads.glacier.data import terrain
from workloads.glacier.settings import Generator, Source


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


def test_scenes_are_written_apart_on_the_map_and_only_where_they_are_missing(tmp_path):
    source = Source(bands=("red", "blue"), classes=("background", "lake"), codes=(0, 9))
    terrain.write(tmp_path, Generator(scenes=2, size=32), source)
    paths = sorted(tmp_path.glob("*/*.tif"))
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        f"{folder}/img00{number}.tif" for folder in ("Band1", "Band2", "label") for number in (1, 2)
    ]
    bounds = [rasterio.open(tmp_path / "label" / f"img00{number}.tif").bounds for number in (1, 2)]
    assert bounds[0].right < bounds[1].left
    image, classes = terrain.scene(0, 0, 32)
    with rasterio.open(paths[0]) as band, rasterio.open(paths[4]) as label:
        assert np.array_equal(band.read(1), image[2]) and band.nodata == 0
        assert np.array_equal(label.read(1), np.where(classes == 3, 9, 0)), "a class without a name is the first one"
    times = [path.stat().st_mtime_ns for path in paths]
    terrain.write(tmp_path, Generator(scenes=2, size=32), source)
    assert [path.stat().st_mtime_ns for path in paths] == times
