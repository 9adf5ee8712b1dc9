"""Scenes with a folder each and a file a band: bands by words of names, masks beside them, what is missing named."""

import runpy
import shutil

import numpy as np
import pytest

from lib.errors import BadInput
from lib.task import find_task, load_config
from tests.workloads.glacier.files import CODES, scene, write_image, write_tiff
from tests.workloads.glacier.test_maps import ByPixel, expected
from workloads.glacier import maps, proposal, solution, survey
from workloads.glacier.data import layout, rasters, readers
from workloads.glacier.data.homes import homes
from workloads.glacier.data.scene_folders import band_of, has_word
from workloads.glacier.settings import Source

BANDS = ("B10", "B02", "B8A")
THREE = Source(bands=("red", "nir", "thermal"))
CHOSEN = Source(bands=("red", "nir"), band_files=("B10", "b02"))


def write(root, name, seed=0, words=BANDS, file="{name}_20200801_{word}_10m.tif", mask="mask.tif", size=(64, 64)):
    """A scene's folder; the bands are written in the order of `words`."""
    image, classes = scene(seed, size, len(words))
    for plane, word in zip(image, words, strict=True):
        write_tiff(root / name / file.format(name=name, word=word), plane, origin=(seed * 10_000, 0))
    if mask:
        write_tiff(root / name / mask, np.asarray(CODES, np.uint8)[classes], origin=(seed * 10_000, 0))
    return image


def read(found, source):
    with readers.opened(found, source) as opened:
        return opened.read((0, 0, 64, 64))


@pytest.mark.parametrize(
    "stem, word",
    [
        ("B02", "B02"), ("T43SDT_20200801T0_B8A_20m", "B8A"), ("LC08_L1TP_148035_B10", "B10"), ("band_3", "band_3"),
        ("scene_Band4", "Band4"), ("AB02", ""), ("B123", ""), ("red", ""), ("QA60", ""),
    ],
)  # fmt: skip
def test_the_word_of_a_band_stands_between_separators(stem, word):
    assert band_of(stem) == word
    assert has_word("T43_B02_10m", "b02") and not has_word("T43_B021", "B02") and has_word("x_B02_10m", "B02_10m")


def test_bands_are_read_in_the_order_of_their_numbers_or_as_given(tmp_path, capsys):
    image = write(tmp_path, "S1")
    write(tmp_path, "S2", 1)
    scenes, problems = layout.find(tmp_path, THREE)
    assert [one.name for one in scenes] == ["S1", "S2"] and not problems
    assert (read(scenes[0], THREE)[0] == image[[1, 2, 0]]).all(), "B02, B8A, B10"
    assert "workload.source.band_files: [B02, B8A, B10]" in capsys.readouterr().out
    some = Source(bands=("a", "b"), channels=(3, 1))
    assert (read(layout.find(tmp_path, some)[0][0], some)[0] == image[[0, 1]]).all()
    (given, _), problems = layout.find(tmp_path, CHOSEN)
    assert (read(given, CHOSEN)[0] == image[[0, 1]]).all() and not problems
    assert set(np.unique(read(given, CHOSEN)[1])) == {0, 1, 2, 3}
    assert layout.summary(scenes, []) == "2 scenes (files: B02 2, B10 2, B8A 2, masks 2); 0 with something missing"


def test_files_called_as_the_bands_are_need_no_setting_and_new_scenes_no_mask(tmp_path):
    source = Source(bands=("nir", "red"))
    image = write(tmp_path, "S1", words=("red", "nir", "dem"), file="{word}.tif", mask="label.tif")
    write(tmp_path / "new", "S2", words=("red", "nir"), file="{word}.tif", mask="")
    (one,), problems = layout.find(tmp_path / "S1", source)
    assert one.name == "S1" and not problems and (read(one, source)[0] == image[[1, 0]]).all()
    (new,), _ = layout.find(tmp_path / "new", source, labelled=False)
    assert new.mask is None and [path.stem for path in new.images] == ["nir", "red"]


def test_files_called_b01_and_so_on_without_a_mask_may_be_scenes(tmp_path):
    for name in ("B01", "B02"):
        write_tiff(tmp_path / f"{name}.tif", scene(bands=3)[0])
    scenes, _ = layout.find(tmp_path, THREE, labelled=False)
    assert [one.name for one in scenes] == ["B01", "B02"]


def test_what_a_scene_lacks_is_named_and_the_others_are_found(tmp_path):
    for seed, name in enumerate(("S1", "S2", "S3", "S4")):
        write(tmp_path, name, seed)
    (tmp_path / "S1" / "S1_20200801_B02_10m.tif").unlink()
    (tmp_path / "S2" / "mask.tif").unlink()
    shutil.copy(tmp_path / "S3" / "mask.tif", tmp_path / "S3" / "water_mask.tif")
    scenes, problems = layout.find(tmp_path, CHOSEN)
    assert [one.name for one in scenes] == ["S4"] and len(problems) == 3
    assert "S1 has no file called b02: a band is missing. Add it" in problems[0]
    assert "S2 has no mask: no file in it is called mask or label" in problems[1]
    assert "S3 has several masks: mask.tif, water_mask.tif" in problems[2] and "workload.source.masks" in problems[2]
    named = Source(bands=("red", "nir"), band_files=("B10", "B02"), masks="*/mask.tif")
    assert [one.name for one in layout.find(tmp_path, named)[0]] == ["S3", "S4"]


