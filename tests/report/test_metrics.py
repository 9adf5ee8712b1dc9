"""metrics.csv and its picture."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.machine import disk
from lib.report.metrics import EventLog, MetricsLog, read, series
from tests.machine.test_disk import FailingAt


def test_a_new_column_widens_the_table_and_keeps_what_was_there(tmp_path):
    path = tmp_path / "metrics.csv"
    with MetricsLog(path, 0) as log:
        log.append({"step": 5, "split": "train", "loss": 0.5, "lr": 0.1})
        log.append({"step": 5, "split": "validation", "loss": 0.25, "mrr": 1 / 3})
        log.append({"step": 10, "split": "train", "loss": 0.125, "lr": 0.2})
    rows = read(path)
    assert [(r["step"], r["split"], r["loss"], r["mrr"], r["lr"]) for r in rows] == [
        ("5", "train", "0.5", "", "0.1"),
        ("5", "validation", "0.25", repr(1 / 3), ""),
        ("10", "train", "0.125", "", "0.2"),
    ]
    assert series(rows, "train", "loss") == ([5, 10], [0.5, 0.125])


ROWS = [{"step": step, "split": "train", "loss": step / 2, "note": 'an "ä", really'} for step in (1, 2, 3)]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(cut=st.integers(0, 400), last=st.integers(0, 3), odd=st.binary(max_size=20))
def test_a_table_that_is_torn_at_any_byte_is_read_up_to_there_and_goes_on(cut, last, odd):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.csv"
        with MetricsLog(path, 0) as log:
            for row in ROWS:
                log.append(row)
        whole, rows = path.read_bytes(), read(path)
        path.write_bytes(whole[:cut] + odd.replace(b"\n", b""))
        count = max(0, whole[:cut].count(b"\n") - 1)
        assert read(path) == rows[:count]
        with MetricsLog(path, last) as log:
            log.append({"step": 4, "split": "train", "loss": 9.0})
        assert [row["step"] for row in read(path)] == [*("1", "2", "3")[: min(count, last)], "4"]


class Full:
    """A file on a disk with room for `left` more bytes."""

    def __init__(self, file, left):
        self.file, self.left = file, left

    def write(self, data):
        if not self.left:
            raise OSError(28, "No space left on device")
        taken = self.file.write(data[: self.left])
        self.left -= taken
        return taken

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_rows_wait_while_the_disk_is_full_and_none_is_torn_or_lost(tmp_path, capsys):
    path = tmp_path / "metrics.csv"
    with MetricsLog(path, 0) as log:
        log.append({"step": 1, "split": "train", "loss": 1.0})
        log._file = Full(log._file, left=4)
        log.append({"step": 2, "split": "train", "loss": 2.0})
        log.append({"step": 3, "split": "train", "loss": 3.0})
        assert [row["step"] for row in read(path)] == ["1"]
        log._file = log._file.file
        log.append({"step": 4, "split": "validation", "loss": 4.0, "mrr": 0.5})
    assert [(r["step"], r["loss"], r["mrr"]) for r in read(path)] == [
        ("1", "1.0", ""), ("2", "2.0", ""), ("3", "3.0", ""), ("4", "4.0", "0.5"),
    ]  # fmt: skip
    assert capsys.readouterr().out.count("its rows wait. Training continues.") == 1


def test_events_of_several_sessions_stand_under_one_header_and_a_full_disk_only_warns(tmp_path, monkeypatch, capsys):
    for step in (3, 5):
        EventLog(tmp_path / "events.csv").record(step, "oom_training", 8, 4, "Half, from now on.")
    lines = (tmp_path / "events.csv").read_text().splitlines()
    assert lines == [
        "step,kind,before,after,text",
        '3,oom_training,8,4,"Half, from now on."',
        '5,oom_training,8,4,"Half, from now on."',
    ]
    EventLog(tmp_path / "nowhere" / "events.csv").record(1, "oom_training", 2, 1, "Text.")
    assert "could not be written" in capsys.readouterr().out


def rows(path, *steps):
    with MetricsLog(path, 0) as log:
        for step in steps:
            log.append({"step": step, "split": "train", "loss": step / 2})


def steps(path):
    return [row["step"] for row in read(path)]


def test_a_last_row_that_the_disk_refused_is_written_before_a_save_or_at_the_end(tmp_path):
    for name in ("save", "end"):
        path = tmp_path / f"{name}.csv"
        with MetricsLog(path, 0) as log:
            log.append({"step": 1, "split": "train", "loss": 1.0})
            log._file = Full(log._file, left=0)
            log.append({"step": 2, "split": "train", "loss": 2.0})
            log._file = log._file.file
            if name == "save":
                assert log.flush() == 2 and steps(path) == ["1", "2"]
        assert steps(path) == ["1", "2"]


@pytest.mark.parametrize("failing", [1, 2])
def test_an_open_that_fails_costs_no_row_and_not_the_run(tmp_path, monkeypatch, failing):
    """At the start, and where the table is widened."""
    path, count = tmp_path / "metrics.csv", iter(range(1, 10))
    opened = Path.open

    def sometimes(self, mode="r", *more, **options):
        if self == path and mode == "ab" and next(count) == failing:
            raise OSError(5, "Input/output error")
        return opened(self, mode, *more, **options)

    monkeypatch.setattr(Path, "open", sometimes)
    with MetricsLog(path, 0) as log:
        log.append({"step": 1, "split": "train", "loss": 1.0})
        log.append({"step": 1, "split": "validation", "loss": 1.0, "f1": 0.5})
        log.append({"step": 2, "split": "train", "loss": 2.0})
    assert [(row["step"], row["split"], row["f1"]) for row in read(path)] == [
        ("1", "train", ""), ("1", "validation", "0.5"), ("2", "train", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("odd", [bytes(150_000), b"3,train,1.5,,,,\xff,\n", b"\n\n", b"x,train,1.0,,,,,\n"])
def test_odd_bytes_cost_their_own_rows_alone(tmp_path, capsys, odd):
    path = tmp_path / "metrics.csv"
    rows(path, 1, 2)
    path.write_bytes(path.read_bytes() + odd)
    with MetricsLog(path, 2, expected=2) as log:
        log.append({"step": 3, "split": "train", "loss": 9.0})
    assert steps(path) == ["1", "2", "3"] and "lacks" not in capsys.readouterr().out


def test_rows_that_are_gone_are_said_once(tmp_path, capsys):
    path = tmp_path / "metrics.csv"
    rows(path, 1, 2, 3)
    for expected in (5, MetricsLog(path, 3).flush()):
        with MetricsLog(path, 3, expected):
            pass
    assert capsys.readouterr().out.count("lacks 2 of its 5 rows up to step 3") == 1
    path.unlink()
    with MetricsLog(path, 3, 3) as log:
        log.append({"step": 4, "split": "train", "loss": 1.0})
    assert "lacks 3 of its 3 rows" in capsys.readouterr().out and steps(path) == ["4"]


def test_events_past_the_restored_step_are_dropped_and_none_stands_twice(tmp_path):
    path = tmp_path / "events.csv"
    first = EventLog(path)
    for step in (3, 5, 5, 8):
        first.record(step, "plateau", 0.1, 0.05, f"Step {step}:\nlower.")
    again = EventLog(path, step=5)
    assert [row["step"] for row in read(path)] == ["3", "5"]
    again.record(5, "plateau", 0.1, 0.05, "Step 5: lower.")
    again.record(8, "plateau", 0.1, 0.025, "Step 8: lower.")
    assert [(row["step"], row["after"]) for row in read(path)] == [("3", "0.05"), ("5", "0.05"), ("8", "0.025")]
    EventLog(path, step=2)
    assert not path.exists()  # as in a run without events


@pytest.mark.parametrize("left", ["", "step,ki", "step,kind,before,after,text\n3,oom"])
def test_an_event_after_a_torn_one_has_a_header_and_a_line_of_its_own(tmp_path, left):
    path = tmp_path / "events.csv"
    path.write_text(left)
    EventLog(path).record(4, "oom_training", 8, 4, "Half.")
    assert path.read_text() == "step,kind,before,after,text\n4,oom_training,8,4,Half.\n"


def test_an_event_that_the_disk_refused_waits_for_the_next_save(tmp_path, monkeypatch):
    log = EventLog(tmp_path / "events.csv")
    with monkeypatch.context() as patched:
        patched.setattr(disk, "calls", FailingAt("sync", 28))
        log.record(4, "oom_training", 8, 4, "Half.")
    assert not log.path.exists()
    log.flush()
    assert [row["step"] for row in read(log.path)] == ["4"]
