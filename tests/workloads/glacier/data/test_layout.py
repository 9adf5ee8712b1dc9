"""Files of scenes are matched by the documented layouts and by patterns, read alike, and named where they cannot be."""

import dataclasses

import numpy as np
import pytest
import yaml

from lib.errors import BadInput
from lib.task import find_task, load_config, locate_data
from tests.machine.conftest import kaggle
from tests.workloads.glacier.files import (
    PATCHES,
    TWO,
    coded,
    scene,
    write_bands,
    write_image,
    write_patches,
    write_scenes,
    write_tiff,
)
from workloads.glacier.data import layout, readers
from workloads.glacier.data.readers import Unusable
from workloads.glacier.settings import IGNORE, Source


def names(root, source=TWO, labelled=True):
    scenes, problems, _ = layout.find(root, source, labelled)
    assert problems == []
    return [scene.name for scene in scenes]


def read(where, source=TWO, size=64):
    """What is read of a scene, or of the first in a folder."""
    if isinstance(where, readers.Scene):
        found = where
    else:
        found = layout.find(where, source).scenes[0]
    with readers.opened(found, source) as opened:
        return opened.read((0, 0, size, size))


def write_empty(root, *paths, bands=1):
    for path in paths:
        write_tiff(root / f"{path}.tif", np.zeros((bands, 8, 8), np.uint8))


RGB = "bands: [red, green, blue]\n"
LAND = "classes: [land, water]\ncodes: [0, 1]\n"
WHITE = "classes: [other, building]\ncodes: [0, 255]\n"
# Red * 65536 + green * 256 + blue
COLOURS = "classes: [other, tree, car]\ncodes: [0, 65280, 16711680]\n"
COLLECTIONS = {  # bands and classes; patterns of images and masks; files of which each has {n} of 3; the first's name
    "HLS burn scars": (RGB + LAND + "ignored_codes: [-1]\n", "{part}/{scene}_merged.tif", "{part}/{scene}.mask.tif",
                       "training/HLS.T10.{n}_merged.tif, training/HLS.T10.{n}.mask.tif", "training/HLS.T10.0"),
    "CaFFe": ("bands: [sar]\nclasses: [none, rock, ice, sea]\ncodes: [0, 64, 127, 254]\n", "sar_images/*/*_*.png",
              "gt/*/*_zones_*.png", "sar_images/train/Crane_17_{n}.png, gt/train/Crane_17_zones_{n}.png",
              "train/Crane_17/0"),
    "MARIDA": (RGB + LAND, "patches/*/*[0-9].tif", "patches/*/*[0-9]_cl.tif",
               "patches/S2/S2_1{n}.tif, patches/S2/S2_1{n}_cl.tif, patches/S2/S2_1{n}_conf.tif", "S2/S2_1/0"),
    "38-Cloud": ("bands: [red, nir]\n" + WHITE, "train_{band}/{band}_{scene}.tif", "train_gt/gt_{scene}.tif",
                 "train_red/red_p_{n}.tif, train_nir/nir_p_{n}.tif, train_gt/gt_p_{n}.tif, test_red/red_p_{n}.tif",
                 "p_0"),
    "DeepGlobe": (RGB + COLOURS, "{part}/{scene}_sat.jpg", "{part}/{scene}_mask.png",
                  "train/{n}_sat.jpg, train/{n}_mask.png, valid/9{n}_sat.jpg", "train/0"),
    "LoveDA": (RGB + LAND, "*/*/images_png/*.png", "*/*/masks_png/*.png",
               "Train/Rural/images_png/{n}.png, Train/Rural/masks_png/{n}.png", "Train/Rural/0"),
    "GlacierHack": ("bands: [a, b]\nband_files: ['1', '2']\n" + WHITE, "Band{band}/*_masked_{scene}.tif",
                    "label/Y_output_{scene}.tif", "Band1/B2_masked_02_0{n}.tif, Band2/B3_masked_02_0{n}.tif, "
                    "label/Y_output_02_0{n}.tif", "02_00"),
    "SWED": (RGB + LAND, "images/*_image_*.npy", "labels/*_chip_*.npy",
             "images/S2A_T5{n}_image_0_1.npy, labels/S2A_T5{n}_chip_0_1.npy", "S2A_T50/0_1"),
    "liligo": ("bands: [Band1_srtm, Band2_lst]\n" + WHITE, "{band}.tif", "mask_0_85_170_255.tif",
               "Band1_srtm.tif, Band2_lst.tif, Band5_precip.tif, mask_0_85_170_255.tif", "scene"),
    "UAVid": (RGB + COLOURS, "uavid_{part}/*/Images/*.png", "uavid_{part}/*/Labels/*.png",
              "uavid_train/seq1/Images/{n}.png, uavid_train/seq1/Labels/{n}.png, uavid_test/seq2/Images/{n}.png",
              "train/seq1/0"),
    "two sensors": (RGB + LAND, "{scene}/*_s2_*_img.tif", "{scene}/*_s2_*_msk.tif",
                    "{n}/x_s1_{n}_img.tif, {n}/x_s1_{n}_msk.tif, {n}/x_s2_{n}_img.tif, {n}/x_s2_{n}_msk.tif", "0"),
    "reference maps": ("bands: [green, blue]\nband_files: [B03, B02]\n" + LAND, "S2/{scene}/{scene}_{band}.tif",
                       "Maps/{scene}/{scene}_map.tif",
                       "S2/P{n}/P{n}_B02.tif, S2/P{n}/P{n}_B03.tif, S2/P{n}/P{n}_B1.tif, Maps/P{n}/P{n}_map.tif", "P0"),
    "Sentinel-2": ("bands: [B02, B03]\n" + LAND, "{scene}/T43_*_{band}_10m.tif", "{scene}/mask.tif",
                   "S{n}/T43_2020{n}_B02_10m.tif, S{n}/T43_2020{n}_B03_10m.tif, S{n}/mask.tif", "S0"),
    "two formats": (RGB + LAND, "{scene}.tif", "{scene}.png", "{n}.tif, {n}.png", "0"),
}  # fmt: skip
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".tif": "GTiff"}


