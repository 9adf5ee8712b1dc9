"""Scenes in every layout are read alike; what cannot be used is named by its file."""

import dataclasses

import numpy as np
import pytest

from lib.scores import IGNORE
from tests.conftest import SAMPLES
from tests.workloads.glacier.files import CODES, scene, write_bands, write_image, write_patches, write_tiff
from workloads.glacier.data import layout, readers
from workloads.glacier.data.readers import Unusable
from workloads.glacier.settings import Source

TWO = Source(bands=("red", "nir"))
WHOLE = (0, 0, 64, 64)


def test_channels_choose_folders_and_bands(tmp_path):
    image, classes = scene(bands=4)
    write_bands(tmp_path / "a", "img001", image, classes)
    write_tiff(tmp_path / "b" / "images" / "img001.tif", image)
    write_tiff(tmp_path / "b" / "masks" / "img001.tif", np.asarray(CODES, np.uint8)[classes])
    source = Source(bands=("red", "nir"), channels=(4, 2))
    for folder in ("a", "b"):
        assert np.array_equal(read(only(tmp_path / folder, source), source)[0], image[[3, 1]])


def test_the_last_layer_that_a_patchs_mask_sets_is_its_class(tmp_path):
    source = Source(bands=("a", "b", "c"), classes=("background", "glacier", "debris"), codes=(0, 1, 2))
    scenes, _ = layout.find(write_patches(tmp_path), source)
    image, classes = scene(0, (32, 32), 5)
    got, target = read(scenes[0], source, (0, 0, 32, 32))
    assert np.array_equal(got, image[:3])
    assert np.array_equal(target, np.minimum(classes, 2))
    with pytest.raises(Unusable, match="has 2 layers, and there are 1 classes beside land"):
        read(scenes[0], Source(bands=("a",), classes=("land", "ice"), codes=(0, 1)), (0, 0, 32, 32))


def test_nan_nodata_and_ignored_codes_become_ignored_pixels_in_every_band(tmp_path):
    image, classes = scene()
    image[0, 0, 0], image[1, 1, 1], image[0, 2, 2] = np.nan, -9999, -1
    write_bands(tmp_path, "img001", image, classes, nodata=-9999)
    mask = np.asarray(CODES, np.uint8)[classes]
    mask[3, 3] = 7
    write_tiff(tmp_path / "label" / "img001.tif", mask)
    source = dataclasses.replace(TWO, nodata=(-1.0,), ignored_codes=(7,))
    got, target = read(only(tmp_path, source), source)
    for pixel in ((0, 0), (1, 1), (2, 2)):
        assert np.isnan(got[:, *pixel]).all() and target[pixel] == IGNORE
    assert target[3, 3] == IGNORE and np.isfinite(got[:, 3, 3]).all()
    assert (target == IGNORE).sum() == 4


def test_a_class_whose_code_is_marked_as_nodata_stays_a_class(tmp_path):
    image, classes = scene()
    write_bands(tmp_path, "img001", image, classes)
    write_tiff(tmp_path / "label" / "img001.tif", np.asarray(CODES, np.uint8)[classes], nodata=255)
    assert np.array_equal(read(only(tmp_path))[1], classes)


def masked(tmp_path, mask, source, **options):
    """What is read of a scene whose mask is these (bands, h, w)."""
    write_tiff(tmp_path / "images" / "0.tif", np.ones((2, *mask.shape[1:]), np.float32))
    write_image(tmp_path / "masks" / "0.png", mask)
    return read(only(tmp_path, source), source, (0, 0, *mask.shape[1:]))[1]


def test_a_mask_of_equal_bands_is_its_first_and_one_of_colours_is_refused_or_coded(tmp_path):
    classes = scene(size=(16, 16))[1]
    grey = np.asarray(CODES, np.uint8)[classes]
    assert np.array_equal(masked(tmp_path, np.stack([grey] * 3), TWO), classes)
    opaque = np.stack([grey, grey, grey, np.full_like(grey, 200)])
    assert np.array_equal(masked(tmp_path, opaque, TWO), classes)
    colours = np.stack([grey, grey * 0, grey * 0])
    with pytest.raises(Unusable, match=r"has colours, such as \(85, 0, 0\).*\(here 5570560\).*source.mask_band"):
        masked(tmp_path, colours, TWO)
    assert np.array_equal(masked(tmp_path, colours, dataclasses.replace(TWO, mask_band=1)), classes)
    coded = dataclasses.replace(TWO, codes=tuple(code * 65536 for code in CODES))
    assert np.array_equal(masked(tmp_path, colours, coded), classes)


