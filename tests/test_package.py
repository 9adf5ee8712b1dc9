"""The wheel: a command of its own, and no module `lib` for anybody else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lib
from lib.planner import process
from lib.ranks import boot
from tests.conftest import ROOT, TOY

pytest.importorskip("setuptools", minversion="77", reason="it builds the wheel; torch 2.13 brings it")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder as site-packages with the wheel in it, built without network from a copy of the checkout."""
    place = tmp_path_factory.mktemp("wheel")
    source, wheels, packages = place / "source", place / "wheels", place / "packages"
    for name in ("lib", "workloads", "configs", "trainbook"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    before = sorted(path for path in source.rglob("*"))
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", build, wheels], cwd=source, check=True, capture_output=True)
    assert sorted(path for path in source.rglob("*")) == before  # what is left over would be in the next wheel
    (wheel,) = wheels.glob("trainbook-*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", packages, wheel], check=True)
    return packages


@pytest.fixture
def empty(tmp_path):
    """An empty folder, with a package `lib` of its owner's that must not be imported."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("raise RuntimeError('the wrong lib')\n")
    return tmp_path


def run(installed, folder, *command):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment | {"PYTHONPATH": str(installed)},
        capture_output=True, text=True,
    )  # fmt: skip


def test_the_wheel_is_one_package_and_one_command_with_every_file_the_release_number_and_the_licence(installed):
    names = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert names == {"trainbook", "bin"} and (installed / "bin" / "trainbook").is_file()
    facts = installed / f"trainbook-{lib.__version__}.dist-info"
    assert (facts / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0" in (facts / "METADATA").read_text()
    for folder in ("lib", "workloads", "configs"):
        files = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
        home = installed / "trainbook" / "home"
        there = {path.relative_to(home) for path in (home / folder).rglob("*") if path.is_file()}
        assert there == {path for path in files if "__pycache__" not in path.parts}


def test_the_command_trains_with_a_process_that_loads_data_beside_a_folder_lib_of_ones_own(installed, empty):
    shutil.copy(ROOT / "tests" / "toy.py", empty / "my_task.py")
    text = TOY.replace(str(ROOT / "tests" / "toy.py"), "my_task.py").replace("num_workers: 0", "num_workers: 1")
    (empty / "my.yaml").write_text(text)
    done = run(installed, empty, "-m", "trainbook", "train", "my.yaml", "--set", "training.max_steps=3")
    assert done.returncode == 0 and "completed at step 3" in done.stdout, done.stderr
    assert (empty / "runs" / "toy" / "summary.json").is_file()


def test_the_first_commands_of_the_readme_work_from_the_wheel_in_an_empty_folder(installed, empty):
    few = ("--set", "training.max_steps=3", "--set", "training.evaluate_every_epochs=0")
    done = run(installed, empty, str(installed / "bin" / "trainbook"), "--version")
    assert (done.returncode, done.stdout) == (0, f"Trainbook {lib.__version__}\n"), done.stderr
    said = {
        "trainbook doctor": ["new", "my", "--like", "tabular"],
        "Tabular passes all checks": ["doctor", "my.yaml", *few],
        "completed at step 3": ["train", "my.yaml", *few],
        "my fits on": ["plan", "my.yaml", "--gpu", "t4"],
        "Built my.ipynb": ["notebook", "my.yaml"],
    }
    code = (
        f"import sys, trainbook; from trainbook import commands; sys.exit(any(map(commands.main, {[*said.values()]})))"
    )
    done = run(installed, empty, "-c", code)  # one process: each would take seconds to begin
    assert done.returncode == 0 and not [words for words in said if words not in done.stdout], done.stdout + done.stderr


def test_importing_the_package_lets_lib_be_found_here_and_in_children(installed, empty):
    code = (
        "import trainbook, subprocess, sys; from lib import errors; print(errors.__file__)\n"
        "subprocess.run([sys.executable, '-P', '-c', 'import lib; print(lib.__file__)'])"
    )
    done = run(installed, empty, "-c", code)
    home = installed / "trainbook" / "home" / "lib"
    assert done.stdout.split() == [str(home / "errors.py"), str(home / "__init__.py")], done.stderr


def test_another_lib_that_is_imported_already_is_named_and_a_checkout_has_the_same_package(installed, tmp_path):
    done = run(ROOT, tmp_path, "-c", "import trainbook, lib; print(lib.__file__)")
    assert done.stdout.strip() == str(ROOT / "lib" / "__init__.py"), done.stderr
    (tmp_path / "lib").mkdir()
    done = run(installed, tmp_path, "-c", "import lib; import trainbook")
    assert f"Another module named lib is imported already ({tmp_path / 'lib'})" in done.stderr


def test_lib_is_imported_anew_in_the_same_process_as_a_notebook_that_is_run_again_does():
    code = """
import importlib, pkgutil, sys
for _ in range(2):
    for name in [name for name in sys.modules if name.split(".")[0] == "lib"]:
        del sys.modules[name]
    for module in pkgutil.walk_packages(importlib.import_module("lib").__path__, "lib."):
        importlib.import_module(module.name)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# --- the processes that lib starts ------------------------------------------------------------------------------------


def test_a_rank_takes_no_folder_lib_of_ones_own_for_the_library(empty):
    variables = {"TRAINBOOK_RANK_FOLDER": str(empty), "RANK": "0"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    command = [sys.executable, boot.__file__, str(os.getpid()), "--help"]
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr


def test_the_process_that_plans_takes_no_folder_lib_of_ones_own_for_the_library(empty, toy, monkeypatch):
    """What it would import is asked in its place: a plan takes seconds."""
    started = subprocess.Popen

    def ask(command, env, **options):
        code = "import lib, sys; sys.exit(lib.__file__)"
        return started([*command[: command.index("-m")], "-c", code], env=env, **options)

    monkeypatch.setattr(process.subprocess, "Popen", ask)
    with pytest.raises(process.TrainingFailed, match=str(Path(ROOT, "lib", "__init__.py"))):
        process.plan(toy())
