"""summary.json: written whole, read back equal, and readable whoever wrote it."""

import json
import math

import pytest

from lib.training.summary import FILE, Summary
from trainbook.outputs.summary import results


def test_what_is_written_is_read_back(tmp_path):
    summary = Summary(
        "toy",
        "my.py:Toy",
        "completed",
        12,
        12,
        metrics={"f1": 0.5, "a": 1.0},
        baseline={"f1": 0.25},
    )
    summary.write(tmp_path)
    assert Summary.read(tmp_path) == summary
    assert json.loads((tmp_path / FILE).read_text())["metrics"] == {"f1": 0.5, "a": 1.0}
    assert list(Summary.read(tmp_path).metrics) == ["f1", "a"], (
        "the order in which the task gave them"
    )
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_folder_without_a_summary_has_none(tmp_path):
    assert Summary.read(tmp_path) is None


@pytest.mark.parametrize("content", ["", "[1]", "{}", "[" * 100_000])
def test_what_is_no_summary_is_none(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert Summary.read(tmp_path) is None


OTHER_KEYS = {"error": "no", "session": 2, "colour": "red", "best": None}
OTHER_TYPES = {"max_steps": 12, "session": "two", "step": True, "best": [1], "metrics": None}
READ = [
    (OTHER_KEYS, {"error": "no", "session": 2}),
    ({**OTHER_TYPES, "test_loss": "low"}, {"max_steps": 12}),
]


@pytest.mark.parametrize(("values", "fields"), READ)
def test_what_is_missing_or_of_another_type_has_its_default(tmp_path, values, fields):
    (tmp_path / FILE).write_text(json.dumps({"reason": "failed", **values}))
    assert Summary.read(tmp_path) == Summary(tmp_path.name, "", "failed", **fields)


def test_metrics_are_numbers_under_names_that_can_be_printed(tmp_path):
    """A summary may be anybody's: kaggle fetch prints it."""
    metrics = {"f1": 0.5, "text": "0.5", "list": [1], "none": None, "\x1b[2J\nforged": 1}
    (tmp_path / FILE).write_text(
        json.dumps({"reason": "completed", "metrics": metrics, "baseline": {"f1": "a"}})
    )
    summary = Summary.read(tmp_path)
    assert list(summary.metrics) == ["f1", "none", r"\x1b[2J\nforged"]
    assert math.isnan(summary.metrics["none"])
    assert summary.baseline == {}


def test_a_table_has_baselines_where_they_exist_and_the_loss_last():
    metrics = {"f1": 0.5, "exact": 0.25}
    baseline = {"f1": 0.2}
    summary = Summary("toy", "toy", "completed", metrics=metrics, baseline=baseline, test_loss=2.0)
    head, f1, exact, loss = results(summary).splitlines()
    assert head.split() == ["metric", "baseline", "model", "gain"]
    assert f1.split() == ["f1", "0.200", "0.500", "+0.300"]
    assert exact.split() == ["exact", "0.250"]
    assert loss.split() == ["loss", "2.000"]


def test_less_error_is_a_gain():
    errors = {"rmse": 2.0, "mean_poisson_deviance": 3.0, "r2": 0.5}
    summary = Summary(
        "a", "b", "completed", metrics=errors, baseline={**errors, "rmse": 2.5, "r2": 0.6}
    )
    _, rmse, deviance, r2 = results(summary).splitlines()
    assert [row.split()[-1] for row in (rmse, deviance, r2)] == ["+0.500", "+0.000", "-0.100"]