def write_sample(root, source, files):
    """Three scenes whose masks have every class."""
    for number in range(3):
        image, classes = scene(
            number, (32, 32), 1 if "{band}" in source.images else len(source.bands)
        )
        codes = np.asarray(source.codes)[classes % len(source.codes)]
        for template in files:
            path = root / template.format(n=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")  # so that the pattern sees it
            values = image if path.suffix == ".tif" else image.astype(np.uint8)
            if path in [file.path for file in layout.matching(root, source.masks).values()]:
                coloured = np.stack([codes >> 16, codes >> 8 & 255, codes & 255])
                values = (coloured if max(source.codes) > 255 else codes).astype(np.uint8)
            if path.suffix == ".npy":
                np.save(path, values[None] if values.ndim == 2 else values.transpose(1, 2, 0))
            else:
                write_image(path, values, FORMATS[path.suffix])


@pytest.mark.parametrize("name", COLLECTIONS)
def test_public_collections_load_by_at_most_six_lines(tmp_path, name):
    keys, images, masks, files, first = COLLECTIONS[name]
    text = f"{keys}images: '{images}'\nmasks: '{masks}'"
    assert len(text.splitlines()) <= 6
    run = {"task": "glacier", "training": {"effective_batch": 1, "max_steps": 1}}
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump({**run, "workload": {"source": yaml.safe_load(text)}})
    )
    source = load_config(tmp_path / "own.yaml").workload.source
    write_sample(tmp_path / "data", source, files.split(", "))
    scenes, problems, _ = layout.find(tmp_path / "data", source)
    assert len(scenes) == (3 if "{n}" in files else 1)
    assert problems == []
    assert scenes[0].name == first
    image, target = read(scenes[0], source, 32)
    assert image.shape == (len(source.bands), 32, 32)
    assert len(set(target.flat)) == len(source.codes)
    assert scenes[0].part == ("train" if "train" in first.lower() else "")


def test_without_labels_scenes_need_no_masks_and_none_of_the_layouts(
    tmp_path,
):
    write_bands(tmp_path / "bands", "img001", scene()[0], None)
    with pytest.raises(
        BadInput,
        match=r"no scene with a mask by Band\{band\}.*Files there: Band1/img001.tif, Band2",
    ):
        layout.find(tmp_path / "bands", TWO)
    scenes, problems, _ = layout.find(tmp_path / "bands", TWO, labelled=False)
    assert problems == []
    assert scenes[0].mask is None
    assert len(scenes[0].images) == 2
    write_empty(tmp_path / "new", "a", "b", bands=2)
    assert names(tmp_path / "new", labelled=False) == ["a", "b"]


