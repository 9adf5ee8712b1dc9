"""Scenes are found in every layout, with their masks and groups, and what is missing is named."""

import numpy as np
import pytest

from lib.errors import BadInput
from lib.task import find_task, locate_data
from lib.tasks.glacier.data import layout
from lib.tasks.glacier.settings import Source
from tests.machine.conftest import kaggle
from tests.tasks.glacier.files import CODES, scene, write_bands, write_patches, write_scenes, write_tiff

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
    assert only(layout.home(tmp_path / "Test" / "Band1")).name == "img002"
    assert layout.home(tmp_path / "Train" / "Band1") == tmp_path / "Train"


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
    scenes, problems = layout.find(layout.home(found), Source(bands=tuple("abcde")))
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
        layout.find(layout.home(mounted()), TWO)


def test_train_and_test_are_refused_by_their_names_unless_one_is_named(mounted, capsys):
    for part in ("test", "train"):
        images_and_masks(mounted.root / part)
    assert mounted() == mounted("scenes") == mounted.root
    with pytest.raises(BadInput, match=r"holds images with masks in 2 folders: test, train. Name one of them in data"):
        layout.find(mounted.root, TWO)
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
