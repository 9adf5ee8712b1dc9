"""What `make pictures` runs and writes; the pictures themselves are for looking at."""

import nbformat

from docs import pictures as of_docs
from tests.conftest import ROOT
from tests.notebooks import pictures


def test_parameters_are_assigned_below_those_of_the_notebook():
    text = (ROOT / "notebooks" / "07_your_model.ipynb").read_text()
    book = nbformat.reads(pictures.with_parameters(text, {"MAX_STEPS": 6, "OVERRIDES": {"seed": 1}}), 4)
    cell = next(cell for cell in book.cells if "parameters" in cell.metadata.get("tags", []))
    values = {}
    exec(cell.source, values)
    assert (values["MAX_STEPS"], values["OVERRIDES"], values["SMOKE_STEPS"]) == (6, {"seed": 1}, 0)


def test_the_pictures_of_the_documents_are_those_of_the_command():
    shown = {file for _, file, _ in pictures.FRONT.values()}
    assert all((of_docs.FOLDER / file).is_file() for file in shown)
    text = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert all(f"pictures/{file})" in text for file in shown)
