"""Projects of others as tasks: what changes of an example, and that each trains, resumes and predicts in small."""

import csv
import re
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from lib import checkpoint
from lib.task import load_config
from lib.training import loop
from tests.conftest import ROOT
from tests.trainbook.ports import drawn
from trainbook import launch, new
from trainbook.commands import main

pytestmark = pytest.mark.usefixtures("quick")

PORTS = Path(__file__).parent
LIKE = {
    "stories": "gpt",
    "translation": "sequence",
    "digits": "sequence",
    "whisper": "sequence",
    "cries": "audio",
    "eeg": "audio",
}
SMALL = {
    "stories": {
        "workload.length": 16,
        "workload.layers": 2,
        "workload.heads": 1,
        "workload.written": 4,
        "training.hours": 0,
        "scheduler.decay_steps": 2,
    },
    "translation": {"workload.hidden": 8, "workload.layers": 1, "workload.length": 24},
    "digits": {"workload.hidden": 8, "workload.width": 64, "workload.height": 16},
    "whisper": {"workload.weights": "base", "workload.seconds": 1, "workload.length": 16},
    "cries": {"workload.bands": 8, "workload.seconds": 0.5},
    "eeg": {"workload.width": 2},
}
STEPS = {
    "training.max_steps": 5, "training.epochs": 0, "training.effective_batch": 8, "training.evaluate_every_epochs": 0,
    "training.evaluate_every_steps": 4, "checkpoint.every_steps": 2, "data.num_workers": 0,
    "scheduler.warmup_epochs": 0, "scheduler.warmup_steps": 1,
}  # fmt: skip


class Killed(BaseException):
    """Ends a process at once; nothing of this program catches it to save."""


def ported(name, folder):
    """Writes a port as a user has it, with data in its layout; returns a function that loads its configuration."""
    task = PORTS / name / "my_task.py"
    example = Path(new.__file__).parent / "examples" / f"{LIKE[name]}.py"
    shutil.copyfile(task if task.exists() else example, folder / "my_task.py")
    shutil.copyfile(PORTS / name / "my.yaml", folder / "my.yaml")
    getattr(drawn, name)(folder / "my_data")
    if name == "whisper":
        drawn.untrained_whisper(folder / "base")
    return lambda **more: load_config("my.yaml", {**STEPS, **SMALL[name], **more})


@pytest.mark.parametrize("name", LIKE)
def test_a_port_trains_resumes_to_the_same_bytes_and_predicts_from_its_archive(
    name, tmp_path, monkeypatch
):
    config = ported(name, tmp_path)
    whole = launch.train(config(output_dir="whole"))
    assert whole.reason == "completed"
    assert not whole.missing
    step = mock.Mock(side_effect=[*[mock.DEFAULT] * 3, Killed], wraps=loop.optimizer_step)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(loop, "optimizer_step", step)
        launch.train(config())
    resumed = launch.train(config())
    assert weights("runs") == weights("whole")
    assert resumed.metrics == whole.metrics
    assert len(predictions(name, tmp_path)) > 1


def weights(runs):
    folder = checkpoint.path_of(Path(runs) / "my" / "checkpoints", 5)
    return (folder / "model.safetensors").read_bytes()


def predictions(name, folder):
    """Predicts new data with nothing but the archive and the task's file at hand; returns the rows of the table."""
    shutil.rmtree(folder / "base", ignore_errors=True)
    shutil.rmtree(folder / "my_data")
    getattr(drawn, name)(folder / "new")
    task = re.search(r"^task: (\S+)", Path("my.yaml").read_text(), re.M)[1]
    assert main(["predict", "runs/outputs.tar.gz", "new", "out", "--task", task]) == 0
    with Path("out/predictions.csv").open() as file:
        return list(csv.DictReader(file))


def changed(name, folder):
    """Returns how many lines of an example's two files a port adds, and how many it takes away."""
    new.write("my", LIKE[name], folder)
    added = removed = 0
    for file in ("my_task.py", "my.yaml"):
        if (PORTS / name / file).exists():
            command = ["git", "diff", "--no-index", "--numstat", folder / file, PORTS / name / file]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            plus, minus, _ = done.stdout.split(maxsplit=2)
            added += int(plus)
            removed += int(minus)
    return added, removed


def test_the_page_on_ports_has_the_lines_that_change(tmp_path):
    page = (ROOT / "docs" / "ports.md").read_text("utf-8")
    rows = re.findall(r"`(\w+)` \| (\d+), (\d+) \|", page)
    counted = []
    for name in LIKE:
        (tmp_path / name).mkdir()
        counted.append((LIKE[name], *map(str, changed(name, tmp_path / name))))
    assert sorted(rows) == sorted(counted)


def test_the_page_on_speech_shows_lines_of_the_port():
    page = (ROOT / "docs" / "published.md").read_text("utf-8")
    block = re.search(r"^```python\n(def model.*?)^```", page, re.M | re.S)[1]
    task = (PORTS / "whisper" / "my_task.py").read_text("utf-8")
    for method in block.strip().split("\n\n\n"):
        lines = [f"    {line}" for line in method.splitlines()]
        assert "\n".join(lines) in task
