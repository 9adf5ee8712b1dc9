"""summary.json: written whole, read back equal, and readable whoever wrote it."""

import json

import pytest

from lib.report.summary import FILE, Summary


def test_what_is_written_is_read_back(tmp_path):
    summary = Summary("toy", "my.py:Toy", "completed", 12, 12, metrics={"f1": 0.5}, baseline={"f1": 0.25})
    summary.write(tmp_path)
    assert Summary.read(tmp_path) == summary
    assert json.loads((tmp_path / FILE).read_text())["metrics"] == {"f1": 0.5}
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_one_of_an_earlier_version_has_defaults_for_what_it_lacks_and_loses_what_is_unknown(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / FILE).write_text('{"reason": "failed", "error": "no", "session": 2, "colour": "red", "best": null}')
    assert Summary.read(folder) == Summary("toy", "", "failed", session=2, error="no")


def test_an_ensemble_has_members_and_no_step(tmp_path):
    Summary("ensemble", "glacier", "completed", members=["a", "b"]).write(tmp_path)
    assert Summary.read(tmp_path).step == 0 and Summary.read(tmp_path).members == ["a", "b"]


@pytest.mark.parametrize("content", [None, "", "{", "[1]", '"text"', "{}", "[" * 100_000, '{"reason": "lost"}'])
def test_what_is_no_summary_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / FILE).write_text(content)
    assert Summary.read(tmp_path) is None


def test_a_value_of_another_type_has_its_default(tmp_path):
    wrong = {"session": "two", "step": True, "best": [1], "metrics": None, "error": 5, "test_loss": "low"}
    (tmp_path / FILE).write_text(json.dumps({"reason": "completed", "max_steps": 12, "test_loss": 1, **wrong}))
    assert Summary.read(tmp_path) == Summary(tmp_path.name, "", "completed", max_steps=12)
    (tmp_path / FILE).write_text(json.dumps({"reason": "completed", "test_loss": 1, "predicted_peak_bytes": 7}))
    assert Summary.read(tmp_path) == Summary(tmp_path.name, "", "completed", test_loss=1, predicted_peak_bytes=7)
