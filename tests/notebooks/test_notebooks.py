"""Every built notebook runs headlessly from an empty folder, as Kaggle would run it, in both input layouts."""

import importlib.util
import json
import os
import re
from pathlib import Path

import nbformat
import papermill
import pytest

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# Small enough for two cores; the names are checked against each notebook's parameters cell.
PARAMETERS = {
    "01_graphmer": {
        "MAX_STEPS": 6,
        "SMOKE_STEPS": 2,
        "OVERRIDES": {
            "training.effective_batch": 8,
            "training.log_every_steps": 2,
            "training.evaluate_every_steps": 3,
            "workload.split.validation": 0.2,
            "workload.split.test": 0.2,
            "workload.evaluation.validation_triples": 5,
            "workload.evaluation.test_triples": 10,
            "workload.evaluation.structural_test_triples": 5,
            "workload.model.hidden": 16,
            "workload.model.feed_forward": 32,
            "workload.chain.vocabulary": 600,
        },
    }
}
LAYOUTS = {"new layout": "datasets/someone/code-graph", "old layout": "code-graph"}


def builder():
    spec = importlib.util.spec_from_file_location("build_notebooks", ROOT / "build_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kaggle(tmp_path, monkeypatch):
    """An imitated Kaggle batch session: empty working folder, no checkout in sight, its environment variables."""
    root = tmp_path / "kaggle"
    (root / "working").mkdir(parents=True)
    (root / "input").mkdir()
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab_20260901")  # Kaggle sets it too
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(root))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(root / "working")
    return root


def small_graph(folder: Path) -> None:
    """Triples of two dozen files, enough for three splits."""
    folder.mkdir(parents=True)
    triples, entities = [], {}
    for number in range(24):
        module = f"pack.mod{number}"
        entities[module] = "Module"
        for name in ("load", "save", "check"):
            head = f"{module}.{name}"
            entities[head] = "Function"
            entities[f"name::{name}_all"] = "Name"
            where = {"language": "python", "file": f"pack/mod{number}.py", "module": module}
            triples.append({"head": head, "relation": "calls", "tail": f"name::{name}_all", "qualifiers": where})
    (folder / "triples.jsonl").write_text("".join(json.dumps(t) + "\n" for t in triples))
    lines = (json.dumps({"id": key, "type": kind}) + "\n" for key, kind in entities.items())
    (folder / "entities.jsonl").write_text("".join(lines))


def execute(name: str, folder: Path, parameters: dict) -> tuple[nbformat.NotebookNode, str]:
    """Runs a notebook in `folder`; returns it with all its text output."""
    known = builder().parameters(ROOT / "notebooks_src" / f"{name}.py")
    assert set(parameters) <= set(known), "papermill injects a misspelt parameter without a word"
    out = folder.parent / "executed.ipynb"
    papermill.execute_notebook(
        ROOT / "notebooks" / f"{name}.ipynb",
        out,
        parameters,
        kernel_name="python3",
        cwd=folder,
        execution_timeout=300,
        progress_bar=False,
    )
    notebook = nbformat.read(out, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code[-1].execution_count, "the last cell did not run"
    text = "".join(o.get("text", "") for cell in code for o in cell.outputs if o.output_type == "stream")
    return notebook, text


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS])
def test_a_notebook_runs_from_an_empty_folder(name, layout, kaggle):
    small_graph(kaggle / "input" / LAYOUTS[layout])
    notebook, text = execute(name, kaggle / "working", PARAMETERS[name])
    assert re.search(r"ok +platform +kaggle \(batch run\)", text) and re.search(r"warning +GPU +none", text)
    assert f"Data: {kaggle / 'input' / LAYOUTS[layout]}" in text and "embedded default" not in text
    run = kaggle / "working" / f"{name[3:]}_small"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["reason"], summary["step"]) == ("completed", 6)
    assert summary["metrics"].keys() == summary["baseline"].keys()
    assert (kaggle / "working" / "outputs.tar.gz").stat().st_size > 10_000
    assert (run / "plots" / "metrics.png").stat().st_size > 10_000
    assert any("image/png" in o.get("data", {}) for cell in notebook.cells for o in cell.get("outputs", []))
    assert "Download: the Output tab of this version, outputs.tar.gz" in text
    left = {path.name for path in (kaggle / "working").iterdir()}
    assert left == {run.name, "outputs.tar.gz"}, "a notebook leaves its results and nothing else"


def test_without_mounted_data_the_notebook_says_that_it_takes_the_default(kaggle, monkeypatch):
    parameters = PARAMETERS["01_graphmer"]
    overrides = {**parameters["OVERRIDES"], "workload.split.validation": 0.05, "workload.split.test": 0.05}
    _, text = execute("01_graphmer", kaggle / "working", {**parameters, "OVERRIDES": overrides})
    assert "The embedded default is used: the standard library" in text


def test_every_notebook_has_test_parameters():
    assert [path.stem for path in NOTEBOOKS] == sorted(PARAMETERS)


def test_a_notebook_goes_on_with_the_output_of_the_one_before(kaggle):
    small_graph(kaggle / "input" / LAYOUTS["new layout"])
    execute("01_graphmer", kaggle / "working", PARAMETERS["01_graphmer"])
    mount = kaggle / "input" / "notebooks" / "someone" / "trainbook-01"
    mount.parent.mkdir(parents=True)
    os.rename(kaggle / "working", mount)
    (kaggle / "working").mkdir()
    _, text = execute("01_graphmer", kaggle / "working", {**PARAMETERS["01_graphmer"], "MAX_STEPS": 9})
    assert f"Resuming graphmer_small from {mount / 'graphmer_small'}" in text and "step 6: 3 of 9 steps left" in text
    summary = json.loads((kaggle / "working" / "graphmer_small" / "summary.json").read_text())
    assert (summary["step"], summary["session"]) == (9, 2)
