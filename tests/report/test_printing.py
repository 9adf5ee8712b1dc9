"""Printing that cannot end a run."""

import subprocess
import sys

import pytest

from lib.report.printing import Informing
from lib.report.progress import Plain
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


@pytest.mark.parametrize("redirection", ["", ">/dev/full 2>/dev/full", ">&- 2>&-"])
def test_an_output_that_takes_nothing_ends_no_program_and_letters_that_it_lacks_are_escaped(
    tmp_path, redirection
):
    command = f'"{sys.executable}" -S -c "$PROGRAM" "{tmp_path}/reached" {redirection}'
    variables = {"PROGRAM": PROGRAM, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert (tmp_path / "reached").read_text() == "reached", done.stderr
    assert done.returncode == 0
    assert "Exception" not in done.stderr
    assert done.stdout.splitlines() == ["in the folder w\\xf6"] * (0 if redirection else 3)


def test_what_is_printed_into_a_pipe_is_utf_8_in_every_locale(tmp_path):
    variables = {
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "LC_ALL": "C",
    }
    program = (
        "from lib.report.printing import safe_printing\n"
        "with safe_printing():\n"
        '    print("\\u27e6w\\u00f6\\u27e7")'
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == "⟦wö⟧\n"


def test_a_progress_that_fails_ends_no_run_and_says_once_that_it_failed(monkeypatch, capsys):
    def fail(*arguments, **options):
        raise ValueError("it is broken")

    monkeypatch.setattr(Plain, "_show", fail)
    shown = Plain()
    for done in range(4):
        shown._last = float("-inf")
        shown.update(done, 3, "text")
    shown.close()
    out = capsys.readouterr().out
    assert out.count("does not work: ValueError: it is broken. Training continues.") == 1


def test_an_interrupt_passes_what_only_informs():
    with pytest.raises(KeyboardInterrupt), Informing("this"):
        raise KeyboardInterrupt
