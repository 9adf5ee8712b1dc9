"""A store's tiles have the statistics of their pixels, a fingerprint of their content, and count each pixel once."""

import numpy as np

from tests.workloads.glacier.files import scene, write_bands, write_scenes
from workloads.glacier.data import layout, tiles
from workloads.glacier.data.cutter import Cutter
from workloads.glacier.settings import Cut, Source

TWO = Source(bands=("red", "nir"))


def cut(root, folder):
    return Cutter(folder, TWO, Cut(size=32)).all(*layout.find(root, TWO))


def test_statistics_are_those_of_all_pixels_with_data(tmp_path):
    write_scenes(tmp_path / "data", 3)
    image, classes = scene(9)
    image[:, 10:20, 5:9] = np.nan
    write_bands(tmp_path / "data", "img900", image + 50, classes, origin=(0, 900_000))
    store = cut(tmp_path / "data", tmp_path / "store")
    chosen = np.array([0, 3, 5, 12, 13])
    pixels = np.concatenate([store.read(i)[0].reshape(2, -1) for i in chosen], 1).astype(np.float64)
    found = tiles.tile_statistics(store.table, chosen)
    assert np.allclose(found.mean, np.nanmean(pixels, 1), rtol=1e-12)
    assert np.allclose(found.deviation, np.nanstd(pixels, 1), rtol=1e-12)


def test_tiles_at_the_edge_count_only_what_is_new(tmp_path):
    write_scenes(tmp_path / "odd", 6, size=(70, 90))
    store = cut(tmp_path / "odd", tmp_path / "store")
    chosen, new_in = tiles.once(store.table, np.arange(len(store)), 32)
    counted = sum(
        int(np.unpackbits(new_in[i], count=32 * 32).sum()) if i in new_in else 32 * 32 for i in chosen.tolist()
    )
    assert counted == 6 * 70 * 90
