"""summary.json: written whole, read back equal, and readable whoever wrote it."""

import json
import math

import pytest

from lib.report.summary import FILE, Summary, comparison, results, with_all


def test_what_is_written_is_read_back(tmp_path):
    summary = Summary("toy", "my.py:Toy", "completed", 12, 12, metrics={"f1": 0.5, "a": 1.0}, baseline={"f1": 0.25})
    summary.write(tmp_path)
    assert Summary.read(tmp_path) == summary
    assert json.loads((tmp_path / FILE).read_text())["metrics"] == {"f1": 0.5, "a": 1.0}
    assert list(Summary.read(tmp_path).metrics) == ["f1", "a"], "the order in which the task gave them"
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_one_of_an_earlier_version_has_defaults_for_what_it_lacks_and_loses_what_is_unknown(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / FILE).write_text('{"reason": "failed", "error": "no", "session": 2, "colour": "red", "best": null}')
    assert Summary.read(folder) == Summary("toy", "", "failed", session=2, error="no")


@pytest.mark.parametrize("content", [None, "", "{", "[1]", '"text"', "{}", "[" * 100_000, '{"reason": "lost"}'])
def test_what_is_no_summary_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / FILE).write_text(content)
    assert Summary.read(tmp_path) is None


def test_metrics_of_several_groups_are_a_table_with_a_row_for_each():
    metrics = {"mrr": 0.5, "mrr_full_text": 0.1, "hits10_full_text": 0.2, "mrr_masked": 0.3, "hits1_masked": 0.4}
    single, wide = comparison(metrics, dict.fromkeys(metrics, 0.25)).split("\n\n")
    assert [line.split() for line in single.splitlines()] == [
        ["metric", "trivial", "model", "difference"], ["mrr", "0.250", "0.500", "+0.250"],
    ]  # fmt: skip
    lines = wide.splitlines()
    assert lines[0].split() == ["model", "(trivial)", "mrr", "hits10", "hits1"]
    assert lines[1].split() == ["full_text", "0.100", "(0.250)", "0.200", "(0.250)"]
    assert lines[2].startswith("masked") and lines[2].endswith("0.400 (0.250)")
    ungrouped = {"rmse": 0.5, "mean_iou": 0.1, "mean_f1": 0.2, "top5_accuracy": 0.3}
    assert len(comparison(ungrouped, ungrouped).splitlines()) == 5, "one table"


def test_a_value_of_another_type_has_its_default(tmp_path):
    wrong = {"session": "two", "step": True, "best": [1], "metrics": None, "error": 5, "test_loss": "low"}
    (tmp_path / FILE).write_text(json.dumps({"reason": "completed", "max_steps": 12, "test_loss": 1, **wrong}))
    assert Summary.read(tmp_path) == Summary(tmp_path.name, "", "completed", max_steps=12)
    (tmp_path / FILE).write_text(json.dumps({"reason": "completed", "test_loss": 1, "predicted_peak_bytes": 7}))
    assert Summary.read(tmp_path) == Summary(tmp_path.name, "", "completed", test_loss=1, predicted_peak_bytes=7)


def test_metrics_are_numbers_under_names_that_can_be_printed(tmp_path):
    """A summary may be anybody's: kaggle fetch prints it."""
    metrics = {"f1": 0.5, "text": "0.5", "list": [1], "none": None, "\x1b[2J\nforged": 1}
    (tmp_path / FILE).write_text(json.dumps({"reason": "completed", "metrics": metrics, "baseline": {"f1": "a"}}))
    found = Summary.read(tmp_path)
    assert list(found.metrics) == ["f1", "none", r"\x1b[2J\nforged"] and math.isnan(found.metrics["none"])
    assert found.baseline == {}


def test_a_metric_without_a_baseline_is_shown_alone_and_the_loss_comes_last():
    metrics = {"f1": 0.5, "exact": 0.25}
    summary = Summary("toy", "toy", "completed", metrics=metrics, baseline={"f1": 0.2}, test_loss=2.0)
    rows = [line.split() for line in results(summary).splitlines()]
    assert rows[1:] == [["f1", "0.200", "0.500", "+0.300"], ["exact", "0.250"], ["loss", "2.000"]]
    assert results(Summary("toy", "toy", "interrupted")) == ""
    groups = {"mrr_a": 0.1, "hits_a": 0.2, "mrr_b": 0.3, "hits_b": 0.4}
    assert comparison(groups, {"mrr_a": 0.5}).splitlines()[1].split() == ["a", "0.100", "(0.500)", "0.200"]


def test_a_summary_keeps_all_metrics_those_with_a_baseline_first():
    scores = {"loss": 1.0, "exact": 0.1, "b": 0.2, "a": 0.3}
    assert list(with_all(scores, {"a": 0, "b": 0, "lost": 0}).items()) == [("a", 0.3), ("b", 0.2), ("exact", 0.1)]
    assert with_all(scores, {"loss": 9.0}) == scores
