"""Scenes are found in every layout, with their masks and groups, and what is missing is named."""

import dataclasses

import numpy as np
import pytest

from lib.errors import BadInput
from lib.task import find_task, locate_data
from tests.machine.conftest import kaggle
from tests.workloads.glacier.files import (
    CODES,
    scene,
    write_bands,
    write_image,
    write_patches,
    write_scenes,
    write_tiff,
)
from workloads.glacier.data import layout, naming, readers
from workloads.glacier.data.homes import home
from workloads.glacier.settings import Source

TWO = Source(bands=("red", "nir"))


def only(root, source=TWO):
    scenes, problems = layout.find(root, source)
    assert problems == [] and len(scenes) == 1
    return scenes[0]


def test_patches_are_grouped_by_the_image_they_were_cut_from(tmp_path):
    source = Source(bands=("a", "b", "c"), classes=("background", "glacier", "debris"), codes=(0, 1, 2))
    scenes, problems = layout.find(write_patches(tmp_path), source)
    assert problems == [] and len(scenes) == 6
    assert sorted({s.group for s in scenes}) == ["slice_0", "slice_1", "slice_2"]


def test_files_named_differently_in_each_folder_are_matched_by_a_pattern(tmp_path):
    image, classes = scene()
    for number, (band, name) in enumerate((("Band1", "B2_masked_02_07"), ("Band2", "B3_masked_02_07"))):
        write_tiff(tmp_path / band / f"{name}.tif", image[number])
    write_tiff(tmp_path / "label" / "Y_output_02_07.tif", np.asarray(CODES, np.uint8)[classes])
    with pytest.raises(BadInput, match="name_pattern"):
        layout.find(tmp_path, TWO)
    assert only(tmp_path, Source(bands=("a", "b"), name_pattern=r"(\d{2}_\d{2})")).name == "02_07"


def test_a_search_that_stopped_in_a_band_of_the_test_set_finds_the_labelled_one(tmp_path):
    image, classes = scene()
    write_bands(tmp_path / "Test", "img001", image, None)
    write_bands(tmp_path / "Train", "img002", image, classes)
    assert only(home(tmp_path / "Test" / "Band1")).name == "img002"
    assert home(tmp_path / "Train" / "Band1") == tmp_path / "Train"


def test_a_folder_without_images_is_refused_with_the_layouts(tmp_path):
    with pytest.raises(BadInput, match="holds no images in a known layout"):
        layout.find(tmp_path, TWO)


def test_counts_of_files_are_told_for_each_band(tmp_path):
    scenes, problems = layout.find(write_scenes(tmp_path, 3), TWO)
    assert layout.summary(scenes, problems) == "3 scenes (files: Band1 3, Band2 3, label 3); 0 with something missing"


def test_bands_in_two_folders_are_refused_unless_one_of_them_has_labels(tmp_path):
    image, classes = scene()
    write_bands(tmp_path / "first", "img001", image, classes)
    write_bands(tmp_path / "second", "img002", image, None)
    assert only(tmp_path).name == "img001"
    write_bands(tmp_path / "second", "img002", image, classes)
    with pytest.raises(BadInput, match="holds bands in 2 folders: first, second. Name one of them in data.dir"):
        layout.find(tmp_path, TWO)


def test_without_labels_masks_are_not_looked_for(tmp_path):
    write_bands(tmp_path, "img001", scene()[0], None)
    with pytest.raises(BadInput, match="has bands but no masks"):
        layout.find(tmp_path, TWO)
    scenes, problems = layout.find(tmp_path, TWO, labelled=False)
    assert problems == [] and scenes[0].mask is None and len(scenes[0].images) == 2


def test_a_group_is_what_the_pattern_finds_in_a_name(tmp_path):
    write_scenes(tmp_path, 12)
    scenes, _ = layout.find(tmp_path, Source(bands=("red", "nir"), group_pattern=r"img(\d\d)"))
    assert sorted({s.group for s in scenes}) == ["00", "01"]


# --- among mounted inputs ---------------------------------------------------------------------------------------------


