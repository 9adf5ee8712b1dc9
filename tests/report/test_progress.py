"""Progress in a log, a terminal and a notebook."""


import re
import sys
import threading
from types import SimpleNamespace

from lib.machine import platform
from lib.report import progress
from lib.report.progress import Notebook, Plain, Remaining, Terminal, Within, choose_progress, counted, working


def test_a_log_file_gets_plain_lines_and_not_one_for_each_step(capsys):
    shown = choose_progress()
    assert isinstance(shown, Plain)  # pytest's stdout is no terminal
    for step in range(1, 1001):
        shown.update(step, 1000, "loss 1.0")
    shown.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1/1,000 (0%)") and lines[-1].startswith("1,000/1,000 (100%)") and len(lines) < 5
    assert not any("\r" in line or "\x1b" in line for line in lines)


def test_a_text_is_made_only_where_it_is_shown(capsys):
    made = []
    shown = Plain()
    for step in range(1, 1001):
        shown.update(step, 1000, lambda step=step: made.append(step) or f"step {step}")
    assert made == [1, 1000] and "1,000/1,000 (100%)  step 1000" in capsys.readouterr().out


def test_a_part_is_shown_in_the_line_of_the_whole_and_the_last_line_is_the_wholes(capsys):
    shown = Plain()
    part = Within(shown, 7, 7)
    for batch in range(1, 4):
        part.update(batch, 3, "batches evaluated")
    shown.update(7, 7, "loss 1.0")
    shown.close()
    assert capsys.readouterr().out.splitlines() == ["7/7 (100%)  1/3 batches evaluated", "7/7 (100%)  loss 1.0"]


def test_the_time_left_follows_from_what_the_items_took(monkeypatch):
    now = iter([100.0, 130.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    assert Remaining().text("tiles", 2, 6) == "tiles, 0:01:00 left"


def test_counted_items_are_the_same_items(capsys):
    assert list(counted([3, 1, 2], "scenes")) == [3, 1, 2]
    assert "3/3 (100%)  scenes, 0:00:00 left" in capsys.readouterr().out


def test_work_without_steps_says_for_how_long_and_short_work_says_nothing(capsys, monkeypatch):
    with working("The baseline"):
        pass
    assert capsys.readouterr().out == ""
    waits = iter([False, True])
    monkeypatch.setattr(progress.threading.Event, "wait", lambda self, seconds=None: next(waits, True))
    monkeypatch.setattr(progress.threading.Thread, "start", lambda self: self.run())
    monkeypatch.setattr(progress.threading.Thread, "join", lambda self: None)
    with working("The baseline"):
        pass
    assert capsys.readouterr().out.startswith("The baseline, 0:00:0")


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


def test_a_bar_keeps_to_one_line_of_a_narrow_terminal_and_starts_no_thread(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    before = threading.active_count()
    shown = Terminal()
    shown.update(1, 4, "a part")
    shown._bar.dynamic_ncols = lambda file: (40, 20)
    monkeypatch.setattr(Terminal, "interval", 0.0)
    shown.update(2, 4, "a text that is far too long for a terminal of forty columns")
    shown.update(3, 3, "batches evaluated")
    shown.close()
    shown.note("after it")
    assert threading.active_count() == before
    drawn = re.split("[\r\n]+", capsys.readouterr().out)
    assert all(len(line.rstrip()) <= 40 for line in drawn if "2/4" in line) and any("2/4" in line for line in drawn)
    assert any(line.startswith("[########################] 3/3 (100%)") for line in drawn) and "after it" in drawn


def test_a_terminal_without_tqdm_gets_plain_lines(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert type(choose_progress()) is Plain


def test_work_without_a_total_has_no_bar(capsys):
    shown = Terminal()
    shown.update(0, 0, "The baseline, 0:00:01")
    shown.close()
    out = capsys.readouterr().out
    assert "The baseline, 0:00:01" in out and "[" not in out


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