def test_nothing_that_matches_is_refused_with_the_patterns_and_the_first_names(tmp_path):
    single = Source(bands=("a",), images="{scene}.tif", masks="{scene}_mask.tif")
    with pytest.raises(BadInput, match="is not a folder"):
        layout.find(tmp_path / "none", TWO)
    for sentence, files, source in (
        ("No raster and no .npy lies there", "", TWO),
        (
            r"by \{scene\}.tif with \{scene\}_mask.tif. Files there: .*a.tif, .*c.tif",
            "x/a, x/b, x/c, x/d",
            single,
        ),
        (
            r"img\\x1b\[2J\\nTraining done.tif' has control characters",
            "images/img\x1b[2J\nTraining done",
            TWO,
        ),
    ):
        write_empty(tmp_path, *filter(None, files.split(", ")))
        with pytest.raises(BadInput, match=sentence):
            layout.find(tmp_path, source)


def test_files_named_differently_in_each_folder_are_refused_with_the_pattern_that_matches_them(
    tmp_path,
):
    write_empty(tmp_path, "Band1/B2_masked_02_07", "Band2/B3_masked_02_07", "label/Y_output_02_07")
    with pytest.raises(
        BadInput,
        match=r"No scene has all of its bands.*B2_masked_02_07 by Band1.*Write .scene. for",
    ):
        layout.find(tmp_path, TWO)


@pytest.mark.parametrize("below, name", [("", "scenes"), ("GlacierHack/data", "")])
def test_scenes_are_found_among_inputs_and_the_maps_of_a_run_are_none(
    monkeypatch, tmp_path, capsys, below, name
):
    kaggle(monkeypatch, tmp_path, ["datasets/ada/scenes", "notebooks/ada/glacier-ensemble"])
    run = tmp_path / "input" / "notebooks" / "ada" / "glacier-ensemble" / "glacier_ensemble"
    write_empty(run / "masks", "img001", "img002")
    for record in ("config.yaml", "summary.json"):
        (run / record).write_text("{}")
    sentinels = find_task("glacier").sentinels
    assert locate_data("", sentinels) is None
    root = tmp_path / "input" / "datasets" / "ada" / "scenes" / below
    write_scenes(root / "Train", 2, bands=5)
    write_bands(root / "Test", "img900", scene(bands=5)[0], None)
    capsys.readouterr()
    assert locate_data(name, sentinels) == root
    assert capsys.readouterr().out == ""
    assert names(root, Source(bands=tuple("abcde"))) == ["Train/img000", "Train/img001"]


def test_channels_choose_folders_and_bands(tmp_path):
    image, classes = scene(bands=4)
    write_bands(tmp_path / "a", "img001", image, classes)
    write_tiff(tmp_path / "b" / "images" / "img001.tif", image)
    write_tiff(tmp_path / "b" / "masks" / "img001.tif", coded(classes))
    source = dataclasses.replace(TWO, channels=(4, 2))
    assert all(np.array_equal(read(tmp_path / folder, source)[0], image[[3, 1]]) for folder in "ab")


def test_the_last_layer_that_a_patchs_mask_sets_is_its_class(tmp_path):
    first = layout.find(write_patches(tmp_path), PATCHES).scenes[0]
    image, classes = scene(0, (32, 32), 5)
    got, target = read(first, PATCHES, 32)
    assert np.array_equal(got, image[:3])
    assert np.array_equal(target, np.minimum(classes, 2))


def test_patches_group_by_image_as_documented(tmp_path):
    scenes = layout.find(write_patches(tmp_path), PATCHES).scenes
    (group,) = {scene.group for scene in scenes[:2]}
    assert group.startswith("slice")


def test_patches_are_groups_of_their_own_by_a_written_pattern(tmp_path):
    write_patches(tmp_path / "north")
    write_patches(tmp_path / "south")
    written = dataclasses.replace(PATCHES, images="*/*_img_*.npy", masks="*/*_mask_*.npy")
    groups = [scene.group for scene in layout.find(tmp_path, written).scenes]
    assert len(set(groups)) == len(groups)


