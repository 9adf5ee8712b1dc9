"""The wheel: a command of its own, and no module `lib` for anybody else."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import lib
from lib.planner import process
from lib.ranks import boot
from tests.conftest import ROOT

pytest.importorskip(
    "setuptools", minversion="77", reason="it builds the wheel; torch 2.13 brings it"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder as site-packages with the wheel in it, built without network from a copy of the checkout."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    wheels = place / "wheels"
    packages = place / "packages"
    for name in ("lib", "workloads", "configs", "trainbook"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    before = sorted(path for path in source.rglob("*"))
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    wheels.mkdir()
    subprocess.run(
        [sys.executable, "-c", build, wheels], cwd=source, check=True, capture_output=True
    )
    assert (
        sorted(path for path in source.rglob("*")) == before
    )  # what is left over would be in the next wheel
    (wheel,) = wheels.glob("trainbook-*.whl")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--quiet",
    ]
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


def test_the_wheel_is_one_package_and_one_command_with_every_file_the_release_number_and_the_licence(
    installed,
):
    names = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert names == {"trainbook", "bin"}
    assert (installed / "bin" / "trainbook").is_file()
    facts = installed / f"trainbook-{lib.__version__}.dist-info"
    assert (facts / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0" in (facts / "METADATA").read_text()
    for folder in ("lib", "workloads", "configs"):
        files = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
        home = installed / "trainbook" / "home"
        there = {path.relative_to(home) for path in (home / folder).rglob("*") if path.is_file()}
        assert there == {path for path in files if "__pycache__" not in path.parts}


def test_the_first_commands_of_the_readme_work_from_the_wheel_beside_a_folder_lib_of_ones_own(
    installed, empty
):
    """One process: each would take seconds to begin. In the end it imports lib anew, as a notebook run again does."""
    few = ("--set", "training.max_steps=3", "--set", "training.evaluate_every_epochs=0")
    done = run(installed, empty, str(installed / "bin" / "trainbook"), "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (f"Trainbook {lib.__version__}\n"), done.stderr
    said = {
        "trainbook doctor": ["new", "my", "--like", "tabular"],
        "Tabular passes all checks": ["doctor", "my.yaml", *few],
        "completed at step 3": ["train", "my.yaml", *few, "--set", "data.num_workers=1"],
        "my fits on": ["plan", "my.yaml", "--gpu", "t4"],
        "Built my.ipynb": ["notebook", "my.yaml"],
    }
    code = f"""
import sys, trainbook
from trainbook import commands
if __name__ == "__main__":
    assert not any(map(commands.main, {[*said.values()]}))
    import importlib, pkgutil
    for name in [name for name in sys.modules if name.split(".")[0] == "lib"]:
        del sys.modules[name]
    for module in pkgutil.walk_packages(importlib.import_module("lib").__path__, "lib."):
        importlib.import_module(module.name)
"""
    done = run(installed, empty, "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [words for words in said if words not in done.stdout], done.stdout + done.stderr


def test_importing_the_package_lets_lib_be_found_in_children_and_another_lib_is_named(
    installed, empty
):
    code = "import trainbook, subprocess, sys; subprocess.run([sys.executable, '-P', '-c', 'import lib; print(lib)'])"
    done = run(installed, empty, "-c", code)
    assert str(installed / "trainbook" / "home" / "lib" / "__init__.py") in done.stdout, done.stderr
    (empty / "lib" / "__init__.py").write_text("")
    done = run(installed, empty, "-c", "import lib; import trainbook")
    assert f"Another module named lib is imported already ({empty / 'lib'}" in done.stderr


# --- the processes that lib starts ------------------------------------------------------------------------------------


def test_a_rank_takes_no_folder_lib_of_ones_own_for_the_library(empty):
    variables = {"TRAINBOOK_RANK_FOLDER": str(empty), "RANK": "0"}
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    } | variables
    command = [sys.executable, boot.__file__, str(os.getpid()), "-m", "trainbook.command", "--help"]
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout, done.stderr


def test_the_process_that_plans_takes_no_folder_lib_of_ones_own_for_the_library(
    empty, toy, monkeypatch
):
    """What it would import is asked in its place: a plan takes seconds."""
    started = subprocess.Popen

    def ask(command, env, **options):
        code = "import lib, sys; sys.exit(lib.__file__)"
        return started([*command[: command.index("-m")], "-c", code], env=env, **options)

    monkeypatch.setattr(process.subprocess, "Popen", ask)
    with pytest.raises(process.TrainingFailed, match=str(Path(ROOT, "lib", "__init__.py"))):
        process.plan(toy(), cancelled=threading.Event())
