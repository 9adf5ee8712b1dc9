"""The block of settings that `new --like competition` proposes: what it takes from files, and what it asks."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from lib.errors import BadInput
from lib.task import load_config, load_task
from tests.competitions import layouts
from trainbook import commands
from workloads.competition import proposal, wording

KINDS = {
    "leaves": "Pictures",
    "houses": "Columns",
    "comments": "Words",
    "salt": "Masks",
    "birds": "Sounds",
}


@pytest.mark.parametrize("name", layouts.LAYOUTS)
def test_the_block_of_a_layout_follows_from_its_files(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layout = layouts.LAYOUTS[name]
    layout.write(tmp_path / "input", 60, 8)
    assert commands.main(["new", "my", "--like", "competition", "--data", "input"]) == 0
    printed = capsys.readouterr().out
    text = Path("my.yaml").read_text("utf-8")
    assert text in printed
    assert len(text.splitlines()) <= 12
    values = yaml.safe_load(text)
    assert values["task"] == "competition"
    assert values["workload"] == layout.block
    assert "workload.metric: " in printed  # no file names it
    rows = [line for line in text.splitlines() if line.startswith("  ")]
    assert all("  # " in row for row in rows), "every setting has its reason"
    if name in KINDS:
        assert type(load_task(load_config("my.yaml"))).__name__ == KINDS[name]
        return
    assert "workload.target: " in printed
    assert "several rows for a file" in printed
    with pytest.raises(BadInput, match=r"workload\.target is empty"):
        load_config("my.yaml")


def test_a_folder_without_a_training_table_is_refused_by_name(tmp_path):
    with pytest.raises(BadInput, match="There is no table"):
        proposal.propose(tmp_path)
    pd.DataFrame({"id": [1]}).to_csv(tmp_path / "test.csv", index=False)
    pd.DataFrame({"id": [1]}).to_csv(tmp_path / "sample_submission.csv", index=False)
    with pytest.raises(BadInput, match=r"None of the tables .* Call it train\.csv"):
        proposal.propose(tmp_path)


def test_what_cannot_be_told_is_asked_and_not_guessed(tmp_path):
    table = pd.DataFrame({"row": range(30), "x": range(30), "y": range(30)})
    table.to_csv(tmp_path / "train.csv", index=False)
    block = proposal.propose(tmp_path)
    asked = " ".join(block.questions)
    for key in ("sample", "key", "target", "test", "metric"):
        assert f"workload.{key}: " in asked, key
        assert not block.values[key], key
    named = pd.DataFrame({"row": [90], "z": [0]})
    named.to_csv(tmp_path / "sample_submission.csv", index=False)
    block = proposal.propose(tmp_path)
    assert "no columns z, and no column with these values" in " ".join(block.questions)


@pytest.mark.parametrize(
    ("train", "sample", "metric"),
    [
        (["0", "1"] * 20, 0.5, "roc_auc"),
        (["0", "1"] * 20, 0, "accuracy"),
        (["a", "b", "c", "d"] * 10, "a", "accuracy"),
        ([*range(40)], 3, "rmse"),
        ([number / 7 for number in range(40)], 0.5, "rmse"),
    ],
)
def test_what_a_target_is_follows_from_its_values_and_the_sample(train, sample, metric, tmp_path):
    ids = [f"r{number}" for number in range(40)]
    pd.DataFrame({"id": ids, "x": range(40), "y": train}).to_csv(
        tmp_path / "train.csv", index=False
    )
    pd.DataFrame({"id": ["t"], "x": [1]}).to_csv(tmp_path / "test.csv", index=False)
    pd.DataFrame({"id": ["t"], "y": [sample]}).to_csv(
        tmp_path / "sample_submission.csv", index=False
    )
    assert proposal.propose(tmp_path).values["metric"] == metric


@pytest.mark.parametrize(
    ("words", "metric"),
    [
        ("RMSLE", "rmsle"),
        ("Root Mean Squared Logarithmic Error", "rmsle"),
        ("root_mean_squared_log_error", "rmsle"),
        ("Root Mean Squared Error", "rmse"),
        ("Mean Absolute Error", "mae"),
        ("Mean Columnwise ROC AUC", "roc_auc"),
        ("mean column-wise AUC", "roc_auc"),
        ("Area Under Receiver Operating Characteristic Curve", "roc_auc"),
        ("Quadratic Weighted Kappa", "quadratic_kappa"),
        ("QuadraticWeightedKappa".replace("W", " W").replace("K", " K"), "quadratic_kappa"),
        ("Multiclass Log Loss", "log_loss"),
        ("logloss", "log_loss"),
        ("MAP@5", "map_at_5"),
        ("Mean Average Precision @ 3", "map_at_3"),
        ("Dice", "dice"),
        ("Categorization Accuracy", "accuracy"),
        ("macro F1", "macro_f1"),
    ],
)
def test_metrics_are_known_by_the_words_of_competitions(words, metric):
    assert wording.metric_of(words) == metric


def test_every_metric_is_known_by_its_own_name_and_others_are_refused():
    for name in (*wording.NUMBERS, *wording.CLASSES, *wording.MASKS):
        assert wording.metric_of(name) == name
    with pytest.raises(BadInput, match="names no metric"):
        wording.metric_of("beauty")
    with pytest.raises(BadInput, match="names no metric"):
        wording.metric_of("MAP@7")
    with pytest.raises(BadInput, match="workload.target has 2 columns"):
        wording.kind_of("quadratic_kappa", ("a", "b"))