def test_nan_nodata_and_ignored_codes_become_ignored_pixels(tmp_path):
    """A class whose code is the mask's nodata stays a class."""
    image, classes = scene()
    image[0, 0, 0] = np.nan
    image[1, 1, 1] = -9999
    image[0, 2, 2] = -1
    write_bands(tmp_path, "img001", image, classes, nodata=-9999)
    mask = coded(classes)
    mask[3, 3] = 7
    write_tiff(tmp_path / "label" / "img001.tif", mask, nodata=255)
    got, target = read(tmp_path, dataclasses.replace(TWO, nodata=(-1.0,), ignored_codes=(7,)))
    ignored = [[0, 0], [1, 1], [2, 2]]
    unknown = np.isnan(got)
    assert np.argwhere(unknown.all(0)).tolist() == ignored
    assert np.argwhere(unknown.any(0)).tolist() == ignored
    assert np.argwhere(target == IGNORE).tolist() == [*ignored, [3, 3]]
    assert (target[classes == 3] == 3).all()


CLASSES = scene(size=(16, 16))[1]
GREY = coded(CLASSES)
ALPHA = np.full_like(GREY, 200)  # the last band says how opaque a pixel is
RED = np.stack([GREY, GREY * 0, GREY * 0])
LAYERS = (np.arange(1, 4)[:, None, None] == CLASSES).astype(np.uint16)


def read_mask(folder, mask, **options):
    write_tiff(folder / "images" / "0.tif", np.ones((2, 16, 16), np.float32))
    write_image(folder / "masks" / "0.png", mask)
    return read(folder, dataclasses.replace(TWO, **options), 16)[1]


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(np.stack([GREY] * 3), id="equal bands"),
        pytest.param(np.stack([GREY, ALPHA]), id="grey and alpha"),
        pytest.param(np.stack([GREY, GREY, GREY, ALPHA]), id="colours and alpha"),
    ],
)
def test_a_mask_of_equal_bands_is_read(tmp_path, mask):
    assert np.array_equal(read_mask(tmp_path, mask), CLASSES)


def test_a_mask_of_colours_is_read_by_their_codes(tmp_path):
    codes = tuple(code * 65536 for code in TWO.codes)
    assert np.array_equal(read_mask(tmp_path, RED, codes=codes), CLASSES)


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (RED, r"has colours, such as \(85, 0, 0\).*\(here 5570560\)"),
        (LAYERS, "has 3 bands that differ. Export the one that has the codes"),
    ],
    ids=["colours", "layers"],
)
def test_a_mask_of_bands_that_differ_is_refused(tmp_path, mask, sentence):
    with pytest.raises(Unusable, match=sentence):
        read_mask(tmp_path, mask)


BAND = "Band2/img001.tif"
LABEL = "label/img001.tif"


def no_band(folder):
    (folder / BAND).rename(folder / "Band2/img002.tif")


def no_mask(folder):
    (folder / LABEL).rename(folder / "label/x.tif")


def half_a_band(folder):
    content = (folder / BAND).read_bytes()
    (folder / BAND).write_bytes(content[:9000])


def another_size(folder):
    write_tiff(folder / BAND, scene(0, (64, 60))[0][0])


def another_place(folder):
    write_tiff(folder / BAND, scene()[0][0], (900, 0))


def another_code(folder):
    write_tiff(folder / LABEL, np.full((64, 64), 99, np.uint8))


def complex_numbers(folder):
    write_tiff(folder / BAND, scene()[0][0].astype(np.complex64))


def complex_integers(folder):
    plane = scene()[0][0].astype(np.complex64)
    write_tiff(folder / BAND, plane, dtype="complex_int16")


BROKEN = [  # a change of a folder, and words of the message
    (no_band, ["img001", "a band is missing"]),
    (no_mask, ["img001.tif", "has no mask"]),
    (half_a_band, [BAND, "again"]),
    (another_size, [BAND, "64 x 60 pixels"]),
    (another_place, [BAND, "other ground"]),
    (another_code, [LABEL, "the value 99 in 4,096 pixels", "[0, 85, 170, 255]"]),
    (complex_numbers, [BAND, "of the type complex64"]),
    (complex_integers, [BAND, "of the type complex_int16"]),
]


@pytest.mark.parametrize("change, words", BROKEN)
def test_a_scene_that_cannot_be_used_is_named_by_its_file_alone(tmp_path, change, words):
    for name in ("img001", "img009"):
        write_bands(tmp_path, name, *scene())
    change(tmp_path)
    scenes, problems, _ = layout.find(tmp_path, TWO)
    for found in scenes:
        try:
            read(found)
        except Unusable as problem:
            problems.append(str(problem))
    assert all(any(word in sentence for sentence in problems) for word in words), problems
    assert not any("img009" in sentence for sentence in problems)
