"""Masks in JPEG: what compression does to areas of a few colours is undone."""

import numpy as np
import pytest

from tests.workloads.glacier.files import scene, write_image, write_tiff
from workloads.glacier.data import layout, lossy, readers
from workloads.glacier.settings import Source

GREEN, BLUE, WHITE = (0, 255, 0), (0, 0, 255), (255, 255, 255)


def codes_of(colours):
    return [red * 65536 + green * 256 + blue for red, green, blue in colours]


def read(path):
    with readers.open_raster(path) as data:
        return [data.read(number) for number in range(1, data.count + 1)]


def coded(planes):
    return readers.coded(planes) if len(planes) > 1 else planes[0]


@pytest.mark.parametrize("size", [96, 90])  # borders between the blocks of 8 x 8, and amid them
@pytest.mark.parametrize("quality", [60, 92])
def test_areas_of_a_few_colours_come_back_with_their_codes(tmp_path, quality, size):
    _, classes = scene(size=(size, size))
    colours = np.array([(0, 0, 0), GREEN, BLUE, WHITE], np.uint8)[classes]
    path = write_image(tmp_path / "mask.jpg", colours.transpose(2, 0, 1), "JPEG", QUALITY=str(quality))
    planes = read(path)
    found = lossy.counted(coded(planes))
    assert lossy.is_mask(coded(planes)) and not lossy.is_grey(planes)
    exact = np.array(codes_of([(0, 0, 0), GREEN, BLUE, WHITE]))
    away = np.abs(lossy.channels(np.array(sorted(found)))[:, None] - lossy.channels(exact)).max(2)
    assert len(found) == 4 and away.min(0).max() <= 12 and sum(found.values()) == size**2
    assert (lossy.nearest(planes, exact.tolist()) == exact[classes]).mean() > 0.97


def test_grey_in_three_bands_is_grey_and_values_close_to_the_ends_are_the_ends(tmp_path):
    _, classes = scene(size=(90, 90))
    grey = np.array([0, 85, 170, 255], np.uint8)[classes]
    planes = read(write_image(tmp_path / "mask.jpg", np.stack([grey] * 3), "JPEG", QUALITY="60"))
    found = lossy.counted(planes[0])
    assert lossy.is_grey(planes) and {0, 255} < set(found) and len(found) == 4
    assert np.array_equal(lossy.nearest(planes, (0, 85, 170, 255)), grey)


def test_codes_that_are_nearly_the_same_are_one():
    assert lossy.merged({0: 900, 2: 40, 250: 3, 253: 500, 255: 100, 128: 1}) == {0: 940, 255: 603 + 1}


def test_a_photograph_is_no_mask(tmp_path):
    draw = np.random.default_rng(0)
    smooth = np.add.outer(np.linspace(40, 200, 96), draw.normal(0, 8, 96)).clip(0, 255).astype(np.uint8)
    assert not lossy.is_mask(coded(read(write_image(tmp_path / "grey.jpg", smooth, "JPEG"))))
    assert not lossy.is_mask(coded(read(write_image(tmp_path / "rgb.jpg", np.stack([smooth] * 3), "JPEG"))))


def test_images_and_masks_in_jpeg_are_read_with_the_nearest_code(tmp_path):
    image, classes = scene(size=(90, 90), bands=3)  # borders amid the blocks of 8 x 8
    mask = np.array([0, 255, 0, 255], np.uint8)[classes]
    write_image(tmp_path / "images" / "0.jpg", image.astype(np.uint8), "JPEG", QUALITY="95")
    write_image(tmp_path / "masks" / "0.jpg", mask, "JPEG", QUALITY="60")
    assert set(np.unique(read(tmp_path / "masks" / "0.jpg")[0])) - {0, 255}, "compression changed nothing"
    source = Source(bands=("r", "g", "b"), classes=("background", "water"), codes=(0, 255))
    ((found,), problems) = layout.find(tmp_path, source)
    assert not problems
    with readers.opened(found, source) as opened:
        got, target = opened.read((0, 0, 90, 90))
    assert np.array_equal(target, mask // 255) and np.abs(got - image).mean() < 8


def test_jpeg_beside_tiff_is_a_quick_look(tmp_path, capsys):
    image, classes = scene()
    write_tiff(tmp_path / "images" / "0.tif", image)
    write_tiff(tmp_path / "masks" / "0.tif", classes)
    write_image(tmp_path / "images" / "preview.jpeg", image[0].astype(np.uint8), "JPEG")
    scenes, _ = layout.find(tmp_path, Source(bands=("a", "b")))
    assert [one.name for one in scenes] == ["0"] and "such as preview.jpeg" in capsys.readouterr().out
