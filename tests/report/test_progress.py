"""Progress in a log, a terminal and a notebook."""

import sys
from types import SimpleNamespace

from lib.machine import platform
from lib.report import progress
from lib.report.progress import Notebook, Plain, Terminal, Within, choose_progress, counted, time_left, working


def test_a_log_file_gets_plain_lines_and_not_one_for_each_step(capsys):
    texts = []
    shown = choose_progress()
    assert isinstance(shown, Plain)  # pytest's stdout is no terminal
    for step in range(1, 1001):
        shown.update(step, 1000, lambda step=step: texts.append(step) or f"step {step}")
    shown.close()
    out = capsys.readouterr().out
    assert out.splitlines() == ["1/1,000 (0%)  step 1", "1,000/1,000 (100%)  step 1000"] and texts == [1, 1000]


def test_a_part_is_shown_in_the_line_of_the_whole_and_counted_items_with_the_time_left(capsys, monkeypatch):
    shown = Plain()
    for batch in range(1, 4):
        Within(shown, 7, 7).update(batch, 3, "batches evaluated")
    shown.update(7, 7, "loss 1.0")
    shown.close()
    assert capsys.readouterr().out.splitlines() == ["7/7 (100%)  1/3 batches evaluated", "7/7 (100%)  loss 1.0"]
    assert list(counted([3, 1, 2], "scenes")) == [3, 1, 2]
    assert "3/3 (100%)  scenes, 0:00:00 left" in capsys.readouterr().out
    now = iter([100.0, 130.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    assert time_left("tiles")(2, 6) == "tiles, 0:01:00 left"


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


def test_a_terminal_has_one_line_that_is_written_over_and_lines_that_stay_above_it(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(Terminal, "interval", 0.0)
    terminal = choose_progress()
    terminal.update(1, 4, "loss 1.0")
    terminal.note("stays")
    terminal.update(2, 4, "a text that is far too long for a terminal of sixty columns")
    terminal.update(4, 4, "loss 0.5")
    terminal.close()
    terminal.note("after it")
    lines = capsys.readouterr().out.replace("\r\x1b[K", "\r").split("\n")
    assert lines[0] == "\r[######..................] 1/4 (25%)  loss 1.0\rstays"
    drawn = lines[1].split("\r")
    assert drawn[0] == "[######..................] 1/4 (25%)  loss 1.0" and max(map(len, drawn)) == 59
    assert drawn[-1] == "[########################] 4/4 (100%)  loss 0.5" and lines[2:] == ["after it", ""]
    terminal.update(0, 0, "The baseline, 0:00:01")
    terminal.close()
    assert capsys.readouterr().out == "\r\x1b[KThe baseline, 0:00:01\n", "no bar without a total"


def test_a_notebook_gets_one_display_that_is_updated(monkeypatch):
    updates = []
    handle = SimpleNamespace(update=lambda shown: updates.append(str(shown)))
    monkeypatch.setattr("IPython.display.display", lambda shown, display_id: handle)
    monkeypatch.setattr(Notebook, "interval", 0.0)
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    shown = choose_progress()
    for step in range(1, 4):
        shown.update(step, 3, "")
    assert len(updates) == 2
