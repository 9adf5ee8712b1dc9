"""Pixels that a quality band hides are no data; bands by a scene's own percentiles."""

import dataclasses
import runpy

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from lib.scores import IGNORE
from lib.task import load_task
from tests.workloads.glacier.data.test_scene_folders import write
from tests.workloads.glacier.files import scene, write_bands, write_tiff
from tests.workloads.glacier.test_maps import ByPixel
from workloads.glacier import maps
from workloads.glacier.data import layout, readers, stretch
from workloads.glacier.data.quality import hidden
from workloads.glacier.data.rasters import Unusable
from workloads.glacier.settings import Quality, Source

WHOLE = (0, 0, 64, 64)


def source(quality=None, **more):
    return Source(bands=("red", "nir"), quality=quality or Quality(), **more)


def clouds():
    found = np.zeros((64, 64), np.uint16)
    found[:4], found[4:6], found[6:7] = 9, 4, 1 << 3
    return found


def read(root, settings, labelled=True):
    scenes, problems = layout.find(root, settings, labelled)
    assert not problems, problems
    with readers.opened(scenes[0], settings) as opened:
        return opened.read(WHOLE) if labelled else (opened.bands(WHOLE), None)


def test_values_and_bits_hide_pixels():
    values = np.array([[0, 3, 8, 9, 24, 1 << 15]], np.uint16)
    assert hidden(values, [8, 9], []).tolist() == [[False, False, True, True, False, False]]
    assert hidden(values, [], [3, 15]).tolist() == [[False, False, True, True, True, True]]
    assert hidden(values, [0], [1]).tolist() == [[True, True, False, False, False, False]]


@pytest.mark.parametrize("place", ["pattern", "folder", "word", "band"])
def test_hidden_pixels_are_no_data_in_image_and_target_wherever_the_band_lies(tmp_path, place):
    image, classes = scene()
    more = {}
    if place == "word":
        image = write(tmp_path, "S1", words=("red", "nir"), file="{name}_{word}.tif")
        write_tiff(tmp_path / "S1" / "S1_SCL.tif", clouds())
        where = {"files": "SCL"}
    elif place == "band":
        write_tiff(tmp_path / "images" / "a.tif", np.concatenate([image, clouds()[None]]))
        write_tiff(tmp_path / "masks" / "a.tif", np.asarray(Source().codes, np.uint8)[classes])
        where = {"band": 3}
    else:
        write_bands(tmp_path, "a", image, classes)
        write_tiff(tmp_path / "qa" / ("a.tif" if place == "folder" else "x_a_qa.tif"), clouds())
        where = {"files": "qa" if place == "folder" else "qa/x_*_qa.tif"}
    settings = source(Quality(values=(9,), bits=(3,), **where), **more)
    found, target = read(tmp_path, settings)
    gone = np.zeros((64, 64), bool)
    gone[:4] = gone[6:7] = True
    assert (np.isnan(found).all(0) == gone).all() and ((target == IGNORE) == gone).all()
    assert (found[:, ~gone] == image[:, ~gone]).all()
    assert np.isnan(read(tmp_path, settings, labelled=False)[0]).any(), "so it is where nothing is labelled"


def test_a_scene_without_its_quality_file_or_with_another_grid_is_named(tmp_path):
    image, classes = scene()
    write_bands(tmp_path, "a", image, classes)
    write_bands(tmp_path, "b", image, classes)
    write_tiff(tmp_path / "qa" / "a.tif", clouds()[:32])
    settings = source(Quality(files="qa", values=(9,)))
    (one,), (problem,) = layout.find(tmp_path, settings)
    assert one.name == "a" and "b.tif has no file of quality, qa. Add it" in problem
    assert one.quality in one.files, "a changed one is cut again"
    with pytest.raises(Unusable, match="qa/a.tif has 32 x 64 pixels"), readers.opened(one, settings):
        pass
    banded = source(Quality(band=3, values=(9,)))
    (one, _), _ = layout.find(tmp_path, banded)
    with pytest.raises(Unusable, match="workload.source.quality.files"), readers.opened(one, banded) as opened:
        opened.bands(WHOLE)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"files": "qa"}, "what in it hides"), ({"bits": (3,)}, "Say where"),
        ({"files": "a", "band": 1, "bits": (1,)}, "files and band are given"),
    ],
)  # fmt: skip
def test_half_a_setting_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Quality(**settings)


