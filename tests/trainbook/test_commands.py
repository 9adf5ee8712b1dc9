"""The command line and its exit codes."""

import os
import subprocess
import sys
from unittest import mock

import pytest

from tests.conftest import ROOT, TOY
from trainbook import commands, launch

TRAIN = ["train", "toy.yaml"]


@pytest.fixture(autouse=True)
def configuration(tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)


def run(*command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True
    )


def test_the_deadline_exits_with_75_and_running_again_completes_with_0(tmp_path, capsys, quick):
    deadline = ["--set", "session.minutes=0.001", "--set", "session.margin_seconds=0"]
    assert commands.main([*TRAIN, *deadline]) == 75
    assert commands.main(TRAIN) == 0
    assert "completed at step 12" in capsys.readouterr().out
    assert (tmp_path / "runs" / "toy" / "summary.json").is_file()


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ("missing.yaml", "missing.yaml: The file cannot be read"),
        ("toy.yaml --set training.max_stepz=3", "Did you mean max_steps?"),
        ("toy.yaml --set training.max_steps", "--set takes key=value"),
        ("toy.yaml --set data.dir=/nowhere", "There is no input /nowhere"),
    ],
)
def test_bad_input_exits_with_2_a_sentence_and_nothing_written(
    tmp_path, capsys, monkeypatch, arguments, sentence
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert commands.main(["train", *arguments.split()]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_help_does_not_wait_for_torch():
    code = "import atexit, sys; atexit.register(lambda: print('MODULES', *sys.modules)); "
    done = run("-c", f"{code}from trainbook.commands import main; main(['kaggle', 'push', '-h'])")
    modules = set(done.stdout.split("MODULES")[1].split())
    assert "trainbook.kaggle.commands" in modules, done.stderr
    assert not {"torch", "numpy", "psutil"} & modules, done.stderr


DISK_FULL = OSError(28, "No space left on device", "/dev/shm/x")
NO_TORCH = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")


@pytest.mark.parametrize(
    "error, code, sentence",
    [
        (DISK_FULL, 1, "refused at /dev/shm/x: No space left on device."),
        (NO_TORCH, 2, "package torch. In a checkout, `make"),
        (KeyboardInterrupt(), 130, "Run the same command again"),
    ],
)
def test_a_failure_of_the_machine_is_a_sentence(capsys, monkeypatch, error, code, sentence):
    monkeypatch.setattr(launch, "prepare", mock.Mock(side_effect=error))
    assert commands.main(TRAIN) == code
    assert sentence in capsys.readouterr().err


def test_a_mistake_of_a_task_is_its_traceback(monkeypatch):
    error = FileNotFoundError(2, "No such file", "mine")
    monkeypatch.setattr(launch, "prepare", mock.Mock(side_effect=error))
    with pytest.raises(FileNotFoundError):
        commands.main(TRAIN)


def test_a_python_without_the_packages_prints_how_to_get_them():
    script = "import runpy; runpy.run_module('trainbook.command', run_name='__main__')"
    done = run("-S", "-c", script)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "make train" in done.stderr


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--id", "Id"], "Give its sample by --sample FILE too"),
        (["--sample", "none.csv"], "There is no file none.csv"),
    ],
)
def test_a_submission_without_its_sample_is_refused(tmp_path, capsys, options, sentence):
    folder = str(tmp_path)
    assert commands.main(["predict", folder, folder, str(tmp_path / "out"), *options]) == 2
    assert sentence in capsys.readouterr().err
