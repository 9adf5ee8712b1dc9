"""The notebook of a task of one's own trains headlessly with nothing beside it, as on Kaggle."""

import json
import re
import shutil

import nbformat
import papermill
import pytest

from tests import own as project
from tests.notebooks.test_notebooks import execute, kaggle  # noqa: F401
from trainbook.commands import main


def test_a_notebook_of_ones_own_runs_from_an_empty_folder(kaggle, tmp_path):  # noqa: F811
    source = tmp_path / "my.ipynb"
    working = kaggle / "working"
    assert main(["notebook", str(project.write(tmp_path / "project")), "--out", str(source)]) == 0
    shutil.rmtree(tmp_path / "project")
    mounted = kaggle / "input" / "datasets" / "ada" / "waves" / "data"
    mounted.mkdir(parents=True)
    (mounted / "waves.csv").write_text("1\n")
    _, text = execute(source, working, {"DATA_DIR": "ada/waves"})
    assert "11 packages are there" in text
    assert re.search(r"ok +platform +kaggle \(batch run\)", text)
    assert "there is no GPU, and no my_small.yaml" in text
    assert "Override: data.dir = 'ada/waves'" in text
    assert "rmse" in text.split("completed at step 4 of 4")[1]
    summary = json.loads((working / "my" / "summary.json").read_text())
    assert summary["reason"] == "completed"
    assert summary["step"] == 4
    assert summary["baseline"] == {"rmse": 1.0}
    assert {path.name for path in working.iterdir()} == {"my", "outputs.tar.gz"}
    code = {path.name for path in (working / "my" / "code").glob("*.py")}
    assert code == {"mine.py", "layers.py", "waves.py", "late.py"}
    # an edit, and "Run all" again: the old score is not shown under it
    with pytest.raises(
        papermill.PapermillExecutionError, match=r'optimizer.lr.*\n.*\n  OVERRIDES\["run.name"\]'
    ):
        execute(source, working, {"DATA_DIR": "ada/waves", "OVERRIDES": {"optimizer.lr": 0.5}})
    cells = nbformat.read(kaggle / "executed.ipynb", 4).cells
    printed = "".join(o.get("text", "") for cell in cells for o in cell.get("outputs", []))
    assert "Override: optimizer.lr = 0.5" in printed
    assert "rmse" not in printed
