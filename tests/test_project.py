"""What makes this a project that others can join: licence, release number, targets, hooks, workflow, templates."""

import ast
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

import lib
from tests.conftest import ROOT
from trainbook import commands

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


def load(name):
    return yaml.safe_load((ROOT / name).read_text())


def targets():
    return set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())


def test_the_release_number_stands_in_one_place(capsys):
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "lib.__version__"}
    with pytest.raises(SystemExit) as end:
        commands.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"Trainbook {lib.__version__}\n"
    assert load("CITATION.cff")["version"] == lib.__version__
    assert f"## {lib.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def calls(tree):
    """(node, name, keywords) of every call of a method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            if isinstance(node.func, ast.Attribute):
                name = node.func.attr
            else:
                name = node.func.id
            yield node, name, {keyword.arg for keyword in node.keywords}


def test_every_text_file_and_child_is_read_and_written_in_utf_8():
    """The locale decides otherwise: ruff sees files whose type it infers, the rest are seen by the names of methods."""
    houses = [
        "lib",
        "workloads",
        "trainbook",
        "docs",
        "configs",
        "notebooks_src",
        "build_notebooks.py",
    ]
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--preview",
        "--quiet",
        "--select",
        "PLW1514",
        *houses,
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    least = {"read_text": 1, "write_text": 2}  # arguments, of which the last is the encoding
    without = []
    for path in (
        path
        for house in houses
        for path in ([ROOT / house] if "." in house else (ROOT / house).rglob("*.py"))
    ):
        for node, name, keywords in calls(ast.parse(path.read_text("utf-8"))):
            lacks = name in least and len(node.args) < least[name] and "encoding" not in keywords
            if lacks or (
                keywords & {"text", "universal_newlines"}
                and name in ("run", "Popen", "check_output")
            ):
                without.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert without == []


def test_help_names_every_target_and_no_other():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = {
        word
        for line in re.findall(r"^make ((?:[a-z-]+ )+)", done.stdout, re.MULTILINE)
        for word in line.split()
    }
    assert named == targets()


def test_every_make_target_that_a_document_names_exists():
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        assert set(re.findall(r"`make ([a-z-]+)", path.read_text())) <= targets(), path


def test_the_front_page_has_the_commands_of_a_fresh_machine_and_ci_runs_the_one_that_it_names():
    page = (ROOT / "README.md").read_text("utf-8")
    block = next(
        block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "git clone" in block
    )
    assert [line.split("  ")[0] for line in block.splitlines()[1:]] == ["make train", "make test"]
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert script.rstrip().endswith("\nmake test")
    assert "# Runs `make test`" in script
    assert "Not `make train`" in script
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"pip install \"?([^\s\"]*)\[", path.read_text("utf-8")):
            assert "/" in target, f"{path}: pip asks its index for {target}"


def test_the_workflow_runs_the_whole_check_on_every_supported_python():
    job = load(".github/workflows/check.yml")["jobs"]["check"]
    oldest, newest = re.findall(r"3\.(\d+)", PROJECT["project"]["requires-python"])
    assert job["strategy"]["matrix"]["python"] == [
        f"3.{minor}" for minor in range(int(oldest), int(newest))
    ]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run", "make types"]


def spared_modules():
    """Returns the modules that the list of exemptions in pyproject.toml names."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        (override,) = tomllib.load(file)["tool"]["mypy"]["overrides"]
    return override["module"]


def test_modules_that_types_spare_are_there():
    for name in spared_modules():
        place = ROOT / name.removesuffix(".*").replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), (
            f"{name} is spared and not there"
        )
