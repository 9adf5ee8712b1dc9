"""The records of measurements."""

import datetime
import json
import platform

import pytest

from tests.bench.record import RECORDS, head


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.json")), ids=lambda path: path.stem)
def test_a_record_says_when_where_and_with_which_versions_it_was_measured(path):
    record = json.loads(path.read_text("utf-8"))
    assert list(record)[:3] == ["date", "machine", "versions"] and len(record) > 3, "and it has figures"
    assert datetime.date.fromisoformat(record["date"]) and record["machine"] and record["versions"]


def test_the_head_of_a_record_has_pythons_version_and_those_asked_for():
    found = head("torch", device="none")
    assert found["versions"].keys() == {"python", "torch"} and found["versions"]["python"] == platform.python_version()
    assert found["machine"]["device"] == "none" and found["machine"]["cpus"] >= 1
