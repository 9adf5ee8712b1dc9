"""The data and settings that notebook 07 takes: the digits, a competition, or pictures for the class of a cell."""

import pandas as pd
import pytest
import yaml

from lib.errors import BadInput
from lib.task import load_config
from tests.competitions import layouts
from trainbook.new import made
from workloads.competition import mounted


def test_without_data_the_digits_are_a_competition_that_its_files_propose(tmp_path, capsys):
    folder = mounted.data_dir("", "", tmp_path)
    settings = mounted.settings(folder, "task: my_task.py:Images")
    assert "scikit-learn's digits are the data" in capsys.readouterr().out
    (tmp_path / "my.yaml").write_text(settings, "utf-8")
    config = load_config(tmp_path / "my.yaml", {"data.dir": folder})
    assert config.workload.flip is False
    assert config.workload.target == ("label",)
    digits = tmp_path / "digits"
    assert len(pd.read_csv(digits / "sample_submission.csv")) == 97
    labels = pd.read_csv(digits / "train.csv")["label"]
    assert len(labels) == 1700
    assert {*labels} == {*range(10)}
    assert yaml.safe_load(settings)["data"]["dir"] == ""


@pytest.mark.parametrize(("given", "settings"), [("here", ""), ("", "data: {dir: here}")])
def test_data_that_is_named_is_taken_and_no_digits_are_written(given, settings, tmp_path):
    assert mounted.data_dir(given, settings, tmp_path) == given
    assert not [*tmp_path.iterdir()]


def test_a_sample_submission_makes_pictures_a_competition(tmp_path, capsys):
    layouts.leaves(tmp_path / "leaves", 60, 8)
    made.images(tmp_path / "shapes", number=6)
    model = "task: my_task.py:Images"
    assert "task: competition" in mounted.settings(str(tmp_path / "leaves"), model)
    assert "workload.metric: no file names it" in capsys.readouterr().out
    assert mounted.settings(str(tmp_path / "shapes"), model) == model
    with pytest.raises(BadInput, match="which is no folder"):
        mounted.settings(str(tmp_path / "leaves" / "train.csv"), model)


def test_a_mounted_competition_comes_before_pictures_and_these_before_other_tables(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path))
    mounts = tmp_path / "input" / "datasets" / "ada"
    notes = mounts / "a"
    notes.mkdir(parents=True)
    (notes / "notes.csv").write_text("a,b\n1,2\n", "utf-8")
    assert mounted.data_dir("", "", tmp_path) == str(notes)
    made.images(mounts / "b", number=6)
    assert mounted.data_dir("", "", tmp_path) == str(mounts / "b")
    layouts.houses(mounts / "c", 20, 4)
    assert mounted.data_dir("", "", tmp_path) == str(mounts / "c")
