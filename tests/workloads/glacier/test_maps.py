"""Masks of whole scenes: window by window as in one piece, in the input's georeference, by one model or several."""

import ast

import numpy as np
import pytest
import rasterio
import torch
from torch import nn

from lib.errors import BadInput
from lib.training.summary import Summary
from tests.conftest import ROOT
from tests.workloads.glacier.conftest import TINY
from tests.workloads.glacier.files import TWO, coded, scene, write_bands, write_scenes
from trainbook.commands import main
from trainbook.launch import ensemble
from workloads.glacier import maps


class ByPixel(nn.Module):
    """Logits that depend on the pixel alone, or on the direction alone, which all views together take away."""

    def __init__(self, shift=0.0, directed=False):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift))
        self.directed = directed

    def forward(self, image):
        if self.directed:
            side = image.shape[-1]
            ramp = torch.linspace(-3, 3, side).expand(len(image), *image.shape[-2:])
            return torch.stack([ramp, -ramp], 1)
        red, nir = torch.where(image.isnan(), 0.0, image - 100).unbind(1)
        return torch.stack([red, nir, -red, self.shift - nir], 1)


def expected(image):
    red, nir = image - 100
    classes = np.stack([red, nir, -red, -nir]).argmax(0)
    return coded(classes)


@pytest.fixture
def predict(tmp_path):
    """predict(models, size, **options) -> the masks of `data`, written into `out`."""

    def masks(models=None, size=32, out="out", **options):
        place = out and tmp_path / out
        return maps.masks(models or [ByPixel()], tmp_path / "data", TWO, size, place, **options)

    return masks


@pytest.mark.parametrize("options", [{}, {"views": 2}])
def test_windows_give_what_the_whole_scene_gives(tmp_path, predict, options):
    image, _ = scene(3, (100, 75))
    write_bands(tmp_path / "data", "img001", image, None)
    assert np.array_equal(predict(out=None, **options)["img001"], expected(image))


def test_all_views_together_see_no_direction():
    model = ByPixel(directed=True)
    image = torch.randn(1, 2, 32, 32)
    even = maps.probabilities([model], image)
    once = maps.probabilities([model], image, views=1)
    assert torch.allclose(even[:, 0], even[:, 1], atol=1e-6)
    assert (once[:, 0] - once[:, 1]).abs().max() > 0.9


def test_the_map_has_the_inputs_georeference_and_says_where_there_is_no_data(tmp_path, predict):
    image, _ = scene()
    image[:, 5:9, 7] = np.nan
    write_bands(tmp_path / "data", "img001", image, None, origin=(600, 9000))
    mask = predict(out=None)["img001"]
    with (
        rasterio.open(tmp_path / "data/Band1/img001.tif") as given,
        rasterio.open(predict()["img001"]) as made,
    ):
        assert made.crs == given.crs
        assert made.transform == given.transform
        assert made.shape == given.shape
        assert np.array_equal(made.read(1), mask), "255 is a class here"
        assert made.nodata == 254, "255 is a class here"
    known = ~np.isnan(image[0])
    assert (mask[5:9, 7] == 254).all()
    assert (mask == 254).sum() == 4
    assert np.array_equal(mask[known], expected(image)[known])


def test_a_scene_that_cannot_be_read_is_named_and_the_others_are_predicted(
    tmp_path, capsys, predict
):
    write_scenes(tmp_path / "data", 3)
    band = tmp_path / "data" / "Band2" / "img001.tif"
    band.write_bytes(band.read_bytes()[:5000])
    assert set(predict(out=None)) == {"img000", "img002"}
    assert "Left out: " in (text := capsys.readouterr().out)
    assert "Band2/img001.tif" in text


def entry_of_the_notebook():
    """`maskgeration` of notebook 04, which stands on its own: the notebook writes it to a file."""
    tree = ast.parse((ROOT / "notebooks_src" / "04_glacier_ensemble.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    body = [function for function in functions if function.name == "maskgeration"]
    names = {}
    exec(compile(ast.Module(body, []), "maskgeration", "exec"), names)
    return names["maskgeration"]


@pytest.mark.usefixtures("without_figures", "without_baseline")
def test_the_archive_of_a_queue_predicts_a_folder_of_bands(tmp_path, capsys, monkeypatch):
    write_scenes(tmp_path / "scenes", 6)
    data = write_scenes(tmp_path / "new", 2, size=(32, 48))
    runs = tmp_path / "runs"
    (tmp_path / "tiny.yaml").write_text(TINY + "queue: {seeds: [1, 2]}\n")
    settings = (f"data.dir={tmp_path / 'scenes'}", f"output_dir={runs}", "training.max_steps=2")
    assert main(["queue", str(tmp_path / "tiny.yaml"), *(f"--set={key}" for key in settings)]) == 0
    capsys.readouterr()
    text = ensemble.run(runs / "outputs.tar.gz", data, tmp_path / "masks")
    assert text.startswith("2 predictions of 2 models together")
    assert "Models: tiny-seed1, tiny-seed2." in capsys.readouterr().out
    made = {path.stem: rasterio.open(path).read(1) for path in (tmp_path / "masks").glob("*.tif")}
    assert len(made) == 2

    one = tmp_path / "one"
    options = ["--set", "workload.prediction.views=1"]
    assert main(["predict", str(runs / "tiny-seed1"), str(data), str(one), *options]) == 0
    assert len(list(one.glob("*.tif"))) == 2

    task, models = ensemble.load(runs)  # the folder of runs too
    assert len(models) == 2
    for model in models:
        assert model.deviation.ne(1).all(), "normalised as in training"
    found = task.predict(models, data, None)
    assert all(np.array_equal(found[name], made[name]) for name in made)

    # the competition's entry, with the models in a place of its own and as the grader's second argument
    maskgeration = entry_of_the_notebook()
    folders = {f"Band{n}": str(data / f"Band{n}") for n in (1, 2)}
    monkeypatch.setenv("TRAINBOOK_ARCHIVE", str(runs / "outputs.tar.gz"))
    by_variable = maskgeration(folders, str(tmp_path / "given"))
    assert sorted(by_variable) == ["000", "001"]
    assert len(list((tmp_path / "given").glob("*.tif"))) == 2
    monkeypatch.delenv("TRAINBOOK_ARCHIVE")
    by_argument = maskgeration(folders, str(runs / "outputs.tar.gz"))
    for name, mask in made.items():
        assert np.array_equal(by_variable[name[3:]], mask)
        assert np.array_equal(by_argument[name[3:]], mask)
    with pytest.raises(BadInput, match="has no file Band2"):
        maskgeration({"Band1": folders["Band1"]}, str(runs))

    summary = Summary.read(runs / "tiny-seed1")
    assert summary.reason == "completed"
    assert "mcc" in summary.metrics
