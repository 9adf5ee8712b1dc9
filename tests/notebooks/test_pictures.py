"""What `make pictures` runs and writes; the pictures themselves are for looking at."""

import nbformat

from tests.conftest import ROOT
from tests.notebooks import pictures


def test_parameters_are_assigned_below_those_of_the_notebook():
    text = (ROOT / "notebooks" / "07_your_model.ipynb").read_text()
    book = nbformat.reads(
        pictures.with_parameters(text, {"MAX_STEPS": 6, "OVERRIDES": {"seed": 1}}), 4
    )
    cell = next(cell for cell in book.cells if "parameters" in cell.metadata.get("tags", []))
    values = {}
    exec(cell.source, values)
    assert values["MAX_STEPS"] == 6
    assert values["OVERRIDES"] == {"seed": 1}
    assert values["SMOKE_STEPS"] == 0
