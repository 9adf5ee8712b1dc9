"""summary.json: written whole, read back equal, and readable whoever wrote it."""

import json
import math

from lib.report.summary import FILE, Summary, results, with_all


def test_what_is_written_is_read_back(tmp_path):
    summary = Summary("toy", "my.py:Toy", "completed", 12, 12, metrics={"f1": 0.5, "a": 1.0}, baseline={"f1": 0.25})
    summary.write(tmp_path)
    assert Summary.read(tmp_path) == summary
    assert json.loads((tmp_path / FILE).read_text())["metrics"] == {"f1": 0.5, "a": 1.0}
    assert list(Summary.read(tmp_path).metrics) == ["f1", "a"], "the order in which the task gave them"
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_what_is_no_summary_is_none_and_what_it_lacks_or_has_of_another_type_has_its_default(tmp_path):
    assert Summary.read(tmp_path) is None
    for content in ("", "[1]", "{}", "[" * 100_000):
        (tmp_path / FILE).write_text(content)
        assert Summary.read(tmp_path) is None
    for values, fields in (
        ({"error": "no", "session": 2, "colour": "red", "best": None}, {"error": "no", "session": 2}),
        ({"max_steps": 12, "session": "two", "step": True, "best": [1], "metrics": None, "test_loss": "low"},
         {"max_steps": 12}),
    ):  # fmt: skip
        (tmp_path / FILE).write_text(json.dumps({"reason": "failed", **values}))
        assert Summary.read(tmp_path) == Summary(tmp_path.name, "", "failed", **fields)


def test_metrics_are_numbers_under_names_that_can_be_printed(tmp_path):
    """A summary may be anybody's: kaggle fetch prints it."""
    metrics = {"f1": 0.5, "text": "0.5", "list": [1], "none": None, "\x1b[2J\nforged": 1}
    (tmp_path / FILE).write_text(json.dumps({"reason": "completed", "metrics": metrics, "baseline": {"f1": "a"}}))
    summary = Summary.read(tmp_path)
    assert list(summary.metrics) == ["f1", "none", r"\x1b[2J\nforged"] and math.isnan(summary.metrics["none"])
    assert summary.baseline == {}


def tables(metrics, baseline, **more):
    text = results(Summary("toy", "toy", "completed", metrics=metrics, baseline=baseline, **more))
    return [[line.split() for line in table.splitlines()] for table in text.split("\n\n")]


def test_a_table_has_baselines_where_they_exist_the_loss_last_and_a_row_for_each_of_several_groups():
    metrics = {"mrr": 0.5, "mrr_full_text": 0.1, "hits10_full_text": 0.2, "mrr_masked": 0.3, "hits1_masked": 0.4}
    single, wide = tables(metrics, dict.fromkeys(metrics, 0.25))
    assert single == [["metric", "baseline", "model", "difference"], ["mrr", "0.250", "0.500", "+0.250"]]
    assert wide[0] == ["model", "(baseline)", "mrr", "hits10", "hits1"]
    assert wide[1] == ["full_text", "0.100", "(0.250)", "0.200", "(0.250)"]
    (table,) = tables({"f1": 0.5, "exact": 0.25}, {"f1": 0.2}, test_loss=2.0)
    assert table[1:] == [["f1", "0.200", "0.500", "+0.300"], ["exact", "0.250"], ["loss", "2.000"]]
    scores = {"loss": 1.0, "exact": 0.1, "b": 0.2, "a": 0.3}
    assert list(with_all(scores, {"a": 0, "b": 0, "lost": 0}).items()) == [("a", 0.3), ("b", 0.2), ("exact", 0.1)]
