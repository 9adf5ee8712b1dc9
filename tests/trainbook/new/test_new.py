"""`new`: files that run at once, on generated data."""

import runpy
import sys
from functools import partial
from pathlib import Path

import pytest

from lib.errors import BadInput
from tests.trainbook.new.test_examples import MADE, SMALL
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
def test_what_is_written_has_reasons_is_sound_and_trains_at_once(written, kind, monkeypatch, capsys):
    monkeypatch.setattr(made, kind, partial(getattr(made, kind), **MADE[kind]))
    said, few = written(kind), [*FEW, *(f"--set={key}={value}" for key, value in SMALL[kind].items())]
    assert sorted(path.name for path in Path().iterdir()) == ["my.yaml", "my_data", "my_task.py", "test_my_task.py"]
    assert "kaggle push my.yaml --dataset OWNER/my-data" in said
    assert commands.main(["doctor", "my.yaml", *few]) == 0, capsys.readouterr().out
    assert commands.main(["train", "my.yaml", *few]) == 0
    said = capsys.readouterr().out
    assert "completed at step 3" in said and "my_data" in said
    keys = [line for line in Path("my.yaml").read_text().splitlines() if line[0] != "#" and not line.endswith(":")]
    assert 10 <= len(keys) <= 14 and all("  # " in line for line in keys[1:]), "every key has its reason"


def test_the_test_that_is_written_passes_and_fails_where_the_task_breaks_its_contract(written):
    written("text")
    check = runpy.run_path("test_my_task.py")["test_the_task_keeps_its_contract"]
    check()
    task = Path("my_task.py")
    task.write_text(task.read_text() + "\n    def loss(self, model, batch):\n        return {}, {}\n")
    with pytest.raises(BadInput, match="Text"):
        check()


def test_nothing_is_overwritten_and_names_that_cannot_be_are_refused(capsys):
    Path("my_data").write_text("mine")
    assert commands.main(["new", "my"]) == 2 and "my_data: there already" in capsys.readouterr().err
    assert commands.main(["new", "a/b"]) == 2 and "cannot be the name of a Python file" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["my_data"] and Path("my_data").read_text() == "mine"


def test_three_commands_lead_from_nothing_to_a_notebook_that_runs_on_kaggle(written, stub, capsys):
    written("images")
    assert commands.main(["kaggle", "dataset", "my.yaml", "--slug", "my-data"]) == 0
    assert commands.main(["kaggle", "push", "my.yaml", "--dataset", "ada/my-data"]) == 0
    assert "Version 1 of ada/trainbook-my was pushed and starts" in capsys.readouterr().out
    assert "DATA_DIR = 'ada/my-data'" in stub.sessions[0].request["text"]
