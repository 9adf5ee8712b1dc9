"""Scenes by patterns in the settings: bands in files of their own, and which images without a mask are no mistake."""

import numpy as np
import pytest

from lib.errors import BadInput
from tests.workloads.glacier.files import scene, write_tiff
from workloads.glacier.data import layout, readers
from workloads.glacier.settings import Source

BANDS = ("red", "nir")
BY_BAND = Source(bands=BANDS, images="train_{band}/{band}_*.tif", masks="train_gt/gt_*.tif", codes=(0, 1, 2, 3))


def clouds(root, count=3, part="train"):
    """A folder a band and a folder of masks, each file beginning with the folder's word."""
    for number in range(count):
        image, classes = scene(number)
        for word, plane in (*zip(BANDS, image, strict=True), ("gt", classes)):
            if part == "train" or word != "gt":
                write_tiff(root / f"{part}_{word}" / f"{word}_patch_{number}.tif", plane, (number * 10**5, 0))
    return root


def test_a_band_in_a_pattern_stands_for_each_band_in_its_order(tmp_path):
    scenes, problems = layout.find(clouds(tmp_path), BY_BAND)
    assert [one.name for one in scenes] == ["patch_0", "patch_1", "patch_2"] and not problems
    with readers.opened(scenes[1], BY_BAND) as opened:
        got, target = opened.read((0, 0, 64, 64))
    image, classes = scene(1)
    assert np.array_equal(got, image) and np.array_equal(target, classes)
    other = Source(bands=("r", "n"), band_files=BANDS, images=BY_BAND.images, masks=BY_BAND.masks, codes=(0, 1, 2, 3))
    assert layout.find(tmp_path, other)[0] == scenes


def test_a_band_that_a_scene_lacks_is_named_and_a_band_that_all_lack_is_refused(tmp_path):
    clouds(tmp_path)
    (tmp_path / "train_nir" / "nir_patch_1.tif").unlink()
    scenes, problems = layout.find(tmp_path, BY_BAND)
    assert len(scenes) == 2 and "patch_1 has no file train_nir/nir_*.tif: a band is missing" in problems[0]
    wrong = Source(bands=("red", "swir"), images=BY_BAND.images, masks=BY_BAND.masks)
    with pytest.raises(BadInput, match=r"no file train_swir/swir_\*.tif.*name the bands in workload.source.band_files"):
        layout.find(tmp_path, wrong)


@pytest.mark.parametrize("below", ["", "clouds", "clouds/inner"])
def test_new_scenes_by_bands_need_no_masks_and_lie_in_folders_of_another_part(tmp_path, below):
    clouds(tmp_path / below, part="test")
    source = Source(bands=BANDS, images="clouds/inner/train_{band}/{band}_*.tif", masks="clouds/gt/gt_*.tif")
    scenes, problems = layout.find(tmp_path, source, labelled=False)
    assert not problems
    assert len(scenes) == 3 and all(one.mask is None and len(one.images) == 2 for one in scenes)
    assert [path.name for path in scenes[0].images] == ["red_patch_0.tif", "nir_patch_0.tif"]


def test_images_of_a_folder_without_any_mask_are_left_out_aloud_and_one_among_labelled_is_a_mistake(tmp_path, capsys):
    for name in ("train/images/a", "train/images/b", "train/gt/a", "test/images/c", "test/images/d"):
        write_tiff(tmp_path / f"{name}.tif", np.zeros((8, 8), np.uint8))
    source = Source(bands=("a",), images="*/images/*.tif", masks="*/gt/*.tif")
    scenes, problems = layout.find(tmp_path, source)
    assert [one.name for one in scenes] == ["train/a"]
    assert len(problems) == 1 and "images/b.tif has no mask" in problems[0]
    assert "test/images: its 2 images have no masks, so they are left out" in capsys.readouterr().out


def test_files_called_as_a_scene_and_more_are_left_out_aloud(tmp_path, capsys):
    for name in ("x_0", "x_0_cl", "x_0_conf", "x_1", "x_1_cl", "x_1_conf", "x_2"):
        write_tiff(tmp_path / f"{name}.tif", np.zeros((8, 8), np.uint8))
    scenes, problems = layout.find(tmp_path, Source(bands=("a",), images="*.tif", masks="*_cl.tif"))
    assert [one.name for one in scenes] == ["x_0", "x_1"]
    assert len(problems) == 1 and "x_2.tif has no mask" in problems[0]
    assert "2 files called as a scene and more are left out, such as x_0_conf.tif" in capsys.readouterr().out
