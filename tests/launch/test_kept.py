"""A run goes on with the data that it began with, where what is installed there is another by then."""

import gc
import os
import tarfile
from pathlib import Path

import pytest

from lib import checkpoint, launch
from lib.errors import BadInput
from lib.launch import ensemble, kept
from lib.machine import disk
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


def test_the_data_comes_along_from_the_output_of_an_earlier_session(numbers, tmp_path, monkeypatch):
    kill(numbers(), 8, monkeypatch)
    install(range(100, 140))
    mounted = {"run.resume_from": str(tmp_path / "runs")}
    kill(numbers({**mounted, "output_dir": str(tmp_path / "second")}), 11, monkeypatch)
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert launch.train(numbers({"output_dir": str(tmp_path / "second")})).step == 12
    kept = [tmp_path / name / "numbers" / "data" / "numbers.txt" for name in ("gone", "second")]
    assert kept[0].read_bytes() == kept[1].read_bytes() == " ".join(map(str, range(30))).encode()


def test_a_run_that_has_saved_nothing_begins_with_the_data_of_now_and_keeps_that(numbers, tmp_path, monkeypatch):
    kill(numbers(), 1, monkeypatch)
    install(range(50))
    launch.train(numbers())
    kept = tmp_path / "runs" / "numbers" / "data" / "numbers.txt"
    assert kept.read_text().split()[-1] == "49"


def test_a_kill_while_the_data_is_kept_leaves_nothing_that_looks_whole(numbers, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def end(*_):
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("lib.launch.kept._close", end)
        patched.setattr(disk, "remove_tree", lambda path: None)  # nobody cleans up either
        launch.train(numbers())
    folder = tmp_path / "runs" / "numbers"
    assert not (folder / "data").exists() and (folder / "data.tmp").is_dir()
    launch.train(numbers())
    assert (folder / "data" / "manifest.json").is_file() and not (folder / "data.tmp").exists()


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


@pytest.mark.parametrize("kind", ["a pipe", "a link", "a device", "too large"])
def test_kept_data_that_is_no_regular_file_is_not_opened(numbers, tmp_path, monkeypatch, capsys, kind):
    launch.train(numbers())
    place = tmp_path / "runs" / "numbers" / "data" / "numbers.txt"
    content = place.read_bytes()
    if kind == "too large":
        monkeypatch.setattr(kept, "_MOST_KEPT", len(content) - 1)
    else:
        place.unlink()
        (tmp_path / "plain").write_bytes(content)
        links = {"a link": tmp_path / "plain", "a device": "/dev/zero"}
        place.symlink_to(links[kind]) if kind in links else os.mkfifo(place)
    run = launch.prepare(numbers())
    assert kept.of_run(run.task, tmp_path / "runs" / "numbers") is None
    assert "is damaged" in capsys.readouterr().out


def test_the_archive_has_the_data_unless_it_is_large_and_the_size_is_said(numbers, tmp_path, monkeypatch, capsys):
    def packed():
        with tarfile.open(tmp_path / "runs" / outputs.ARCHIVE) as archive:
            return {name for name in archive.getnames() if "/data/" in name}

    launch.train(numbers())
    assert packed() == {"numbers/data/numbers.txt", "numbers/data/manifest.json"}
    assert f"is kept in {tmp_path / 'runs' / 'numbers' / 'data'} (0.0 MB)" in capsys.readouterr().out
    monkeypatch.setattr(outputs, "DATA_BYTES", 10)
    monkeypatch.setattr("lib.launch.kept.DATA_BYTES", 10)
    install(range(31))
    launch.train(numbers({"run.name": "large"}))
    assert packed() == set() and "the archive leaves it out" in capsys.readouterr().out


def test_a_full_disk_is_a_warning_and_the_run_trains(numbers, tmp_path, monkeypatch, capsys):
    run = launch.prepare(numbers())

    def full(folder):
        raise OSError(28, "No space left on device")

    run.task.keep = full
    assert launch.train(run).step == 12
    assert "The data of the run is not kept" in capsys.readouterr().out
    assert not (tmp_path / "runs" / "numbers" / "data").exists()


def test_a_task_on_kept_data_passes_the_checks_that_make_it_a_second_time(numbers, monkeypatch):
    kill(numbers(), 8, monkeypatch)
    install(range(100, 140))
    run = launch.prepare(numbers())
    assert checks.examine(run.task, run.config) == []
    run.task.kept_from = None
    assert "differs when the data is read again" in checks.examine(run.task, run.config)[0].value


def test_a_task_that_keeps_and_takes_nothing_is_told_what_it_lacks(numbers, tmp_path):
    config = numbers()
    task = tmp_path / "mine.py"
    task.write_text(task.read_text().replace("def take_kept", "def take_kept_later"))
    with pytest.raises(BadInput, match=r"Installed has keep\(\) and no take_kept\(folder\)"):
        launch.train(config)


def test_a_task_that_keeps_nothing_has_no_such_folder(toy, numbers, tmp_path):
    launch.train(toy({"training.max_steps": 2}))
    assert not (tmp_path / "runs" / "toy" / "data").exists()


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
