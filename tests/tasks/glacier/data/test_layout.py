"""Scenes are found in every layout, with their masks and groups, and what is missing is named."""

import numpy as np
import pytest

from lib.errors import BadInput
from lib.tasks.glacier.data import layout
from lib.tasks.glacier.settings import Source
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
