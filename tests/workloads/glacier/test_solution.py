"""The program for a grader predicts what Trainbook predicts, and imports nothing of it."""

import ast
import runpy
import sys

import numpy as np
import pytest
import rasterio
import torch

from lib.errors import BadInput
from lib.task import load_task
from tests import toy
from tests.workloads.glacier.files import scene, write_bands
from workloads.glacier import maps, solution


@pytest.fixture
def two(tiny):
    """A task and two networks of different sizes, whose answers vary."""
    torch.manual_seed(0)
    tasks = [load_task(tiny({"workload.model.decoder": f"[{width}, 4, 4, 4, 4]"})) for width in (4, 8)]
    models = [task.model().eval() for task in tasks]
    for model in models:
        model.mean.fill_(100)
        model.deviation.fill_(10)
        torch.nn.init.normal_(model.head.weight)
    return tasks[0], models


def test_the_program_predicts_as_here_and_needs_three_packages(two, tmp_path, monkeypatch):
    task, models = two
    image, _ = scene(4, (70, 50))
    image[:, 3:6, 8] = np.nan
    image[1, 20, 20] = -9999
    write_bands(tmp_path / "data", "img007", image, None, origin=(600, 9000), nodata=-9999)
    task.solution(models, tmp_path / "entry")
    assert sorted(path.name for path in (tmp_path / "entry").iterdir()) == ["solution.py", "weights.pt"]

    program = tmp_path / "entry" / "solution.py"
    nodes = list(ast.walk(ast.parse(program.read_text())))
    taken = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    taken |= {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert taken - set(sys.stdlib_module_names) == {"numpy", "rasterio", "torch"}

    expected = maps.masks(models, tmp_path / "data", task.settings.source, 32, None)["img007"]
    expected = maps.filled(expected, task.settings.source)
    names = runpy.run_path(str(program))
    folders = {f"Band{number}": str(tmp_path / "data" / f"Band{number}") for number in (1, 2)}
    found = names["maskgeration"](folders, str(tmp_path / "masks"))
    assert len(np.unique(expected)) > 1 and np.array_equal(found["007"], expected)
    with rasterio.open(tmp_path / "masks" / "img007.tif") as file:
        assert np.array_equal(file.read(1), expected) and file.transform.c == 600
    by_grader = names["maskgeration"](str(tmp_path / "data"), str(tmp_path / "entry"))
    assert np.array_equal(by_grader["007"], expected)
    assert len(list((tmp_path / "entry").iterdir())) == 2, "where the weights lie nothing is written"


def test_bands_in_files_of_other_folders_are_refused(tiny, tmp_path):
    patterns = {"workload.source.images": "x_{band}/*.tif", "workload.source.masks": "gt/*.tif"}
    with pytest.raises(BadInput, match=r"these lie in x_{band}/\*.tif .*Predict with `trainbook predict`"):
        solution.write([], load_task(tiny(patterns)).settings, tmp_path / "entry")
    assert not (tmp_path / "entry").exists()


def test_a_task_without_a_program_says_so(tmp_path):
    with pytest.raises(BadInput, match="Toy writes no program of its own"):
        toy.Toy(None).solution([], tmp_path)


def test_the_sizes_of_each_member_are_kept(two):
    _, (_, wide) = two
    assert solution._sizes(wide) == {
        "widths": [4, 4, 4, 4, 4], "depths": [1, 1, 1, 1], "decoder": [8, 4, 4, 4, 4],
    }  # fmt: skip
