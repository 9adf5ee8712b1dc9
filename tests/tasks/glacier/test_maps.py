"""Masks of whole scenes: window by window as in one piece, in the input's georeference, by one model or several."""

import ast

import numpy as np
import pytest
import rasterio
import torch
from torch import nn

from lib.__main__ import main
from lib.errors import BadInput
from lib.launch import ensemble
from lib.report.summary import Summary
from lib.tasks.glacier import maps
from lib.tasks.glacier.settings import Source
from tests.conftest import ROOT
from tests.tasks.glacier.files import scene, write_bands, write_scenes

TWO = Source(bands=("red", "nir"))


class ByPixel(nn.Module):
    """Logits that depend on the pixel alone: windows, flips and turns change nothing."""

    def __init__(self, shift=0.0):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift))

    def forward(self, image):
        x = torch.where(image.isnan(), 0.0, image - 100)
        return torch.stack([x[:, 0], x[:, 1], -x[:, 0], -x[:, 1] + self.shift], 1)


class Directed(nn.Module):
    """Logits that depend on the direction: only averaging over all views makes them even."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, image):
        ramp = torch.linspace(-3, 3, image.shape[-1]).expand(image.shape[0], *image.shape[-2:])
        return torch.stack([ramp, -ramp], 1)


def expected(image, shift=0.0):
    x = image - 100
    return np.asarray(TWO.codes, np.uint8)[np.stack([x[0], x[1], -x[0], -x[1] + shift]).argmax(0)]


@pytest.mark.parametrize("size", [(64, 64), (100, 75), (32, 200), (20, 33)])
def test_windows_give_what_the_whole_scene_gives(tmp_path, size):
    image, _ = scene(3, size)
    write_bands(tmp_path / "data", "img001", image, None)
    found = maps.masks([ByPixel()], tmp_path / "data", TWO, 32, None)
    assert np.array_equal(found["img001"], expected(image))


@pytest.mark.parametrize("height, width, size", [(64, 64, 32), (100, 75, 32), (20, 200, 32), (33, 32, 32)])
def test_the_windows_cores_cover_each_pixel_once_and_keep_away_from_inner_borders(height, width, size):
    seen = np.zeros((height, width), int)
    for (top, left, h, w), (rows, columns) in maps.windows(height, width, size):
        seen[rows, columns] += 1
        assert top >= 0 and left >= 0 and top + h <= height and left + w <= width
        for start, stretch, length, whole in ((top, rows, h, height), (left, columns, w, width)):
            assert stretch.start == 0 or stretch.start - start >= size // 4 - 1
            assert stretch.stop == whole or start + length - stretch.stop >= size // 4 - 1
    assert (seen == 1).all()


def test_the_mask_has_the_inputs_georeference_and_the_first_class_where_there_is_no_data(tmp_path):
    image, _ = scene()
    image[:, 5:9, 7] = np.nan
    write_bands(tmp_path / "data", "img001", image, None, origin=(600, 9000))
    maps.masks([ByPixel()], tmp_path / "data", TWO, 32, tmp_path / "out")
    places = tmp_path / "data" / "Band1" / "img001.tif", tmp_path / "out" / "img001.tif"
    with rasterio.open(places[0]) as given, rasterio.open(places[1]) as made:
        assert (made.crs, made.transform, made.shape) == (given.crs, given.transform, given.shape)
        mask = made.read(1)
    assert (mask[5:9, 7] == 0).all() and set(np.unique(mask)) <= {0, 85, 170, 255}
    known = ~np.isnan(image[0])
    assert np.array_equal(mask[known], expected(image)[known])


def test_views_take_away_what_depends_on_the_direction():
    p = maps.probabilities([Directed()], torch.randn(1, 2, 32, 32))
    assert torch.allclose(p[:, 0], p[:, 1], atol=1e-6)
    once = maps.probabilities([Directed()], torch.randn(1, 2, 32, 32), views=1)
    assert (once[:, 0] - once[:, 1]).abs().max() > 0.9


def test_models_vote_by_the_mean_of_their_probabilities():
    image = torch.randn(1, 2, 32, 32) + 100
    models = [ByPixel(0.0), ByPixel(3.0)]
    mean = sum(maps.probabilities([model], image) for model in models) / 2
    assert torch.allclose(maps.probabilities(models, image), mean, atol=1e-6)


def test_a_scene_that_cannot_be_read_is_named_and_the_others_are_predicted(tmp_path, capsys):
    write_scenes(tmp_path / "data", 3)
    band = tmp_path / "data" / "Band2" / "img001.tif"
    band.write_bytes(band.read_bytes()[:5000])
    assert set(maps.masks([ByPixel()], tmp_path / "data", TWO, 32, None)) == {"img000", "img002"}
    assert "Left out: " in (said := capsys.readouterr().out) and "Band2/img001.tif" in said


def of_the_notebook(name):
    """A function of notebook 04, which stands on its own: the notebook writes it to a file."""
    tree = ast.parse((ROOT / "notebooks_src" / "04_glacier_ensemble.py").read_text())
    body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    names = {}
    exec(compile(ast.Module(body, []), name, "exec"), names)
    return names[name]


SMALL = """
task: glacier
training: {max_steps: 2, effective_batch: 4, log_every_steps: 0}
data: {num_workers: 0}
checkpoint: {every_minutes: 0}
queue: {seeds: [1, 2]}
workload:
  source: {bands: [red, nir]}
  tiles: {size: 32}
  split: {validation: 0.3, test: 0.3}
  model: {widths: [4, 4, 4, 4, 4], depths: [1, 1, 1, 1], decoder: [4, 4, 4, 4, 4]}
  loss: {focal: 0.25, dice: 0.25, mcc: 0.35, boundary: 0.15, ramp_steps: 2}
