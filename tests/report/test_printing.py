"""Printing that cannot end a run."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

PROGRAM = """
import sys
from lib.report.printing import safe_printing
with safe_printing():
    for _ in range(3):
        print("in the folder w\\u00f6", flush=True)
        print("and to the other", file=sys.stderr)
open(sys.argv[1], "w").write("reached")
"""


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", ">&- 2>&-", ">/dev/full 2>/dev/full", "<&- >&-"])
def test_an_output_that_takes_nothing_ends_no_program(tmp_path, redirection):
    done = run(tmp_path, redirection)
    assert (tmp_path / "reached").read_text() == "reached", done.stderr
    assert done.returncode == 0 and "Exception" not in done.stderr


def test_letters_that_the_terminal_lacks_are_escaped(tmp_path):
    done = run(tmp_path, "", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.splitlines() == ["in the folder w\\xf6"] * 3


def run(folder, redirection, **environment):
    command = f'"{sys.executable}" -S -c "$PROGRAM" "{folder}/reached" {redirection}'
    variables = {"PROGRAM": PROGRAM, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(["sh", "-c", command], cwd=folder, env=variables, capture_output=True, text=True)