def test_a_mask_of_several_bands_is_layers_where_the_settings_say_so(tmp_path):
    classes = scene(size=(16, 16))[1]
    layers = np.stack([classes == k for k in (1, 2, 3)]).astype(np.uint8)
    source = dataclasses.replace(TWO, mask_layers=(1, 2, 3))
    assert np.array_equal(masked(tmp_path, layers, source), classes)
    (tmp_path / "masks" / "0.png").unlink()
    write_tiff(tmp_path / "masks" / "0.tif", layers.astype(np.int16))
    with pytest.raises(Unusable, match="has 3 bands that differ. Say in workload.source.mask_band"):
        read(only(tmp_path), TWO, (0, 0, 16, 16))
    with pytest.raises(Unusable, match="has 3 bands, fewer than workload.source.mask_band"):
        read(only(tmp_path), dataclasses.replace(TWO, mask_band=4), (0, 0, 16, 16))


def read(found, source=TWO, window=WHOLE):
    with readers.opened(found, source) as opened:
        return opened.read(window)


def only(root, source=TWO):
    scenes, problems = layout.find(root, source)
    assert problems == [] and len(scenes) == 1
    return scenes[0]


def cut_off(path, share):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


BAND, LABEL = "Band2/img001.tif", "label/img001.tif"
BROKEN = {  # what is done to a folder, and words of what is said
    "another size": (lambda f: write_tiff(f / BAND, scene(0, (64, 60))[0][0]), [BAND, "64 x 60 pixels"]),
    "another system": (lambda f: write_tiff(f / BAND, scene()[0][0], crs="EPSG:32644"), [BAND, "32644"]),
    "another place": (lambda f: write_tiff(f / BAND, scene()[0][0], (900, 0)), [BAND, "other ground"]),
    "no band": (lambda f: (f / BAND).rename(f / "Band2/img002.tif"), ["img001", "a band is missing"]),
    "no mask": (lambda f: (f / LABEL).rename(f / "label/x.tif"), ["img001.tif", "has no mask"]),
    "a code": (
        lambda f: write_tiff(f / LABEL, np.full((64, 64), 99, np.uint8)),
        [LABEL, "the value 99 in 4,096 pixels", "[0, 85, 170, 255]"],
    ),
    "half": (lambda f: cut_off(f / BAND, 0.5), [BAND, "again"]),
    "a head": (lambda f: cut_off(f / BAND, 0.001), [BAND, "cannot be opened"]),
    "nothing": (lambda f: cut_off(f / BAND, 0), [BAND, "cannot be opened"]),
}


@pytest.mark.parametrize("change, words", BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_used_is_named_by_its_file_and_what_lies_beside_it_is_not(tmp_path, change, words):
    for name in ("img001", "img009"):
        write_bands(tmp_path, name, *scene())
    change(tmp_path)
    scenes, problems = layout.find(tmp_path, TWO)
    for found in scenes:
        try:
            read(found)
        except Unusable as problem:
            problems.append(str(problem))
    assert all(any(word in sentence for sentence in problems) for word in words), problems
    assert not any("img009" in sentence for sentence in problems)


@pytest.mark.skipif(not (SAMPLES / "glacier_liligo").is_dir(), reason="sample data is not there")
def test_a_real_glacier_whose_bands_are_nan_off_the_ice(tmp_path):
    folder = SAMPLES / "glacier_liligo"
    places = {f"Band{n}": path for n, path in enumerate(sorted(folder.glob("Band[2-5]*.tif")), 1)}
    for name, path in {**places, "label": folder / "mask_0_85_170_255.tif"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "liligo.tif").symlink_to(path)
    source = Source(bands=tuple("abcd"))
    with readers.opened(only(tmp_path, source), source) as opened:
        image, target = opened.read((0, 0, opened.height, opened.width))
        assert opened.crs == "EPSG:32643"
    labelled = np.bincount(target.ravel(), minlength=256)
    assert image.shape == (4, 480, 346)
    assert labelled[1:4].sum() > 30_000, "12,189 of ice, 3,519 of debris and 18,914 of firn, less what has no data"
    assert labelled[IGNORE] == np.isnan(image[0]).sum()