def images_and_masks(folder, name="img001"):
    image, classes = scene()
    write_tiff(folder / "images" / f"{name}.tif", image)
    write_tiff(folder / "masks" / f"{name}.tif", np.asarray(CODES, np.uint8)[classes])


@pytest.fixture
def mounted(monkeypatch, tmp_path):
    """mounted(data_dir) -> what the task finds among inputs: mounted.root is a data set, mounted.run an output."""
    kaggle(monkeypatch, tmp_path, ["datasets/ada/scenes", "notebooks/ada/glacier-ensemble"])
    glacier = find_task("glacier")

    def locate(data_dir=""):
        return locate_data(data_dir, glacier.sentinels, glacier.homes)

    locate.root = tmp_path / "input" / "datasets" / "ada" / "scenes"
    locate.run = tmp_path / "input" / "notebooks" / "ada" / "glacier-ensemble" / "glacier_ensemble"
    return locate


@pytest.mark.parametrize("below", ["", "GlacierHack/data"])
@pytest.mark.parametrize("name", ["", "scenes"])
def test_glacierhacks_own_layout_is_found_at_the_first_try(mounted, capsys, below, name):
    image, classes = scene(bands=5)
    for number in range(2):
        write_bands(mounted.root / below / "Train", f"img{number:03d}", image, classes)
    write_bands(mounted.root / below / "Test", "img900", image, None)
    found = mounted(name)
    assert found == mounted.root / below / "Train" and capsys.readouterr().out == ""
    scenes, problems = layout.find(home(found), Source(bands=tuple("abcde")))
    assert len(scenes) == 2 and problems == []


def test_images_and_masks_and_patches_are_found_too(mounted, capsys):
    images_and_masks(mounted.root / "v1")
    assert mounted() == mounted.root / "v1"
    write_patches(mounted.root.with_name("patches"))
    assert mounted("patches") == mounted.root.with_name("patches") and capsys.readouterr().out == ""


def test_the_maps_of_an_earlier_run_are_no_data(mounted, capsys):
    for name in ("img001", "img002"):
        write_tiff(mounted.run / "masks" / f"{name}.tif", np.zeros((64, 64), np.uint8))
    for name in ("config.yaml", "summary.json"):
        (mounted.run / name).write_text("{}")
    assert mounted() is None
    write_scenes(mounted.root, 2)
    assert mounted() == mounted.root and capsys.readouterr().out == ""


def test_images_without_masks_are_refused_and_not_passed_over(mounted):
    write_bands(mounted.root, "img001", scene()[0], None)
    with pytest.raises(BadInput, match="has bands but no masks"):
        layout.find(home(mounted()), TWO)


def test_train_and_test_in_an_input_are_the_split_unless_one_is_named(mounted, capsys):
    for part in ("test", "train"):
        images_and_masks(mounted.root / part)
    assert mounted() == mounted("scenes") == mounted.root
    scenes, problems = layout.find(mounted.root, TWO)
    assert [(s.name, s.group, s.part) for s in scenes] == [
        ("test/img001", "test/img001", "test"), ("train/img001", "train/img001", "train"),
    ] and problems == []  # fmt: skip
    train = mounted.root / "train"
    assert mounted(str(train)) == train and only(train).name == "img001"
    assert capsys.readouterr().out == ""


def test_data_in_two_inputs_is_said_and_the_first_taken(mounted, capsys):
    for folder in (mounted.root, mounted.root.with_name("zones")):
        write_scenes(folder, 1)
    assert mounted() == mounted.root
    assert "data lies in 2 folders" in capsys.readouterr().out


def test_a_name_that_would_steer_the_terminal_is_refused(tmp_path):
    image, classes = scene()
    write_bands(tmp_path, "img\x1b[2J\nTraining completed", image, classes)
    with pytest.raises(BadInput, match=r"holds a name with control characters, 'img\\x1b\[2J\\nTraining"):
        layout.find(tmp_path, TWO)


# --- other people's layouts -------------------------------------------------------------------------------------------


