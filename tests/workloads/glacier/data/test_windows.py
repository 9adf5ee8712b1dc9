"""Shared ground without a georeference is seen by equal windows of pixels, and said once."""

import numpy as np
import pytest

from tests.workloads.glacier.files import scene, write_bands, write_image
from workloads.glacier.data import folds, layout, windows
from workloads.glacier.data.cutter import Cutter
from workloads.glacier.settings import Cut, Source, Split

TWO = Source(bands=("red", "nir"))


def ground(seed, size=160, bands=2):
    return np.random.default_rng(seed).normal(100, 10, (bands, size, size)).astype(np.float32)


@pytest.mark.parametrize("shift", [(0, 0), (31, 5), (64, 64), (0, 90)])
def test_chips_that_overlap_anywhere_are_a_pair_and_others_are_none(shift):
    whole = ground(1)
    row, column = shift
    chips = [whole[:, :128, :128], whole[:, row : row + 96, column : column + 70], ground(2, 128)]
    assert windows.pairs({n: windows.sketch(chip) for n, chip in enumerate(chips)}) == [(0, 1)]


def test_one_band_that_is_the_same_is_enough(shift=40):
    one, other = ground(1, 128, 3), ground(2, 128, 3)
    other[2, :-shift] = one[2, shift:]  # an elevation, under two days' light
    assert windows.pairs({0: windows.sketch(one), 1: windows.sketch(other)}) == [(0, 1)]


def test_gaps_flat_water_and_rounded_values_are_no_ground():
    chips = [ground(n, 128) for n in range(3)]
    for chip in chips:
        chip[:, :40] = np.nan
        chip[:, 40:80] = 7
        chip[:, 80:120] = np.random.default_rng(0).integers(0, 3, (2, 40, 128))
    assert windows.pairs({n: windows.sketch(chip) for n, chip in enumerate(chips)}) == []


def test_a_sketch_grows_with_neither_the_scene_nor_its_pieces():
    whole = windows.sketch(ground(3, 512))
    assert len(whole) == 512 and np.array_equal(windows.unpacked(windows.packed(whole)), whole)


def test_pairs_join_to_groups():
    assert windows.groups([(1, 2), (5, 6), (2, 9)]) == [[1, 2, 9], [5, 6]]


def parts_of(tmp_path, images, **options):
    for number, image in enumerate(images):
        write_image(tmp_path / "images" / f"c{number}.tif", image, "GTiff")
        chessboard = np.indices(image.shape[1:]).sum(0) % 2
        write_image(tmp_path / "masks" / f"c{number}.png", (85 * chessboard).astype(np.uint8))
    source = Source(bands=("red", "nir"), classes=("land", "ice"), codes=(0, 85))
    store = Cutter(tmp_path / "store", source, Cut(size=64)).all(*layout.find(tmp_path, source))
    return store, folds.parts(store, Split(**options), source.classes)


def test_shared_ground_in_two_parts_is_one_warning_with_the_way_out(tmp_path):
    whole = ground(7, 128)
    images = [ground(n, 64) for n in range(6)] + [whole[:, :64, :64], whole[:, 20:84, 20:84]]
    _, found = parts_of(tmp_path, images, names={"train": "c[01236]", "validation": "c[47]", "test": "c5"})
    warning = [note for note in found.notes if "no place on the map" in note]
    assert len(warning) == 1 and "1 of 2 scenes of the validation and 0 of 1 scenes of the test" in warning[0]
    assert "(such as c6 and c7)" in warning[0] and "Give such scenes one part" in warning[0]
    # together in one part they are no leak, and the warning is a remark
    _, found = parts_of(tmp_path, images, names={"train": "c[012367]", "validation": "c4", "test": "c5"})
    assert [note for note in found.notes if "none was found between parts" in note]


def test_without_a_given_split_scenes_of_shared_ground_are_one_group(tmp_path):
    whole = ground(7, 128)
    images = [*(ground(n, 64) for n in range(6)), whole[:, :64, :64], whole[:, 20:84, 20:84]]
    for seed in range(4):
        store, found = parts_of(tmp_path, images, seed=seed, test=0.25, validation=0.25)
        assert "2 scenes without a place on the map show ground of another one" in found.notes[0]
        groups = {store.names[s]: group for s, group in zip(store.table.scene, found.groups, strict=True)}
        assert groups["c6"] == groups["c7"] and len(set(groups.values())) == 7
        assert [note for note in found.notes if "none was found between parts" in note]


def test_scenes_on_the_map_are_compared_by_their_places_alone(tmp_path):
    for number in range(8):
        write_bands(tmp_path / "data", f"img{number}", *scene(number), origin=(number * 10**5, 0))
    store = Cutter(tmp_path / "store", TWO, Cut(size=32)).all(*layout.find(tmp_path / "data", TWO))
    assert store.sketches == [None] * 8
    assert not any("windows" in note for note in folds.parts(store, Split(), TWO.classes).notes)
