"""Progress in a log, a terminal and a notebook."""


import sys
from types import SimpleNamespace

from lib.machine import platform
from lib.report.progress import Notebook, Plain, Terminal, choose_progress


def test_a_log_file_gets_plain_lines_and_not_one_for_each_step(capsys):
    shown = choose_progress()
    assert isinstance(shown, Plain)  # pytest's stdout is no terminal
    for step in range(1, 1001):
        shown.update(step, 1000, "loss 1.0")
    shown.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1/1,000 (0%)") and lines[-1].startswith("1,000/1,000 (100%)") and len(lines) < 5
    assert not any("\r" in line or "\x1b" in line for line in lines)


def test_a_terminal_gets_one_line_that_is_written_over(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = choose_progress()
    assert isinstance(shown, Terminal)
    shown.update(1, 4, "loss 1.0")
    shown.note("kept")
    shown.update(4, 4, "loss 0.5")
    shown.close()
    out = capsys.readouterr().out
    assert "[######..................] 1/4 (25%)" in out and "[########################] 4/4 (100%)" in out
    assert out.count("\n") == 2


def test_a_notebook_gets_one_display_that_is_updated(monkeypatch):
    updates = []
    handle = SimpleNamespace(update=lambda shown: updates.append(str(shown)))
    monkeypatch.setattr("IPython.display.display", lambda shown, display_id: handle)
    monkeypatch.setattr(Notebook, "interval", 0.0)
    shown = Notebook()
    for step in range(1, 4):
        shown.update(step, 3, "")
    assert len(updates) == 2


def test_the_form_follows_the_place(monkeypatch):
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    assert isinstance(choose_progress(), Notebook)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert isinstance(choose_progress(), Plain)