def test_bands_in_train_val_and_test_are_the_split_too(tmp_path):
    for part in ("Train", "val", "Test"):
        write_scenes(tmp_path / part, 1)
    scenes, _ = layout.find(tmp_path, TWO)
    assert {scene.name: scene.part for scene in scenes} == {
        "Test/img000": "test", "Train/img000": "train", "val/img000": "validation",
    }  # fmt: skip
    unlabelled, _ = layout.find(tmp_path, TWO, labelled=False)
    assert [scene.name for scene in unlabelled] == [scene.name for scene in scenes]


def test_folders_that_are_no_parts_are_refused_with_both_ways_out(tmp_path):
    for place in ("north", "south"):
        images_and_masks(tmp_path / place)
    with pytest.raises(BadInput, match="2 folders: north, south. Name one of them in data.*Or call them train, val"):
        layout.find(tmp_path, TWO)


@pytest.mark.parametrize(
    "images, masks, pattern",
    [
        (["Ghana_53713_S1Hand", "Spain_7_S1Hand"], ["Ghana_53713_LabelHand", "Spain_7_LabelHand"],
         "^(.+?)(?:_LabelHand|_S1Hand)$"),
        (["s0", "s1"], ["mask_s0", "mask_s1"], "^(?:mask_|)(.+?)$"),
        (["img001", "img002"], ["mask001", "mask002"], "^(?:mask|img)(.+?)$"),
        (["tileA-sat", "tileB-sat"], ["tileA-gt", "tileB-gt", "tileC-gt"], r"^(.+?)(?:\-sat|\-gt)$"),
    ],
)  # fmt: skip
def test_names_that_differ_are_answered_by_one_of_each_and_a_pattern_that_works(tmp_path, images, masks, pattern):
    for folder, names in (("images", images), ("labels", masks)):
        for name in names:
            write_tiff(tmp_path / folder / f"{name}.tif", np.zeros((8, 8), np.uint8))
    with pytest.raises(naming.NamesDiffer) as refusal:
        layout.find(tmp_path, TWO)
    assert refusal.value.pattern == pattern and f"name_pattern: '{pattern}'" in str(refusal.value)
    assert min(images) in str(refusal.value) and min(masks) in str(refusal.value)
    scenes, _ = layout.find(tmp_path, Source(bands=("a", "b"), name_pattern=pattern))
    assert len(scenes) == len(images)


def test_names_without_anything_in_common_are_shown_and_no_pattern_is_invented(tmp_path):
    for name in ("images/a.tif", "labels/x.tif"):
        write_tiff(tmp_path / name, np.zeros((8, 8), np.uint8))
    with pytest.raises(BadInput, match="names there: a, x.*Give workload.source.name_pattern"):
        layout.find(tmp_path, TWO)


FLOODS = {"S1Hand/{}_S1Hand.tif": 2, "LabelHand/{}_LabelHand.tif": 1, "JRCWaterHand/{}_JRCWaterHand.tif": 1}


def floods(root, count=3):
    """Folders as in Sen1Floods11: a sensor's, the labels' and another product's."""
    for number in range(count):
        for path, bands in FLOODS.items():
            write_tiff(root / path.format(f"Ghana_{number}"), np.zeros((bands, 8, 8), np.uint8), (number * 10**5, 0))
    return root


def test_any_layout_is_read_by_patterns_whose_star_is_the_name(tmp_path):
    with pytest.raises(BadInput, match=r"source.images: .*/\*_.*.tif and workload.source.masks: LabelHand/\*_LabelH"):
        layout.find(floods(tmp_path), TWO)
    source = Source(bands=("a", "b"), images="S1Hand/*_S1Hand.tif", masks="LabelHand/*_LabelHand.tif")
    (tmp_path / "LabelHand" / "Ghana_1_LabelHand.tif").unlink()
    scenes, problems = layout.find(tmp_path, source)
    assert [scene.name for scene in scenes] == ["Ghana_0", "Ghana_2"]
    assert len(problems) == 1 and "Ghana_1_S1Hand.tif has no mask: LabelHand/*_LabelHand.tif of Ghana_1" in problems[0]
    loose = Source(bands=("a", "b"), images="S1Hand/*.tif", masks="LabelHand/*.tif")
    with pytest.raises(naming.NamesDiffer) as refusal:
        layout.find(tmp_path, loose)
    again, _ = layout.find(tmp_path, dataclasses.replace(loose, name_pattern=refusal.value.pattern))
    assert [scene.name for scene in again] == ["Ghana_0", "Ghana_2"]
    with pytest.raises(BadInput, match="are both called Ghana by workload.source.name_pattern"):
        layout.find(tmp_path, dataclasses.replace(loose, name_pattern="(Ghana)"))
    with pytest.raises(BadInput, match="has no file S2/.*Correct workload.source.images"):
        layout.find(tmp_path, Source(bands=("a", "b"), images="S2/*.tif", masks="LabelHand/*.tif"))


