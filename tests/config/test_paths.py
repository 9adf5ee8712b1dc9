"""Paths in a configuration count from its folder; those on a command line and output_dir from the working one."""

import shutil
from dataclasses import make_dataclass
from pathlib import Path

import pytest

from lib.config import read_config
from lib.config.reader import option
from lib.task import load_config
from tests.conftest import ROOT, TOY
from trainbook import launch

OWN = TOY.replace(str(ROOT / "tests" / "toy.py"), "my_task.py")


@pytest.fixture
def project(tmp_path):
    """A folder `project` with a configuration, its task and data; the working folder is the one above."""
    folder = tmp_path / "project"
    (folder / "numbers").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "toy.py", folder / "my_task.py")
    (folder / "my.yaml").write_text(OWN.replace("data: {", "data: {dir: numbers, "))
    return folder


def test_task_and_data_beside_a_configuration_are_found_from_any_working_folder(
    project, tmp_path, monkeypatch
):
    config = load_config("project/my.yaml")
    assert config.task == "project/my_task.py:Toy"
    assert config.data.dir == "project/numbers"
    assert launch.prepare(config).task.source == Path("project/numbers")
    monkeypatch.chdir(project)
    assert load_config("my.yaml").task == "my_task.py:Toy"
    assert load_config("my.yaml").data.dir == "numbers"
    monkeypatch.chdir(tmp_path)
    (
        tmp_path / "numbers"
    ).mkdir()  # an override counts from the working folder, and what does not lie beside the file
    assert load_config("project/my.yaml", {"data.dir": "numbers"}).data.dir == "numbers"
    (project / "numbers").rmdir()
    assert load_config("project/my.yaml").data.dir == "numbers"


def test_each_of_several_folders_counts_from_the_folder_of_the_configuration(project, tmp_path):
    (tmp_path / "more").mkdir()
    (project / "my.yaml").write_text(OWN.replace("data: {", "data: {dir: [numbers, more], "))
    config = load_config("project/my.yaml")
    assert config.data.dir == config.data.dirs == ("project/numbers", "more")
    assert load_config("project/my.yaml", {"data.dir": "[a, b]"}).data.dirs == ("a", "b")
    (
        project / "embedded"
    ).mkdir()  # what is no path beside the configuration stays as it is written
    for text in ("embedded", "ada/graphs", "/nowhere"):
        (project / "my.yaml").write_text(OWN.replace("data: {", f"data: {{dir: {text}, "))
        assert load_config("project/my.yaml").data.dir == text


def test_a_tasks_own_settings_may_be_paths(project):
    texts = [
        ("words", str, option("", "A file.", path=True)),
        ("title", str, option("", "No file.")),
    ]
    files = ("archives", tuple[str, ...], option((), "Files.", path=True))
    kind = make_dataclass("Settings", [*texts, files], frozen=True)
    text = "task: toy\ntraining: {max_steps: 1, effective_batch: 1}\n"
    text += "workload: {words: my.yaml, archives: [numbers, https://a.b/c], title: numbers}\n"
    (project / "other.yaml").write_text(text)
    settings = read_config("project/other.yaml", workload=lambda task: kind).workload
    assert settings == kind("project/my.yaml", "numbers", ("project/numbers", "https://a.b/c"))


def test_a_run_goes_on_from_another_folder_and_from_its_own_configuration(
    project, tmp_path, cut, quick, monkeypatch, capsys
):
    """The path of the task is another one each time: relative, absolute, and as the run's folder has it."""
    runs = {"output_dir": str(tmp_path / "runs")}
    cut(4)
    assert launch.train(load_config("project/my.yaml", runs)).reason == "deadline"
    assert launch.train(load_config("runs/toy/config.yaml")).reason == "deadline"
    moved = tmp_path / "moved"
    project.rename(moved)
    monkeypatch.chdir(moved / "numbers")
    cut(None)
    summary = launch.train(load_config(moved / "my.yaml", runs))
    assert summary.reason == "completed"
    assert summary.session == 3
    assert "these differ" not in capsys.readouterr().out
    assert launch.train(load_config("../my.yaml", runs)).reason == "completed"
    assert "for a run with these settings" not in capsys.readouterr().out.lower()