def test_two_files_of_a_band_and_names_that_no_folder_has_are_refused_with_what_to_write(tmp_path):
    write(tmp_path, "S1")
    write(tmp_path, "S1", words=("B02",), file="S1_{word}_20m.tif")
    _, (problem,) = layout.find(tmp_path, CHOSEN)
    assert "are both called b02" in problem and "workload.source.band_files" in problem
    more = Source(bands=("red", "nir"), band_files=("B10", "B02_10m"))
    assert len(layout.find(tmp_path, more)[0]) == 1
    with pytest.raises(BadInput, match="No folder in .* has files called B77, B78"):
        layout.find(tmp_path, Source(bands=("a", "b"), band_files=("B77", "B78")))
    write(tmp_path / "few", "S1")
    with pytest.raises(BadInput, match="has the bands B02, B8A, B10; the settings read number 7"):
        layout.find(tmp_path / "few", Source())


def test_bands_of_other_sizes_and_files_of_several_bands_are_refused(tmp_path):
    write(tmp_path, "S1")
    write_tiff(tmp_path / "S1" / "S1_20200801_B02_10m.tif", np.zeros((32, 32), np.float32), pixel=60)
    (one,), _ = layout.find(tmp_path, CHOSEN)
    with pytest.raises(rasters.Unusable, match="_B02_10m.tif has 32 x 32 pixels and .* 64 x 64. Resample them"):
        read(one, CHOSEN)
    write_tiff(tmp_path / "S1" / "S1_20200801_B02_10m.tif", np.zeros((3, 64, 64), np.float32))
    with pytest.raises(rasters.Unusable, match="has several bands, and workload.source.band_files are of one each"):
        read(one, CHOSEN)


def test_masks_may_lie_in_a_folder_of_theirs_and_parts_are_the_split(tmp_path):
    for part, name in (("train", "S1"), ("train", "S2"), ("test", "S3")):
        write(tmp_path / part, name, mask="")
        mask = np.asarray(CODES, np.uint8)[scene()[1]]
        write_image(tmp_path / part / "masks" / f"{name}.png", mask)
    scenes, problems = layout.find(tmp_path, CHOSEN)
    assert not problems and [(one.name, one.part) for one in scenes] == [
        ("test/S3", "test"), ("train/S1", "train"), ("train/S2", "train"),
    ]  # fmt: skip
    assert {one.mask.suffix for one in scenes} == {".png"}


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="There are 2 bands, but band_files names 1"):
        Source(bands=("a", "b"), band_files=("B02",))
    with pytest.raises(ValueError, match="band_files is given with channels, or with images without {band}"):
        Source(bands=("a",), band_files=("B02",), channels=(2,))
    with pytest.raises(ValueError, match="band_files is given with channels, or with images without {band}"):
        Source(bands=("a",), band_files=("B02",), images="x/*.tif")
    with pytest.raises(ValueError, match="channels is given with {band} in images"):
        Source(bands=("a",), images="{band}/*.tif", channels=(2,))


@pytest.mark.parametrize("words", [BANDS, ("red", "nir", "blue")])
def test_looking_through_such_a_folder_proposes_what_trains_on_it(tmp_path, words):
    for seed in range(7):
        write(tmp_path / "data", f"S{seed}", seed, words=words, file="{word}.tif")
    found = survey.look(tmp_path / "data")
    (tmp_path / "mine.yaml").write_text(proposal.configuration(found))
    task = find_task("glacier")(load_config(tmp_path / "mine.yaml"), tmp_path / "data")
    ordered = ["B02", "B8A", "B10"] if words == BANDS else ["blue", "nir", "red"]
    assert list(task.settings.source.band_files) == ordered
    assert len(task.data.store.names) == 7 and "7 scenes" in survey.describe(found)
    advice = "the settings read number 7" if words == BANDS else r"band_files: \[blue, nir, red\]"
    with pytest.raises(BadInput, match=advice):
        layout.find(tmp_path / "data", Source())


def test_a_mounted_set_of_such_folders_is_found_whole(tmp_path, monkeypatch):
    root = tmp_path / "data"
    for seed, name in enumerate(("train/S1", "train/S2", "test/S3")):
        write(root, name, seed, file="{word}.tif")
    assert homes([root / "train" / "S1", root / "train" / "S2", root / "test" / "S3"]) == [root]


def test_maps_and_the_program_for_a_grader_read_them_too(tmp_path):
    image = write(tmp_path / "new", "S1", mask="")[:2]
    found = maps.masks([ByPixel()], tmp_path / "new", CHOSEN, 32, None)
    assert np.array_equal(found["S1"], expected(image))
    text = solution.text()
    (tmp_path / "solution.py").write_text(text)
    names = runpy.run_path(str(tmp_path / "solution.py"))
    settings = {"band_files": ["B10", "b02"], "channels": [1, 2], "nodata": [], "quality_band": 0, "stretch": []}
    scenes = names["scenes"](tmp_path / "new", settings)
    assert list(scenes) == ["S1"] and (names["read"](scenes["S1"], settings)[0] == image).all()
