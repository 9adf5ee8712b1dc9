"""A run goes on with the data that it began with, where what is installed there is another by then."""

import gc
from pathlib import Path

import pytest

from lib import checkpoint, launch
from lib.errors import BadInput
from lib.launch import ensemble, kept
from lib.report import outputs
from lib.task import load_config
from lib.training import checks
from tests.conftest import TOY

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

    def keep(self, folder):
        (folder / "numbers.txt").write_bytes(self.place.read_bytes())

    def take_kept(self, folder):
        now, self.place = self.place, folder / "numbers.txt"
        return "installed.txt has changed" if now.read_bytes() != self.place.read_bytes() else ""
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
        return load_config("numbers.yaml", {"output_dir": str(tmp_path / "runs"), **(overrides or {})})

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
    newest = checkpoint.path_of(folder / "checkpoints", checkpoint.newest_step(folder / "checkpoints"))
    return (newest / "model.safetensors").read_bytes()


def test_a_killed_run_goes_on_bit_for_bit_with_the_data_that_it_began_with(numbers, tmp_path, monkeypatch, capsys):
    launch.train(numbers({"output_dir": str(tmp_path / "whole")}))
    kill(numbers(), 8, monkeypatch)
    install(range(100, 140))
    capsys.readouterr()
    assert launch.train(numbers()).step == 12
    said = capsys.readouterr().out
    assert "installed.txt has changed" in said and "step 6: 6 of 12 steps left" in said
    assert weights(tmp_path / "runs" / "numbers") == weights(tmp_path / "whole" / "numbers")
    assert launch.train(numbers()).reason == "completed"  # and asked again it is not refused for its data


def test_damaged_data_is_said_and_the_data_of_now_counts(numbers, tmp_path, monkeypatch, capsys):
    kill(numbers(), 8, monkeypatch)
    for damaged in ("numbers.txt", "manifest.json"):
        path = tmp_path / "runs" / "numbers" / "data" / damaged
        whole = path.read_bytes()
        path.write_text("1 2")
        assert launch.prepare(numbers()).task.place == Path("installed.txt")
        assert f"kept in {path.parent} is damaged" in capsys.readouterr().out
        path.write_bytes(whole)
    assert launch.prepare(numbers()).task.place.name == "numbers.txt"
    path.write_text("")
    install(range(100, 140))
    with pytest.raises(BadInput, match="data fingerprint"):
        launch.train(numbers())


def test_a_task_on_kept_data_passes_the_checks_that_make_it_a_second_time(numbers, monkeypatch):
    kill(numbers(), 8, monkeypatch)
    install(range(100, 140))
    run = launch.prepare(numbers())
    assert checks.examine(run.task, run.config) == []
    run.task.kept_from = None
    assert "differs when the data is read again" in checks.examine(run.task, run.config)[0].value


def test_a_model_that_predicts_has_what_its_run_kept_for_as_long_as_it_lives(numbers, tmp_path, capsys):
    launch.train(numbers())
    Path("installed.txt").write_text("9 9 9\n")
    own = f"{tmp_path / 'mine.py'}:Installed"
    kept = tmp_path / "runs" / "numbers" / outputs.DATA / "numbers.txt"
    task, _ = ensemble.load(tmp_path / "runs" / "numbers", own)
    assert task.kept_from / "numbers.txt" == kept
    task, _ = ensemble.load(tmp_path / "runs" / "outputs.tar.gz", own)
    unpacked = task.kept_from / "numbers.txt"
    assert unpacked.read_bytes() == kept.read_bytes() != Path("installed.txt").read_bytes()
    del task
    gc.collect()
    assert not unpacked.exists()
    kept.write_text("changed")
    task, models = ensemble.load(tmp_path / "runs" / "numbers", own)
    assert task.kept_from is None and len(models) == 1
    assert "is damaged (numbers.txt is not as it was written), so it is not used" in capsys.readouterr().out


def test_data_that_a_full_disk_did_not_take_at_the_beginning_is_kept_at_the_end(numbers, monkeypatch, capsys):
    close, failures = kept._close, [OSError(28, "No space left on device")]

    def once(folder, task):
        if failures:
            raise failures.pop()
        return close(folder, task)

    monkeypatch.setattr(kept, "_close", once)
    launch.train(launch.prepare(numbers()))
    assert "is not kept" in capsys.readouterr().out and Path("runs/numbers/data/numbers.txt").is_file()
