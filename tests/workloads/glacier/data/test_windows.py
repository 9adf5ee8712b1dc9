"""Shared ground without a georeference is seen by equal windows of pixels, and said once."""

import numpy as np
import pytest

from tests.workloads.glacier.files import write_image
from workloads.glacier.data import folds, layout, windows
from workloads.glacier.data.cutter import Cutter
from workloads.glacier.settings import Cut, Source, Split

SOURCE = Source(bands=("red", "nir"), classes=("land", "ice"), codes=(0, 85))


def ground(seed, size=160, bands=2):
    return np.random.default_rng(seed).normal(100, 10, (bands, size, size)).astype(np.float32)


@pytest.mark.parametrize("row, column", [(0, 0), (31, 5), (0, 90)])
def test_chips_that_overlap_anywhere_are_a_pair_and_others_are_none(row, column):
    whole, elevation = ground(1), ground(3, 128, 3)
    elevation[2, :70, :70] = whole[0, row : row + 70, column : column + 70]  # one equal band, under another day's light
    chips = [whole[:, :160, :], whole[:, row : row + 96, column : column + 70], ground(2, 128), elevation]
    pairs = windows.pairs({n: windows.sketch(chip) for n, chip in enumerate(chips)})
    assert pairs == [(0, 1), (0, 3), (1, 3)]
    assert len(windows.sketch(ground(3, 512))) == 512, "a sketch does not grow with the scene"


def test_gaps_flat_water_and_rounded_values_are_no_ground():
    chips = [ground(n, 128) for n in range(3)]
    for chip in chips:
        chip[:, :40] = np.nan
        chip[:, 40:80] = 7
        chip[:, 80:120] = np.random.default_rng(0).integers(0, 3, (2, 40, 128))
    assert windows.pairs({n: windows.sketch(chip) for n, chip in enumerate(chips)}) == []


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Eight scenes without a place on the map, of which c6 and c7 share ground."""
    folder, whole = tmp_path_factory.mktemp("chips"), ground(7, 128)
    for number, image in enumerate([*(ground(n, 64) for n in range(6)), whole[:, :64, :64], whole[:, 20:84, 20:84]]):
        write_image(folder / "images" / f"c{number}.tif", image, "GTiff")
        chessboard = np.indices(image.shape[1:]).sum(0) % 2
        write_image(folder / "masks" / f"c{number}.png", (85 * chessboard).astype(np.uint8))
    return Cutter(folder / "store", SOURCE, Cut(size=64)).all(*layout.find(folder, SOURCE))


def test_shared_ground_in_two_parts_of_a_given_split_is_one_warning_with_the_way_out(store):
    def notes(**names):
        return [n for n in folds.parts(store, Split(names=names), SOURCE.classes).notes if "equal windows" in n]

    (warning,) = notes(train="c[01236]", validation="c[47]", test="c5")
    assert "1 of 2 scenes of the validation and 0 of 1 scenes of the test" in warning
    assert "(such as c6 and c7)" in warning and "Give such scenes one part" in warning
    assert notes(train="c[012367]", validation="c4", test="c5") == []


def test_without_a_given_split_scenes_of_shared_ground_are_one_group(store):
    for seed in range(4):
        parts = folds.parts(store, Split(seed=seed, test=0.25, validation=0.25), SOURCE.classes)
        assert "2 scenes without a place on the map show ground of another one" in parts.notes[0]
        groups = {store.names[s]: group for s, group in zip(store.table.scene, parts.groups, strict=True)}
        assert groups["c6"] == groups["c7"] and len(set(groups.values())) == 7
