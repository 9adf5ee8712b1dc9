"""`trainbook verify` names each carried file that differs from the library here."""

import json

import pytest

from tests import own as project
from tests.conftest import ROOT
from trainbook.building import carrier
from trainbook.commands import main

FILES = {
    name: (ROOT / name).read_text("utf-8")
    for name in ("lib/__init__.py", "trainbook/__init__.py", "configs/graphmer.yaml")
}


def write(path, files, edit=("", "")):
    """Writes a notebook of one cell that carries the files; its code has one text replaced."""
    code = carrier.code("01_graphmer", files, commit="abc").replace(*edit, 1)
    cell = {"cell_type": "code", "metadata": {"tags": ["carrier"]}, "source": [code]}
    path.write_text(json.dumps({"cells": [cell], "metadata": {}}))
    return path


def test_a_notebook_of_this_library_passes(tmp_path, capsys):
    assert main(["verify", str(write(tmp_path / "a.ipynb", FILES))]) == 0
    printed = capsys.readouterr().out
    assert "carries 3 files" in printed
    assert "of version 0.1.0, commit abc." in printed
    assert f"All are those of Trainbook 0.1.0 in {ROOT}." in printed


def test_each_file_that_differs_is_named(tmp_path, capsys):
    files = {**FILES, "lib/__init__.py": "import evil\n", "lib/evil.py": "", "configs/../x": ""}
    assert main(["verify", str(write(tmp_path / "a.ipynb", files))]) == 2
    lines = capsys.readouterr().out.split("\n")
    assert lines[1:4] == [
        "configs/../x: there is no such file here",
        "lib/__init__.py: differs",
        "lib/evil.py: there is no such file here",
    ]
    assert lines[4].startswith("3 differ from Trainbook 0.1.0")


EDITS = [
    ("import base64", "import base64, evil"),
    ("use(home)", "use(home); evil()"),
    ('COMMIT = "abc"', 'COMMIT = "abc"; evil("")'),
    ('\n""")', '\n""")\nevil()'),
]


@pytest.mark.parametrize("edit", EDITS)
def test_other_code_in_the_carrier_cell_is_named(tmp_path, capsys, edit):
    code = carrier.code("01_graphmer", FILES, commit="abc")
    assert edit[0] in code
    main(["verify", str(write(tmp_path / "a.ipynb", FILES, edit))])
    printed = capsys.readouterr()
    assert (
        "The code of the carrier cell: differs" in printed.out or "no longer be read" in printed.err
    )


def test_a_notebook_without_a_library_is_refused(tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [], "metadata": {}}))
    assert main(["verify", str(path)]) == 2
    assert "carries no library" in capsys.readouterr().err


def test_a_notebook_of_ones_own_is_compared_with_its_configuration(tmp_path, capsys):
    config = project.write(tmp_path / "project")
    assert main(["notebook", str(config)]) == 0
    assert main(["verify", "my.ipynb"]) == 2
    assert "configs/mine.py: there is no such file here" in capsys.readouterr().out
    assert main(["verify", "my.ipynb", "--config", str(config)]) == 0
    config.with_name("late.py").write_text("changed = True\n")
    assert main(["verify", "my.ipynb", "--config", str(config)]) == 2
    assert "configs/late.py: differs" in capsys.readouterr().out
