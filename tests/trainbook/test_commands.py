"""The command line and its exit codes."""

import contextlib
import os
import subprocess
import sys

import pytest

from lib import launch
from tests.conftest import ROOT, TOY
from trainbook import commands


def test_the_deadline_exits_with_75_and_running_again_completes_with_0(tmp_path, capsys, quick):
    """The first session is a process of its own; the second is the same command without starting Python again."""
    (tmp_path / "toy.yaml").write_text(TOY)
    short = ["--set", "session.minutes=0.001", "--set", "session.margin_seconds=0"]
    command, environment = [sys.executable, "-m", "trainbook"], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, "train", "toy.yaml", *short], env=environment, capture_output=True, text=True)
    assert done.returncode == 75, done.stderr
    assert commands.main(["train", "toy.yaml"]) == 0
    assert "completed at step 12" in capsys.readouterr().out
    assert (tmp_path / "runs" / "toy" / "summary.json").is_file()


MISTAKES = {
    "missing.yaml": "missing.yaml: The file cannot be read",
    "toy.yaml --set training.max_stepz=3": "Did you mean max_steps?",
    "toy.yaml --set training.max_steps": "--set takes key=value",
    "toy.yaml --set task=nothing": "There is no task 'nothing'. Known tasks: ",
    "toy.yaml --set data.dir=/nowhere": "There is no input /nowhere",
    "toy.yaml --set training.precision=fp8": "must be one of auto, fp32, fp16, bf16",
}


def test_bad_input_exits_with_2_a_sentence_and_nothing_written(tmp_path, capsys, monkeypatch):
    (tmp_path / "toy.yaml").write_text(TOY)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for arguments, sentence in MISTAKES.items():
        assert commands.main(["train", *arguments.split()]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_help_does_not_wait_for_torch():
    for arguments in (["--help"], ["kaggle", "push", "-h"]):
        imported = imported_by(arguments)
        assert not {"torch", "numpy", "psutil", "lib.task", "lib.launch", "lib.doctor.machine"} & imported


def test_asking_kaggle_does_not_wait_for_torch(real_client):
    real_client.ended(lambda session: session.say("no results"))
    for word in ("status", "fetch"):
        assert "torch" not in imported_by(["kaggle", word, "graphmer", "--owner", "ada"])


def imported_by(arguments):
    """The modules that a command has imported when it ends."""
    code = (
        "import atexit, sys; atexit.register(lambda: print('MODULES', *sys.modules)); "
        "from trainbook.commands import main; "
        f"main({arguments})"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    modules = set(done.stdout.split("MODULES")[1].split())
    assert "trainbook.kaggle.commands" in modules, done.stderr
    return modules


def test_a_disk_that_refuses_is_a_sentence_and_a_mistake_of_a_task_its_traceback(tmp_path, capsys, monkeypatch):
    (tmp_path / "toy.yaml").write_text(TOY)
    for error in (OSError(28, "No space left on device", "/dev/shm/x"), FileNotFoundError(2, "No such file", "mine")):

        def refuse(config, error=error):
            raise error

        monkeypatch.setattr(launch, "prepare", refuse)
        if error.errno == 28:
            assert commands.main(["train", "toy.yaml"]) == 1
            assert "The disk refused at /dev/shm/x: No space left on device." in capsys.readouterr().err
        else:
            with pytest.raises(FileNotFoundError):
                commands.main(["train", "toy.yaml"])


def test_an_interrupt_where_no_step_is_to_finish_says_how_to_go_on_but_not_for_each_rank(tmp_path, capsys, monkeypatch):
    def interrupt(config):
        raise KeyboardInterrupt

    (tmp_path / "toy.yaml").write_text(TOY)
    monkeypatch.setattr(launch, "prepare", interrupt)
    assert commands.main(["train", "toy.yaml"]) == 130
    assert "Run the same command again" in capsys.readouterr().err
    monkeypatch.setattr("lib.launch.torchrun.as_rank", contextlib.nullcontext)
    monkeypatch.setenv("RANK", "1")
    assert commands.main(["train", "toy.yaml"]) == 130 and capsys.readouterr().err == ""


def test_a_python_without_the_packages_says_where_to_get_them(tmp_path, capsys, monkeypatch):
    command = [sys.executable, "-S", "-c", "import runpy; runpy.run_module('lib', run_name='__main__')"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr and "make train" in done.stderr

    def lacking(name):
        def prepare(config):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        return prepare

    (tmp_path / "toy.yaml").write_text(TOY)
    monkeypatch.setattr(launch, "prepare", lacking("torch.nn"))
    assert commands.main(["train", "toy.yaml"]) == 2
    assert "has no package torch. In a checkout, `make train`" in capsys.readouterr().err
    monkeypatch.setattr(launch, "prepare", lacking("my_own"))
    with pytest.raises(ModuleNotFoundError):
        commands.main(["train", "toy.yaml"])
