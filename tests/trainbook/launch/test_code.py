"""The files of a task of one's own lie in its run and its archive, and run only for who says so."""

import platform
import shutil
import sys
from pathlib import Path

import pytest

from lib.config import to_yaml, with_changes
from lib.errors import BadInput
from lib.task import find_task, load_config
from tests import own as project
from trainbook import launch
from trainbook.commands import main
from trainbook.launch import ensemble
from trainbook.launch.run import keep_code


def train(config, **overrides):
    return launch.train(
        load_config(config, {"output_dir": str(config.parent / "runs"), **overrides})
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a project with a completed run."""
    config = project.write(tmp_path_factory.mktemp("trained") / "project")
    train(config)
    return config.parent


@pytest.fixture
def archive(trained, tmp_path, monkeypatch):
    """Its archive in an empty folder of a machine that has nothing else of it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copy(trained / "runs" / "outputs.tar.gz", tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("waves", "layers", "late"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "outputs.tar.gz"


def test_a_run_goes_on_from_its_own_configuration_in_another_place(trained, tmp_path):
    shutil.copytree(trained / "runs", tmp_path / "elsewhere")
    config = load_config(
        tmp_path / "elsewhere" / "my" / "config.yaml", {"output_dir": str(tmp_path / "elsewhere")}
    )
    assert str(tmp_path) in config.task
    assert launch.train(config).reason == "completed"
    assert launch.train(with_changes(config, {"training.max_steps": 6})).step == 6
    code = tmp_path / "elsewhere" / "my" / "code"
    assert {path.name for path in code.iterdir()} == {"mine.py", "layers.py", "waves.py", "late.py"}


def test_an_edit_of_a_file_beside_the_task_runs_in_the_same_process(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "size.py").write_text("width = 3\n")
    (tmp_path / "inner.py").write_text("from size import width\n")
    (tmp_path / "mine.py").write_text(
        "from inner import width\nfrom tests.toy import Toy as Base\n\n\nclass Mine(Base):\n    wide = width\n"
    )
    name = f"{tmp_path}/mine.py:Mine"
    first = find_task(name)
    assert first.wide == 3
    assert find_task(name) is first
    (tmp_path / "size.py").write_text("width = 12\n")
    assert find_task(name).wide == 12
    (tmp_path / "size.py").write_text("width = (\n")
    with pytest.raises(
        BadInput, match=f"SyntaxError.*, read as Python {platform.python_version()}"
    ):
        find_task(name)


NAMES = """
import dataclasses
from lib.config import option
from waves import Settings as Waves, Toy


@dataclasses.dataclass(frozen=True)
class Settings(Waves):
    words: str = option("words.txt", "A word a line.", path=True)
    more: str = option("", "Another file.", path=True)


class Mine(Toy):
    Settings = Settings
"""


def named(folder):
    """Writes a project whose settings name two files: one by its default, the other in the configuration."""
    config = project.write(folder)
    (folder / "mine.py").write_text(NAMES)
    (folder / "words.txt").write_text("a\nb")
    (folder / "deep").mkdir()
    (folder / "deep" / "more.bin").write_bytes(b"\xff\xfe")
    config.write_text(config.read_text() + "workload: {more: deep/more.bin}\n")
    return config


def test_files_that_settings_name_lie_in_the_run(tmp_path):
    config = load_config(named(tmp_path / "project"))
    run = tmp_path / "runs" / "my"
    assert config.workload.words == str(tmp_path / "project" / "words.txt"), (
        "a default counts from there too"
    )
    (run).mkdir(parents=True)
    (run / "config.yaml").write_text(to_yaml(keep_code(run, config)))
    shutil.rmtree(tmp_path / "project")
    again = load_config(run / "config.yaml")
    assert Path(again.workload.words).read_text() == "a\nb"
    assert Path(again.workload.more).read_bytes() == b"\xff\xfe"
    assert (run / "named" / "workload.words" / "words.txt").is_file()


def test_predict_runs_the_archive_s_task_only_for_who_trusts_it(archive, tmp_path, capsys):
    given = ["predict", str(archive), "data", "out"]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert "give it: --task file.py:Class" in error
    assert "--trust to run" in error
    assert "waves" not in sys.modules
    assert main([*given, "--trust"]) == 0
    assert (tmp_path / "out" / "answers.txt").read_text() == "1 models", (
        "it imports while it predicts"
    )


def test_trust_reaches_no_further_than_the_run_s_own_folder(trained, tmp_path):
    run = tmp_path / "runs" / "my"
    evil = tmp_path / "evil.py"
    shutil.copytree(trained / "runs" / "my", run)
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    shutil.copy(evil, tmp_path / "runs" / "evil.py")
    (run / "code" / "link.py").symlink_to(evil)
    text = (run / "config.yaml").read_text()
    for task in (f"{evil}:Evil", "code/../../evil.py:Evil", "code/link.py:Evil"):
        (run / "config.yaml").write_text(text.replace("code/mine.py:Mine", task))
        with pytest.raises(
            BadInput, match=r"no such file is in its folder code.*--task file\.py:Class"
        ):
            ensemble.run(run, tmp_path, tmp_path / "out", trusted=True)
    assert not (tmp_path / "ran").exists()
