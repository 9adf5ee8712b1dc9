"""metrics.csv and events.csv on disks that are full, torn or odd."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lib.report.metrics import EventLog, MetricsLog, read, series


def row(step, split="train", loss=0.5, **more):
    return {"step": step, "split": split, "loss": loss, **more}


def write(path, *rows, step=0, expected=0):
    with MetricsLog(path, step, expected) as log:
        for cells in rows:
            log.append(cells)


def steps(path):
    return [int(row["step"]) for row in read(path)]


def test_a_new_column_widens_the_table_and_keeps_what_was_there(tmp_path):
    path = tmp_path / "metrics.csv"
    write(path, row(5, lr=0.1), row(5, "validation", 0.25, mrr=1 / 3))
    write(path, row(10, loss=0.125, lr=0.2), step=5)
    names = ("step", "split", "loss", "mrr", "lr")
    assert [[cells[name] for name in names] for cells in read(path)] == [
        ["5", "train", "0.5", "", "0.1"],
        ["5", "validation", "0.25", repr(1 / 3), ""],
        ["10", "train", "0.125", "", "0.2"],
    ]
    assert series(read(path), "train", "loss") == ([5, 10], [0.5, 0.125])


@settings(derandomize=True, max_examples=50, deadline=None)
@given(cut=st.integers(0, 400), last=st.integers(0, 3), odd=st.binary(max_size=20))
def test_a_table_torn_at_any_byte_is_read_up_to_there(cut, last, odd):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.csv"
        write(path, *(row(step, note='an "ä", really') for step in (1, 2, 3)))
        whole = path.read_bytes()
        rows = read(path)
        path.write_bytes(whole[:cut] + odd.replace(b"\n", b""))
        count = max(0, whole[:cut].count(b"\n") - 1)
        assert read(path) == rows[:count]
        write(path, row(4), step=last)
        assert steps(path) == [*(1, 2, 3)[: min(count, last)], 4]


def test_odd_bytes_cost_their_own_rows_alone_and_rows_that_are_gone_are_said_once(tmp_path, capsys):
    for number, odd in enumerate(
        (bytes(150_000), b"3,train,1.5,,,,\xff,\n", b"\n\n", b"x,train,1.0,,,,,\n")
    ):
        path = tmp_path / f"metrics{number}.csv"
        write(path, row(1), row(2))
        path.write_bytes(path.read_bytes() + odd)
        write(path, row(3), step=2, expected=2)
        assert steps(path) == [1, 2, 3]
        assert "lacks" not in capsys.readouterr().out
    for expected in (5, MetricsLog(path, 3).flush()):
        write(path, step=3, expected=expected)
    assert capsys.readouterr().out.count("lacks 2 of its 5 rows up to step 3") == 1
    path.unlink()
    write(path, row(4), step=3, expected=3)
    assert "lacks 3 of its 3 rows" in capsys.readouterr().out
    assert steps(path) == [4]


def test_events_past_the_restored_step_are_dropped_and_none_stands_twice(tmp_path):
    path = tmp_path / "events.csv"
    first = EventLog(path)
    for step in (3, 5, 5, 8):
        first.record(step, "plateau", 0.1, 0.05, f"Step {step}:\nlower.")
    again = EventLog(path, step=5)
    assert steps(path) == [3, 5]
    again.record(5, "plateau", 0.1, 0.05, "Step 5: lower.")
    again.record(8, "plateau", 0.1, 0.025, "Step 8: lower.")
    rates = {row["step"]: row["after"] for row in read(path)}
    assert rates == {"3": "0.05", "5": "0.05", "8": "0.025"}
    assert steps(path) == [3, 5, 8]
    EventLog(path, step=2)
    assert not path.exists()  # as in a run without events
