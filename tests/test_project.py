"""What makes this a project that others can join: licence, release number, targets, hooks, workflow, templates."""

import re
import subprocess
import tomllib

import pytest
import yaml

import lib
from docs import notebooks
from tests.conftest import ROOT
from trainbook import commands

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


def load(name):
    return yaml.safe_load((ROOT / name).read_text())


def targets():
    return set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())


def test_the_release_number_stands_in_one_place(capsys):
    assert PROJECT["project"]["dynamic"] == ["version"] and "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "lib.__version__"}
    with pytest.raises(SystemExit) as end:
        commands.main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == f"Trainbook {lib.__version__}\n"
    assert load("CITATION.cff")["version"] == lib.__version__
    assert f"## {lib.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_licence_and_citation_name_the_same_and_nobody_who_was_invented():
    citation, licence = load("CITATION.cff"), (ROOT / "LICENSE").read_text()
    assert PROJECT["project"]["license"] == citation["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in licence and "END OF TERMS AND CONDITIONS" in licence
    assert citation["authors"] == PROJECT["project"]["authors"] == [{"name": "The Trainbook authors"}]
    assert not {"doi", "url", "repository-code", "contact"} & citation.keys()


def test_help_names_every_target_and_no_other():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = {word for line in re.findall(r"^make ((?:[a-z-]+ )+)", done.stdout, re.MULTILINE) for word in line.split()}
    assert named == targets()


def test_every_make_target_that_a_document_names_exists():
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        assert set(re.findall(r"`make ([a-z-]+)", path.read_text())) <= targets(), path


def test_the_lists_of_packages_build_on_each_other_and_pin_each_once():
    lists = [(ROOT / "requirements" / f"{name}.txt").read_text().splitlines() for name in ("run", "build", "test")]
    pins = [line for lines in lists for line in lines if re.match(r"[A-Za-z]", line)]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pins)
    names = [line.partition("==")[0].lower() for line in pins]
    assert len(names) == len(set(names)) and names[0] == "torch"
    assert "-r run.txt" in lists[1] and "-r build.txt" in lists[2]
    assert "-r requirements/test.txt" in (ROOT / "requirements.txt").read_text()
    runtime = {re.match(r"[\w-]+", one)[0].lower() for one in PROJECT["project"]["dependencies"]}
    assert runtime == {line.partition("==")[0].lower() for line in lists[0] if "==" in line and line[0] != "#"}


def test_the_workflow_runs_the_whole_check_on_every_supported_python():
    """PyYAML reads `on` as true. The schema of GitHub itself is asked in no test: it is not in our packages."""
    workflow = load(".github/workflows/check.yml")
    job = workflow["jobs"]["check"]
    oldest, newest = re.findall(r"3\.(\d+)", PROJECT["project"]["requires-python"])
    assert job["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in range(int(oldest), int(newest))]
    assert {"push", "pull_request"} == workflow[True].keys() and workflow["permissions"] == {"contents": "read"}
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run", "make types"]
    used = re.findall(r"\$\{?(\w+)", (ROOT / ".ci" / "run").read_text()) + re.findall(r"\$\((\w+)\)", MAKEFILE)
    assert job["steps"][-2]["env"].keys() <= set(used) | {"PYTHON", "TORCH"}


def test_types_are_checked_strictly_but_in_files_that_there_are():
    options = PROJECT["tool"]["mypy"]
    assert options["strict"] and options["files"] == ["lib", "workloads", "trainbook"]
    assert len(options["overrides"]) == 1
    for module in options["overrides"][0]["module"]:
        place = ROOT / module.removesuffix(".*").replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), f"{module} is gone: take it out of the list"


def test_hooks_are_local_and_check_what_make_checks():
    (repository,) = load(".pre-commit-config.yaml")["repos"]
    entries = " ".join(hook["entry"] for hook in repository["hooks"])
    assert repository["repo"] == "local" and all(hook["language"] == "system" for hook in repository["hooks"])
    checked = re.search(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
    for command in checked.replace("$(PY)", ".venv/bin/python").splitlines():
        assert command.strip() in entries


def test_whoever_reports_a_mistake_is_asked_for_the_doctors_findings():
    form = load(".github/ISSUE_TEMPLATE/mistake.yml")
    fields = {field["id"]: field for field in form["body"] if "id" in field}
    assert "trainbook doctor --json" in fields["doctor"]["attributes"]["description"]
    assert fields["doctor"]["validations"]["required"] and {"seen", "version"} <= fields.keys()


def test_badges_open_each_notebook_where_the_repository_is_published_and_are_left_out_elsewhere(monkeypatch):
    row = "[file](notebooks/01_graphmer.ipynb)"
    monkeypatch.setattr(notebooks, "repository", lambda: "")
    assert row in notebooks.notebooks() and "badge" not in notebooks.notebooks()
    monkeypatch.setattr(notebooks, "repository", lambda: "https://github.com/someone/trainbook")
    (line,) = [line for line in notebooks.notebooks().splitlines() if row in line]
    path = "someone/trainbook/blob/main/notebooks/01_graphmer.ipynb"
    assert f"(https://kaggle.com/kernels/welcome?src=https://github.com/{path})" in line
    assert f"(https://colab.research.google.com/github/{path})" in line


def test_every_notebook_is_in_the_table():
    text = notebooks.notebooks()
    assert all(f"[{path.stem}]" in text for path in (ROOT / "notebooks_src").glob("[0-9]*.py"))


def test_the_site_names_pages_that_there_are():
    site = load("mkdocs.yml")
    pages = re.findall(r"[\w/]+\.md", str(site["nav"]))
    assert pages[0] == "index.md" and len(pages) == len(set(pages))  # README.md becomes it
    assert all((ROOT / "docs" / page).is_file() for page in pages[1:])
    assert [(ROOT / hook).is_file() for hook in site["hooks"]] == [True]
    assert {path.name for path in (ROOT / "docs" / "ideas").glob("*.md")} == {
        page.partition("/")[2] for page in pages if page.startswith("ideas/")
    }
