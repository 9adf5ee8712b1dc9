"""The command line and its exit codes."""

import os
import subprocess
import sys

import pytest

from lib import __main__
from tests.conftest import ROOT, TOY


def lib(tmp_path, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "lib", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )


def test_the_command_line_trains_and_exits_with_0(tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)
    done = lib(tmp_path, "train", "toy.yaml", "--set", "training.max_steps=5")
    assert done.returncode == 0, done.stderr
    assert "completed at step 5" in done.stdout and (tmp_path / "runs" / "toy" / "summary.json").is_file()


def test_the_deadline_exits_with_75_and_running_again_completes(tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)
    done = lib(tmp_path, "train", "toy.yaml", "--set", "session.minutes=0.001", "--set", "session.margin_seconds=0")
    assert done.returncode == 75, done.stderr
    assert lib(tmp_path, "train", "toy.yaml").returncode == 0


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["train", "missing.yaml"], "missing.yaml: The file cannot be read"),
        (["train", "toy.yaml", "--set", "training.max_stepz=3"], "Did you mean max_steps?"),
        (["train", "toy.yaml", "--set", "training.max_steps"], "--set takes key=value"),
        (["train", "toy.yaml", "--set", "task=nothing"], "There is no task 'nothing'. Known tasks: "),
        (["train", "toy.yaml", "--set", "data.dir=/nowhere"], "There is no input /nowhere"),
        (["train", "toy.yaml", "--set", "training.precision=fp16"], "there is no GPU"),
    ],
)
def test_bad_input_exits_with_2_a_sentence_and_nothing_written(tmp_path, arguments, sentence, capsys, monkeypatch):
    (tmp_path / "toy.yaml").write_text(TOY)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert __main__.main(arguments) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_disk_that_refuses_is_a_sentence_and_a_mistake_of_a_task_its_traceback(tmp_path, capsys, monkeypatch):
    (tmp_path / "toy.yaml").write_text(TOY)
    for error in (OSError(28, "No space left on device", "/dev/shm/x"), FileNotFoundError(2, "No such file", "mine")):

        def refuse(config, error=error):
            raise error

        monkeypatch.setattr(__main__.launch, "prepare", refuse)
        if error.errno == 28:
            assert __main__.main(["train", "toy.yaml"]) == 1
            assert "The disk refused at /dev/shm/x: No space left on device." in capsys.readouterr().err
        else:
            with pytest.raises(FileNotFoundError):
                __main__.main(["train", "toy.yaml"])