"""


@pytest.fixture
def trained(tmp_path, quick, without_baseline):
    """The output folder of a queue of two runs of a tiny network, made by the command, and two scenes to predict."""
    write_scenes(tmp_path / "data", 6)
    write_scenes(tmp_path / "asked", 2, size=(32, 48))
    (tmp_path / "tiny.yaml").write_text(SMALL)
    settings = ["--set", f"data.dir={tmp_path / 'data'}", "--set", f"output_dir={tmp_path / 'runs'}"]
    assert main(["queue", str(tmp_path / "tiny.yaml"), *settings]) == 0
    return tmp_path


def test_the_archive_of_a_queue_predicts_a_folder_of_bands(trained, capsys, monkeypatch):
    data, runs = trained / "asked", trained / "runs"
    capsys.readouterr()
    said = ensemble.run(runs / "outputs.tar.gz", data, trained / "masks")
    assert said.startswith("2 predictions of 2 models together")
    assert "Models: tiny-seed1, tiny-seed2." in capsys.readouterr().out
    made = {path.stem: rasterio.open(path).read(1) for path in (trained / "masks").glob("*.tif")}
    assert len(made) == 2

    for archive in (runs, runs / "outputs.tar.gz"):  # by the folder of runs too
        task, models = ensemble.load(archive)
        assert [bool(model.deviation.ne(1).all()) for model in models] == [True, True], "normalised as in training"
        found = task.predict(models, data, None)
        assert all(np.array_equal(found[name], made[name]) for name in made)

    maskgeration = of_the_notebook("maskgeration")
    # the competition's entry, with the models in a place of its own and as the grader's second argument
    folders = {f"Band{number}": str(data / f"Band{number}") for number in (1, 2)}
    monkeypatch.setenv("TRAINBOOK_ARCHIVE", str(runs / "outputs.tar.gz"))
    by_id = maskgeration(folders, str(trained / "given"))
    assert sorted(by_id) == ["000", "001"]
    assert all(np.array_equal(by_id[name[3:]], mask) for name, mask in made.items())
    assert len(list((trained / "given").glob("*.tif"))) == 2
    monkeypatch.delenv("TRAINBOOK_ARCHIVE")
    by_id = maskgeration(folders, str(runs / "outputs.tar.gz"))
    assert all(np.array_equal(by_id[name[3:]], mask) for name, mask in made.items())
    with pytest.raises(BadInput, match="The model reads the bands"):
        maskgeration({"Band1": folders["Band1"]}, str(runs))

    summary = Summary.read(runs / "tiny-seed1")
    assert summary.reason == "completed" and "mcc" in summary.metrics
    for name in ("confusion", "predictions"):
        assert (runs / "tiny-seed1" / "plots" / f"{name}.png").stat().st_size > 5000


def test_what_is_no_archive_of_runs_is_refused(tmp_path):
    with pytest.raises(BadInput, match="There is no"):
        ensemble.load(tmp_path / "none.tar.gz")
    (tmp_path / "text.tar.gz").write_text("no archive")
    with pytest.raises(BadInput, match="cannot be unpacked"):
        ensemble.load(tmp_path / "text.tar.gz")
    with pytest.raises(BadInput, match="holds no run with best weights"):
        ensemble.load(tmp_path)
