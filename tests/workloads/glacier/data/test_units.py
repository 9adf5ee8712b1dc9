"""The unit of a number may stand in a tag, or differ between scenes; scenes may be smaller than a tile."""

import numpy as np
import pytest
import rasterio
import torch

from lib.errors import BadInput
from tests.workloads.glacier.files import (
    TWO,
    scene,
    write_bands,
    write_image,
    write_scenes,
    write_tiff,
)
from workloads.glacier import maps
from workloads.glacier.data import layout, readers
from workloads.glacier.data.cutter import cut
from workloads.glacier.data.datasets import applied_scalings, unlike_scenes
from workloads.glacier.data.readers import Scene, Unusable
from workloads.glacier.settings import Cut, Source

ONE = Source(bands=("a",), channels=())


def tagged(path, values, scale, offset=0.0, **options):
    write_tiff(path, values, **options)
    with rasterio.open(path, "r+") as file:
        file.scales = [scale] * file.count
        file.offsets = [offset] * file.count
    return path


def bands_of(*paths, source=ONE):
    with readers.opened(Scene("x", "x", paths, None), source) as opened:
        return opened.bands((0, 0, 16, 16)), opened.scalings


def test_scale_and_offset_of_a_band_are_applied_and_no_data_is_before_them(tmp_path):
    values = np.full((16, 16), 3000, np.int16)
    values[0, 0] = -9999
    path = tagged(tmp_path / "a.tif", values, 1e-4, -0.1, nodata=-9999)
    image, scalings = bands_of(path)
    assert np.isnan(image[0, 0, 0])
    assert np.allclose(image[0, 1:], 0.2)
    assert scalings == [(1e-4, -0.1)]
    chosen = Source(bands=("a",), channels=(), nodata=(3000,))
    values[0, 0] = 3001
    assert (
        np.isnan(bands_of(tagged(tmp_path / "b.tif", values, 1e-4), source=chosen)[0]).sum() == 255
    )


def test_a_file_without_tags_is_read_as_it_is(tmp_path):
    values = np.random.default_rng(0).integers(0, 9000, (16, 16)).astype(np.uint16)
    image, scalings = bands_of(write_tiff(tmp_path / "a.tif", values))
    assert np.array_equal(image[0], values.astype(np.float32))
    assert scalings == [(1.0, 0.0)]


@pytest.mark.parametrize(("scale", "offset"), [(0.0, 1.0), (np.nan, 0.0), (1.0, np.inf)])
def test_a_tag_that_is_no_unit_is_refused_by_its_file(tmp_path, scale, offset):
    path = tagged(tmp_path / "a.tif", np.ones((16, 16), np.int16), scale, offset)
    with pytest.raises(Unusable, match=r"a\.tif states the scale"):
        bands_of(path)


def store_of(folder, cache):
    return cut(layout.find(folder, TWO), cache, TWO, Cut(size=32))


def test_applied_tags_and_scenes_in_another_unit_are_said(tmp_path):
    write_scenes(tmp_path / "data", 4)
    store = store_of(tmp_path / "data", tmp_path / "cache")
    assert applied_scalings(store) == unlike_scenes(store, TWO.bands) == []
    image, classes = scene(9)
    write_bands(tmp_path / "data", "tiny", image / 1000, classes, origin=(900_000, 0))
    write_bands(
        tmp_path / "data", "deep", (image * 100).astype(np.uint16), classes, origin=(1_200_000, 0)
    )
    for number in (1, 2):
        with rasterio.open(tmp_path / "data" / f"Band{number}" / "deep.tif", "r+") as file:
            file.scales = [0.01]
    store = store_of(tmp_path / "data", tmp_path / "cache2")
    (said,) = applied_scalings(store)
    assert (
        said
        == "Scale and offset tags are applied to 1 of 6 scenes, such as deep: value * 0.01 + 0."
    )
    red, nir = unlike_scenes(store, TWO.bands)
    assert "the band red is 0.101 in tiny and 101 in deep" in red
    assert "; 1 scenes are below a 50th." in red
    assert "nir" in nir


def test_a_scene_to_be_mapped_in_another_unit_than_the_training_s_is_named(tmp_path, capsys):
    image, _ = scene()
    model = torch.nn.Module()
    model.mean, model.deviation = torch.full((2, 1, 1), 0.2), torch.full((2, 1, 1), 0.05)
    path = write_tiff(tmp_path / "x.tif", image)
    with readers.opened(Scene("x", "x", (path,), None), TWO) as opened:
        maps._compare_units(model, np.array([100.0, 0.2]), opened)
        assert "the band red of x is 100, and 0.206 in the training" in capsys.readouterr().out
        maps._compare_units(model, np.array([0.1, 0.2]), opened)
        assert capsys.readouterr().out == ""


def test_a_scene_smaller_than_the_tile_is_named_with_both_sizes(tmp_path, capsys):
    image, classes = scene(size=(8, 8))
    write_bands(tmp_path / "data", "little", image, classes)
    with pytest.raises(
        BadInput, match=r"little has 8 x 8 pixels, and a tile 32 x 32.*tiles.size to 8"
    ) as refusal:
        store_of(tmp_path / "data", tmp_path / "cache")
    assert "Lower the shares" not in str(refusal.value)
    write_scenes(tmp_path / "data", 2)
    store_of(tmp_path / "data", tmp_path / "cache")
    assert "Warning: The scene little has 8 x 8 pixels" in capsys.readouterr().out


def test_a_mask_that_a_jpeg_has_blurred_is_refused_with_what_to_do(tmp_path):
    image, classes = scene()
    write_image(tmp_path / "images" / "a.png", image[:1].astype(np.uint8))
    write_image(
        tmp_path / "masks" / "a.jpg",
        np.asarray((0, 60, 170, 255), np.uint8)[classes],
        "JPEG",
        QUALITY=60,
    )
    source = Source(bands=("a",), channels=(), codes=(0, 60, 170, 255))
    with pytest.raises(
        BadInput, match=r"a\.jpg is a JPEG, which blurs the codes.*Save the masks as PNG"
    ):
        cut(layout.find(tmp_path, source), tmp_path / "cache", source, Cut(size=32))
