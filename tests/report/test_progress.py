"""Progress in a log, a terminal and a notebook."""

from lib.report import progress
from lib.report.progress import Plain, Within, choose_progress, counted, time_left


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
