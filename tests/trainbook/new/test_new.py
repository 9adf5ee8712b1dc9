"""`new`: files that run at once, on generated data."""

import os
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lib.errors import BadInput
from tests.conftest import ROOT
from tests.trainbook.new.conftest import MADE, SMALL
from trainbook import commands, new
from trainbook.new import made

pytestmark = pytest.mark.usefixtures("quick")

pytest.importorskip("PIL", reason="it draws the images; matplotlib brings it")
SIZES = {"training.max_steps": 3, "training.effective_batch": 8, "scheduler.warmup_steps": 1}
QUICK = {**SIZES, "training.evaluate_every_steps": 0, "data.num_workers": 0}
FEW = [f"--set={key}={value}" for key, value in QUICK.items()]


@pytest.fixture
def written(monkeypatch, capsys):
    """written(kind) -> what the command said, with the files of `my` in the working folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(kind):
        assert commands.main(["new", "my", "--like", kind]) == 0
        return capsys.readouterr().out

    return write


@pytest.mark.parametrize("kind", new.KINDS)
def test_what_is_written_has_reasons_is_sound_and_trains_at_once(
    written, kind, monkeypatch, capsys
):
    monkeypatch.setattr(made, kind, partial(getattr(made, kind), **MADE[kind]))
    said = written(kind)
    small = [f"--set={key}={value}" for key, value in SMALL[kind].items()]
    few = [*FEW, *small]
    names = {path.name for path in Path().iterdir()}
    assert names == {"my.yaml", "my_data", "my_task.py", "test_my_task.py"}
    assert "kaggle push my.yaml --dataset OWNER/my-data" in said
    assert commands.main(["doctor", "my.yaml", *few]) == 0, capsys.readouterr().out
    assert commands.main(["train", "my.yaml", *few]) == 0
    said = capsys.readouterr().out
    assert "completed at step 3" in said
    assert "my_data" in said
    lines = Path("my.yaml").read_text().splitlines()
    keys = [line for line in lines if line[0] != "#" and not line.endswith(":")]
    assert 10 <= len(keys) <= 14, "every key has its reason"
    assert all("  # " in line for line in keys[1:]), "every key has its reason"


def test_the_test_that_is_written_passes_and_fails_where_the_task_breaks_its_contract(written):
    written("text")
    check = runpy.run_path("test_my_task.py")["test_the_task_keeps_its_contract"]
    check()
    task = Path("my_task.py")
    task.write_text(
        task.read_text() + "\n    def loss(self, model, batch):\n        return {}, {}\n"
    )
    with pytest.raises(BadInput, match="Text"):
        check()


def test_the_test_that_is_written_runs_without_pytest_too(written):
    said = written("tabular")
    assert "python test_my_task.py, or with pytest (pip install pytest)" in said
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "test_my_task.py"]
    done = subprocess.run(command, env=variables, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.endswith("The task keeps its contract.\n")


def test_a_generated_image_has_every_shape_and_the_red_one_is_its_class():
    made.images(Path("shapes"), number=30)
    assert sorted(path.name for path in Path("shapes").iterdir()) == sorted(made.SHAPES)
    filled = {name: [] for name in made.SHAPES}  # shares of the square around the red pixels
    for path in Path("shapes").glob("*/*.png"):
        pixels = np.asarray(Image.open(path)).astype(int)
        assert (pixels[..., 2] > 150).any(), "the others are blue"
        rows, columns = np.nonzero(pixels[..., 0] > 150)
        height = np.ptp(rows) + 1
        width = np.ptp(columns) + 1
        filled[path.parent.name].append(len(rows) / height / width)
    means = {name: round(float(np.mean(shares)), 1) for name, shares in filled.items()}
    assert means == {"circle": 0.8, "square": 1.0, "triangle": 0.5}


def test_nothing_is_overwritten_and_names_that_cannot_be_are_refused(capsys):
    Path("my_data").write_text("mine")
    assert commands.main(["new", "my"]) == 2
    assert "my_data: there already" in capsys.readouterr().err
    assert commands.main(["new", "a/b"]) == 2
    assert "cannot be the name of a Python file" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["my_data"]
    assert Path("my_data").read_text() == "mine"


def test_three_commands_lead_from_nothing_to_a_notebook_that_runs_on_kaggle(written, stub, capsys):
    written("images")
    assert commands.main(["kaggle", "dataset", "my.yaml", "--slug", "my-data"]) == 0
    assert commands.main(["kaggle", "push", "my.yaml", "--dataset", "ada/my-data"]) == 0
    assert "Version 1 of ada/trainbook-my was pushed and starts" in capsys.readouterr().out
    assert "DATA_DIR = 'ada/my-data'" in stub.sessions[0].request["text"]