def test_a_channel_of_a_patch_hides_too(tmp_path):
    image, classes = scene(bands=3)
    image[2] = clouds()
    np.save(tmp_path / "slice_0_img_0.npy", image.transpose(1, 2, 0))
    np.save(tmp_path / "slice_0_mask_0.npy", np.stack([classes == 1, classes == 2, classes == 3], 2))
    found, target = read(tmp_path, source(Quality(band=3, values=(9,))))
    assert np.isnan(found[:, :4]).all() and not np.isnan(found[:, 4:]).any() and (target[:4] == IGNORE).all()


# --- percentiles of a scene -------------------------------------------------------------------------------------------


def test_a_scenes_percentiles_become_0_and_1_whatever_its_light(tmp_path):
    image, classes = scene()
    image[:, 50:, 20] = np.nan
    for number, light in enumerate((1.0, 40.0)):
        write_bands(tmp_path / str(number), "a", image * light + number, classes)
    settings = source(stretch=(2.0, 98.0))
    plain, _ = read(tmp_path / "0", settings)
    bright, _ = read(tmp_path / "1", settings)
    known = ~np.isnan(image[0])
    assert np.allclose(plain[:, known], bright[:, known], atol=1e-4) and np.isnan(plain[:, ~known]).all()
    low, high = np.percentile(image[:, known], [2, 98], axis=1)
    assert np.allclose(plain[:, known], ((image[:, known].T - low) / (high - low)).T, atol=1e-4)


def test_percentiles_are_those_of_the_whole_scene_without_what_is_hidden(tmp_path, monkeypatch):
    image, classes = scene()
    image[:, :4] = 1e6  # clouds
    write_bands(tmp_path, "a", image, classes)
    write_tiff(tmp_path / "qa" / "a.tif", clouds())
    settings = source(Quality(files="qa", values=(9,)), stretch=(0.0, 100.0))
    found, _ = read(tmp_path, settings)
    assert np.nanmin(found) == 0 and np.nanmax(found) == 1
    monkeypatch.setattr(readers, "_ROWS_AT_ONCE", 10)
    monkeypatch.setattr(stretch, "_MOST_PIXELS", 500)  # of 4096: every third row and column
    (one,), _ = layout.find(tmp_path, settings)
    with readers.opened(one, settings) as opened:
        window = opened.bands((8, 8, 8, 8))
    some = image[:, ::3, ::3].reshape(2, -1)[:, ~(clouds()[::3, ::3].reshape(-1) == 9)]
    low, high = some.min(1)[:, None, None], some.max(1)[:, None, None]
    assert np.allclose(window, (image[:, 8:16, 8:16] - low) / (high - low), atol=1e-5)


def test_flat_bands_and_scenes_without_data_are_borne():
    low, high = stretch.limits(np.full((2, 9), 7.0, np.float32), (2, 98))
    assert (low == 7).all() and (high == 8).all()
    low, high = stretch.limits(np.full((2, 9), np.nan, np.float32), (2, 98))
    assert (low == 0).all() and (high == 1).all()
    with pytest.raises(ValueError, match="two percentiles, the lower one first"):
        source(stretch=(98.0, 2.0))


def test_the_program_for_a_grader_hides_and_stretches_as_here(tiny, tmp_path):
    image, _ = scene(4)
    write_tiff(tmp_path / "new" / "img007.tif", np.concatenate([image, clouds()[None]]))
    task = load_task(tiny({"workload.source.stretch": [2, 98], "workload.source.quality": {"band": 3, "values": [9]}}))
    torch.manual_seed(0)
    model = task.model().eval()
    torch.nn.init.normal_(model.head.weight)
    task.solution([model], tmp_path / "entry")
    names = runpy.run_path(str(tmp_path / "entry" / "solution.py"))
    expected = maps.masks([model], tmp_path / "new", task.settings.source, 32, None)["img007"]
    found = names["maskgeration"](str(tmp_path / "new"), str(tmp_path / "entry"))["007"]
    assert len(np.unique(expected)) > 2 and (expected[:4] == 254).all()
    assert np.array_equal(found, maps.filled(expected, task.settings.source))
    named = dataclasses.replace(task.settings.source, quality=Quality(files="qa", values=(9,)))
    object.__setattr__(task.settings, "source", named)
    with pytest.raises(BadInput, match="reads no files of quality"):
        task.solution([model], tmp_path / "other")


def test_folders_by_band_that_a_grader_hands_over_are_hidden_too(tmp_path):
    image, _ = scene()
    write_bands(tmp_path, "a", image, None)
    write_tiff(tmp_path / "qa" / "a.tif", clouds())
    folders = {f"Band{number}": tmp_path / f"Band{number}" for number in (1, 2)}
    found = maps.masks([ByPixel()], folders, source(Quality(files="qa", values=(9,))), 32, None)["a"]
    assert (found[:4] == 254).all() and (found[4:] != 254).all()
