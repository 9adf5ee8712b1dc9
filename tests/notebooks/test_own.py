"""The notebook of a task of one's own trains headlessly with nothing beside it, as on Kaggle."""

import json
import re
import shutil

import nbformat
import papermill
import pytest

from tests import own as project
from tests.notebooks.test_notebooks import kaggle  # noqa: F401
from trainbook.commands import main


def test_a_notebook_of_ones_own_runs_from_an_empty_folder(kaggle, tmp_path):  # noqa: F811
    config = project.write(tmp_path / "project")
    assert main(["notebook", str(config), "--out", str(tmp_path / "my.ipynb")]) == 0
    shutil.rmtree(tmp_path / "project")
    mounted = kaggle / "input" / "datasets" / "ada" / "waves" / "data"
    mounted.mkdir(parents=True)
    (mounted / "waves.csv").write_text("1\n")
    out, working = tmp_path / "executed.ipynb", kaggle / "working"
    options = {"kernel_name": "python3", "cwd": working, "execution_timeout": 300, "progress_bar": False}
    papermill.execute_notebook(tmp_path / "my.ipynb", out, {"DATA_DIR": "ada/waves"}, **options)
    cells = [cell for cell in nbformat.read(out, 4).cells if cell.cell_type == "code"]
    text = "".join(o.get("text", "") for cell in cells for o in cell.outputs if o.output_type == "stream")
    assert cells[-1].execution_count and "completed at step 4 of 4" in text
    assert "11 packages are there" in text and re.search(r"ok +platform +kaggle \(batch run\)", text)
    assert "there is no GPU, and no my_small.yaml" in text
    assert "Override: data.dir = 'ada/waves'" in text and "rmse" in text.split("completed at step")[1]
    summary = json.loads((working / "my" / "summary.json").read_text())
    assert (summary["reason"], summary["step"], summary["baseline"]) == ("completed", 4, {"rmse": 1.0})
    assert {path.name for path in working.iterdir()} == {"my", "outputs.tar.gz"}
    code = {path.name for path in (working / "my" / "code").glob("*.py")}
    assert code == {"mine.py", "layers.py", "waves.py", "late.py"}
    # an edit, and "Run all" again: the old score is not shown under it
    with pytest.raises(papermill.PapermillExecutionError, match=r'optimizer.lr.*\n.*\n  OVERRIDES\["run.name"\]'):
        edited = {"DATA_DIR": "ada/waves", "OVERRIDES": {"optimizer.lr": 0.5}}
        papermill.execute_notebook(tmp_path / "my.ipynb", out, edited, **options)
    printed = "".join(o.get("text", "") for cell in nbformat.read(out, 4).cells for o in cell.get("outputs", []))
    assert "Override: optimizer.lr = 0.5" in printed and "rmse" not in printed
