"""`notebook.run`: a command from a cell, as `trainbook run` runs it."""

import hashlib
import io
import shutil
import sys
import tarfile
import threading
import zipfile
from types import SimpleNamespace

import psutil
import pytest

from lib.config import environment
from lib.errors import BadInput
from lib.machine import platform
from lib.training.summary import Summary
from tests.trainbook.run.test_cards import each
from tests.trainbook.run.test_run import COUNT, place, write
from trainbook.run import notebook, sent

__all__ = ["place"]
METRICS = [r"step=(\d+)", r"loss=(\S+)"]


@pytest.fixture
def repository(place, monkeypatch):
    """The working folder of a command beside that of the notebook."""
    folder = place / "code"
    folder.mkdir()
    monkeypatch.chdir(place)
    write(folder, COUNT)
    return folder


def test_a_cell_runs_a_command_with_its_output_and_returns_the_summary(repository, capfd):
    (repository / "job.yaml").write_text("keep: checkpoints\nresume: --resume {newest}\n")
    command = [sys.executable, "train.py", "--steps", "4"]
    given = {"command": command, "metrics": METRICS, "name": "counted"}
    summary = notebook.run(repository / "job.yaml", folder=repository, **given)
    assert (summary.run, summary.reason, summary.step) == ("counted", "completed", 4)
    out = capfd.readouterr().out
    assert "There is no GPU." in out
    assert "begins at 0" in out
    assert "counted        1  completed     4  0.25" in out
    folder = repository.parent / "counted"
    assert (folder / "plots" / "metrics.png").read_bytes().startswith(b"\x89PNG")
    assert (repository / "checkpoints" / "last.pt").is_file()
    more = {**given, "command": [*command[:-1], "6"]}
    assert notebook.run(repository / "job.yaml", folder=repository, **more).step == 6
    assert "begins at 4" in capfd.readouterr().out


def test_python_in_a_command_is_that_of_the_kernel(repository, capfd, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # as in a kernel whose environment is not active
    notebook.run(
        folder=repository, command=["python", "-c", "import sys; print(sys.prefix)"], name="p"
    )
    assert f"\n{sys.prefix}\n" in capfd.readouterr().out


def test_a_live_notebook_updates_the_last_lines_and_the_picture(repository, monkeypatch):
    import IPython.display

    shown, updates = [], []
    handle = SimpleNamespace(update=lambda content, **_: updates.append(content))

    def display(content, **_):
        shown.append(content)
        return handle

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    command = [sys.executable, "train.py", "--steps", "30"]
    notebook.run(command=command, folder=repository, keep="checkpoints", metrics=METRICS)
    lines, picture, table = shown
    assert "Session 1 of run-train" in lines["text/plain"]
    assert picture.data.startswith(b"\x89PNG")
    assert "<tr>" in table["text/html"]
    texts = [each["text/plain"] for each in updates if isinstance(each, dict)]
    assert "step=30 " in texts[-1]
    assert len(texts[-1].splitlines()) == 12


def test_several_commands_are_one_summary(repository):
    each(repository, steps=3)
    summary = notebook.run(repository / "folds.yaml", folder=repository)
    assert (summary.run, summary.reason, summary.step) == ("folds", "completed", 6)
    assert summary.members == ["folds-0", "folds-1"]
    assert summary.metrics["folds-1/loss"] == pytest.approx(1 / 3, abs=1e-3)


def test_an_interrupted_cell_ends_the_command_and_leaves_its_summary(repository, monkeypatch):
    join = threading.Thread.join

    def interrupted(self, timeout=None):
        below = psutil.Process().children(recursive=True)
        if len(below) > 1 and (repository / "checkpoints" / "last.pt").is_file():
            monkeypatch.setattr(threading.Thread, "join", join)
            raise KeyboardInterrupt
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    command = [sys.executable, "train.py", "--steps", "4000"]
    summary = notebook.run(command=command, folder=repository, keep="checkpoints")
    assert summary.reason == "interrupted"
    assert Summary.read(repository.parent / "run-train").reason == "interrupted"


def test_minutes_of_a_whole_session_count_from_the_kernel_s_start(repository, monkeypatch):
    write(repository, "import time; time.sleep(600)")
    monkeypatch.setenv(environment.SESSION_START, "1000000000")
    changes = {"command": [sys.executable, "train.py"], "folder": repository}
    minutes = {"overrides": {"session.minutes": 60.0}}
    assert notebook.run(**changes, **minutes, whole_session=True).reason == "deadline"


def test_a_command_that_cannot_be_started_is_a_sentence(repository):
    with pytest.raises(BadInput, match="was not run"):
        notebook.run(command=["no-such-program"], folder=repository)
    with pytest.raises(BadInput, match="There is no key kep"):
        notebook.run(command=["python"], kep="checkpoints")


def test_other_notebooks_find_it_in_their_room():
    from trainbook import notebook as room

    assert room.run is notebook.run


def test_data_is_linked_for_the_run_and_a_missing_one_is_named(place, monkeypatch):
    monkeypatch.chdir(place)
    mount = place.parent / "input" / "datasets" / "ada" / "pets"
    mount.mkdir(parents=True)
    with sent.linked({"data/pets": "ada/pets"}):
        assert (place / "data" / "pets").resolve() == mount
    assert not (place / "data" / "pets").exists(), "Kaggle would keep it as output"
    (place / "own").mkdir()
    with sent.linked({"own": "ada/nothing"}):
        assert not (place / "own").is_symlink()
    here = SimpleNamespace(has_mounts=False)
    monkeypatch.setattr(platform, "detect", lambda: here)
    with pytest.raises(BadInput, match="far does not exist"), sent.linked({"far": "ada/pets"}):
        raise AssertionError


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "tiny_thing-1.2-py3-none-any.whl"
    about = "tiny_thing-1.2.dist-info"
    files = {
        "tiny_thing.py": "VALUE = 7\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.2\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def sent_files(place, wheel):
    """A mounted data set as a push makes it, with the hashes of its files."""
    mount = place.parent / "input" / "datasets" / "ada" / "job-code"
    mount.mkdir(parents=True)
    shutil.copy(wheel, mount)
    with tarfile.open(mount / sent.ARCHIVE, "w:gz") as archive:
        for name, text in {
            "train.py": b"print(1)",
            "pack/__init__.py": b"",
            "log.txt": b"0",
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    hashed = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in mount.iterdir()}
    return {path.name: digest for path, digest in hashed.items()}


def test_a_session_unpacks_what_was_sent_and_leaves_what_the_command_made(
    place, sent_files, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "site"))  # and not this environment
    folder = sent.unpack("ada/job-code", sent_files)
    assert (tmp_path / "site" / "tiny_thing.py").is_file()
    assert (folder / "train.py").read_text() == "print(1)"
    (folder / "log.txt").write_text("changed")
    (folder / "pack" / "__pycache__").mkdir()
    (folder / "pack" / "__pycache__" / "a.pyc").write_text("x")
    (folder / "new" / "empty").mkdir(parents=True)
    (folder / "new" / "model.pt").write_text("x")
    sent.tidy("ada/job-code", folder)
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == {"log.txt", "new/model.pt"}
    assert "2 files that the command did not change were removed" in capfd.readouterr().out


def test_files_of_another_push_are_refused(place, sent_files):
    with pytest.raises(BadInput, match="is of another push"):
        sent.unpack("ada/job-code", {**sent_files, sent.ARCHIVE: "0" * 64})
    with pytest.raises(BadInput, match="has no other.whl"):
        sent.unpack("ada/job-code", {**sent_files, "other.whl": "0" * 64})
    assert not (place / sent.FOLDER).exists()