def test_stars_may_stand_for_parts_and_for_folders_of_single_scenes(tmp_path):
    for name in ("train/images/0", "train/masks/0", "val/images/0", "val/masks/0"):
        write_tiff(tmp_path / "a" / f"{name}.tif", np.zeros((8, 8), np.uint8))
    source = Source(bands=("a", "b"), images="*/images/*.tif", masks="*/masks/*.tif")
    scenes, _ = layout.find(tmp_path / "a", source)
    assert {scene.name: scene.part for scene in scenes} == {"train/0": "train", "val/0": "validation"}
    for name in ("x/image", "x/mask", "y/image", "y/mask"):
        write_tiff(tmp_path / "b" / f"{name}.tif", np.zeros((8, 8), np.uint8))
    with pytest.raises(BadInput, match=r"images: \*/image.tif and workload.source.masks: \*/mask.tif"):
        layout.find(tmp_path / "b", TWO)
    scenes, _ = layout.find(tmp_path / "b", Source(bands=("a",), images="*/image.tif", masks="*/mask.tif"))
    assert [scene.name for scene in scenes] == ["x", "y"]


def test_png_jpeg2000_and_imagine_files_are_scenes_and_a_vrt_never_is(tmp_path):
    image, classes = scene(size=(32, 32))
    codes = np.asarray(CODES, np.uint8)[classes]
    for driver, ending in (("JP2OpenJPEG", "jp2"), ("HFA", "img"), ("PNG", "png")):
        root = tmp_path / ending
        options = {"QUALITY": "100", "REVERSIBLE": "YES"} if ending == "jp2" else {}
        write_image(root / "images" / f"0.{ending}", image.astype(np.uint8), driver, **options)
        write_image(root / "labels" / "0.png", codes)
        (root / "images" / "1.vrt").write_text("<VRTDataset/>")
        found = only(root)
        assert (found.images[0].name, found.mask.name) == (f"0.{ending}", "0.png")
        with readers.opened(found, TWO) as opened:
            got, target = opened.read((0, 0, 32, 32))
        assert np.array_equal(got, image.astype(np.uint8)) and np.array_equal(target, classes)


def test_what_macos_writes_beside_files_is_no_scene_and_that_is_said(tmp_path, capsys):
    images_and_masks(tmp_path)
    for folder in ("images", "masks"):
        (tmp_path / folder / "._img001.tif").write_bytes(b"Mac OS X")
    assert only(tmp_path).name == "img001"
    assert "2 files named ._* are left out" in capsys.readouterr().out


def test_a_quick_look_in_another_format_and_images_without_masks_are_left_out_aloud(tmp_path, capsys):
    images_and_masks(tmp_path / "train")
    write_image(tmp_path / "train" / "images" / "preview.png", np.zeros((64, 64), np.uint8))
    write_tiff(tmp_path / "test" / "images" / "img9.tif", scene()[0])
    assert only(tmp_path).name == "img001"
    said = capsys.readouterr().out
    assert "train/images: 1 files in another format are left out, such as preview.png" in said
    assert "test: its images have no masks, so they are left out" in said


def test_mounted_chips_in_png_are_found(mounted, capsys):
    write_image(mounted.root / "v1" / "images" / "0.png", np.zeros((8, 8), np.uint8))
    write_image(mounted.root / "v1" / "labels" / "0.png", np.zeros((8, 8), np.uint8))
    assert mounted() == mounted.root / "v1" and capsys.readouterr().out == ""
