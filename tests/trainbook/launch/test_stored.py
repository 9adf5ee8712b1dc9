"""A run goes on with the data that it began with, where what is installed there is another by then."""

import gc
from pathlib import Path

import pytest

from lib import checkpoint
from lib.errors import BadInput
from lib.task import load_config
from lib.training import learned
from tests.conftest import TOY
from trainbook import launch
from trainbook.launch import ensemble
from trainbook.outputs import packing

TASK = '''
from pathlib import Path
from tests.toy import Toy


class Killed(BaseException):
    """What a kill is to the code."""


class Installed(Toy):
    """Numbers from a file that is installed where it trains."""

    place = Path("installed.txt")
    killed_at = None

    def samples(self):
        return [int(number) for number in self.place.read_text().split()]

    def fingerprint(self):
        return f"numbers-{hash(tuple(self.samples()))}"

    def datasets(self):
        return {"train": self.samples(), "validation": range(5), "test": range(5, 12)}

    def loss(self, model, batch):
        if self.step == self.killed_at:
            raise Killed
        return super().loss(model, batch)

    def learned(self):
        return {"numbers": self.place, "first": self.samples()[0]}

    def take_learned(self, values):
        self.place = values.get("numbers", self.place)
'''


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    """numbers(**overrides) -> the configuration of a task whose data is the file installed.txt."""
    (tmp_path / "mine.py").write_text(TASK)
    lines = TOY.splitlines()
    lines[1] = f"task: {tmp_path / 'mine.py'}:Installed"
    (tmp_path / "numbers.yaml").write_text("\n".join(lines).replace("name: toy", "name: numbers"))
    install(range(30))
    monkeypatch.setattr(launch, "draw_metrics", lambda *_: None)

    def make(overrides=None):
        return load_config(
            "numbers.yaml", {"output_dir": str(tmp_path / "runs"), **(overrides or {})}
        )

    return make


def install(numbers):
    Path("installed.txt").write_text(" ".join(map(str, numbers)))


def kill(config, step, monkeypatch):
    """Trains until it is killed in a step, and leaves nothing but what was on the disk then."""
    run = launch.prepare(config)
    run.task.killed_at = step
    with monkeypatch.context() as patched, pytest.raises(BaseException, match="^$"):
        patched.setattr(launch, "_write_failure", lambda *_: None)
        launch.train(run)


def weights(folder):
    newest = checkpoint.path_of(
        folder / "checkpoints", checkpoint.newest_step(folder / "checkpoints")
    )
    return (newest / "model.safetensors").read_bytes()


def test_a_killed_run_goes_on_bit_for_bit_with_the_data_that_it_began_with(
    numbers, tmp_path, monkeypatch, capsys
):
    launch.train(numbers({"output_dir": str(tmp_path / "whole")}))
    kill(numbers(), 8, monkeypatch)
    install(range(100, 140))
    assert launch.train(numbers()).step == 12
    assert "step 6: 6 of 12 steps left" in capsys.readouterr().out
    assert weights(tmp_path / "runs" / "numbers") == weights(tmp_path / "whole" / "numbers")
    assert (
        launch.train(numbers()).reason == "completed"
    )  # and asked again it is not refused for its data


def test_damaged_data_is_said_and_the_data_of_now_counts(numbers, tmp_path, monkeypatch, capsys):
    kill(numbers(), 8, monkeypatch)
    path = tmp_path / "runs" / "numbers" / "data" / "numbers.txt"
    assert launch.prepare(numbers()).task.place == path
    path.write_text("1 2")
    assert launch.prepare(numbers()).task.place == Path("installed.txt")
    assert f"{path} is not used: it is not as it was written." in capsys.readouterr().out
    install(range(100, 140))
    with pytest.raises(BadInput, match="data fingerprint"):
        launch.train(numbers())


def test_a_model_that_predicts_keeps_the_data_of_its_run(numbers, tmp_path):
    launch.train(numbers())
    install([9, 9, 9])
    own = f"{tmp_path / 'mine.py'}:Installed"
    stored = tmp_path / "runs" / "numbers" / packing.DATA / "numbers.txt"
    task, _ = ensemble.load(tmp_path / "runs" / "numbers", own)
    assert task.place == stored
    task, _ = ensemble.load(tmp_path / "runs" / "outputs.tar.gz", own)
    unpacked = task.place
    assert unpacked.read_bytes() == stored.read_bytes() != Path("installed.txt").read_bytes()
    del task
    gc.collect()
    assert not unpacked.exists()


def test_a_reference_of_a_stranger_leads_to_no_file_outside_of_the_data(tmp_path):
    for name in ("../summary.json", "/etc/hostname", "", "numbers.txt\n"):
        values = {"numbers": {"file": name, "bytes": 1, "sha256": "0" * 64}, "first": 1}
        assert learned.restored(values, tmp_path) == {"first": 1}
