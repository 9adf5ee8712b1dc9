"""A sample of the campaign against scripts of others, and its bars."""

import json

import pytest

from tests.bench.record import RECORDS
from tests.faults import scripts

ROW = {
    "runs": 10,
    "finished": 10,
    "most steps lost at a kill": 6,
    "kills that lost more than an interval and one": 0,
    "processes left": 0,
    "files": {"killed, at most": 20, "alone": 2, "under the command": 10},
}


def test_a_script_with_folders_is_killed_twice_and_finishes(tmp_path):
    figures = scripts.killed("folders", tmp_path, scripts.LAYOUTS[1], kills=2, seed=1)
    assert figures["finished"] == 1, figures["log"]
    assert figures["sessions"] == 3
    assert figures["left"] == figures["over"] == 0
    scripts._writable(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"finished": 9}, "1 runs did not finish"),
        ({"kills that lost more than an interval and one": 1}, "lost 6 steps"),
        ({"processes left": 1}, "1 processes lived on"),
        ({"files": {"killed, at most": 21, "alone": 2, "under the command": 10}}, "has 21 files"),
    ],
    ids=["unfinished", "lost", "left", "files"],
)
def test_a_missed_goal_is_a_sentence(change, words):
    assert scripts.check({"a": ROW}) == []
    (sentence,) = scripts.check({"a": {**ROW, **change}})
    assert words in sentence


def test_the_record_has_70_runs_of_seven_scripts_that_all_finish_and_leave_nothing_behind():
    """A kill while a checkpoint is still watched for changes costs an interval more: one of 280."""
    record = json.loads((RECORDS / "faults_scripts.json").read_text("utf-8"))
    rows = record["scripts"]
    assert rows.keys() == scripts.HABIT.keys()
    assert sum(row["finished"] for row in rows.values()) == 70
    assert record["missed"] == scripts.check(rows)
    lost = sum(row["kills that lost more than an interval and one"] for row in rows.values())
    assert lost <= 1
    assert len(record["missed"]) == lost
