"""A competition from its files to a submission: each form of files, its description, and what to expect."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.metrics import root_mean_squared_log_error

from lib.errors import BadInput
from lib.task import load_config, load_task
from lib.training import loop
from tests.competitions import layouts, play
from trainbook import commands, launch
from trainbook.supervised.submission import checked
from workloads.competition.entry import Logarithms, rmsle

pytestmark = pytest.mark.usefixtures("quick")


class Killed(BaseException):
    """What a kill is to the code."""


FEW = {
    "training.epochs": 0,
    "training.max_steps": 3,
    "training.evaluate_every_epochs": 0,
    "training.effective_batch": 8,
    "data.num_workers": 0,
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """written(name, rows, **changes) -> the truth of a layout, with my.yaml beside its files, to train in few steps."""
    monkeypatch.chdir(tmp_path)

    def write(name, rows=40, **changes):
        layout = layouts.LAYOUTS[name]
        truth = layout.write(tmp_path / "input", rows, 6)
        block = {**layout.block, "metric": layout.metric or layout.block["metric"], **changes}
        values = {"task": "competition", "data": {"dir": "input"}, "workload": block}
        values["training"] = {"epochs": 1, "effective_batch": 8}
        Path("my.yaml").write_text(yaml.safe_dump(values), "utf-8")
        return truth

    return write


def few(**changes):
    return [f"--set={key}={value}" for key, value in {**FEW, **changes}.items()]


@pytest.mark.parametrize("name", ["leaves", "houses", "comments", "salt", "birds"])
def test_a_run_ends_with_a_submission_in_the_form_of_the_sample(name, written, capsys):
    truth = written(name)
    starts = {} if name == "salt" else {"training.start_from_baseline": True}
    assert commands.main(["train", "my.yaml", *few(**starts)]) == 0
    printed = capsys.readouterr().out
    sample = play.read(Path("input/sample_submission.csv"))
    submission = play.read(Path("runs/submission.csv"))
    key = truth.columns[0]
    assert [*submission.columns] == [*sample.columns]
    assert [*submission[key]] == [*sample[key]]
    metric = load_task(load_config("my.yaml")).selection[0]
    assert f"expected: {metric} " in printed
    assert "Checked against sample_submission.csv: columns, ids, order" in printed
    expected = json.loads(Path("runs/my/export/expected.json").read_text("utf-8"))
    assert (expected["metric"], expected["way"]) == (metric, "test")
    assert not submission.equals(sample)


def test_folds_of_texts_that_are_killed_hand_in_the_same_bytes(written, monkeypatch):
    written("comments", rows=24, target=["toxic", "insult"])
    settings = few(**{"folds": 2, "training.effective_batch": 4, "training.smoke_steps": 1})
    assert commands.main(["train", "my.yaml", *settings, "--set=output_dir=whole"]) == 0
    step = loop.optimizer_step

    def killed(state, task, config, slots, number, *rest):
        if config.run.name == "my-fold1" and number == 2:
            raise Killed
        return step(state, task, config, slots, number, *rest)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(loop, "optimizer_step", killed)
        patched.setattr(launch, "_write_failure", lambda *_: None)
        commands.main(["train", "my.yaml", *settings])
    assert not Path("runs/submission.csv").exists()
    assert commands.main(["train", "my.yaml", *settings]) == 0
    for name in ("submission.csv", "my-together/oof.csv", "my-together/expected.json"):
        assert Path("runs", name).read_bytes() == Path("whole", name).read_bytes(), name


def test_doctor_shows_what_columns_are_and_names_leaks(written):
    written("houses", rows=60)
    table = pd.read_csv("input/train.csv")
    table = table.sort_values("SalePrice").assign(Id=range(1000, 1060))
    table["euro"] = table["SalePrice"] * 0.9
    table.to_csv("input/train.csv", index=False)
    test = pd.read_csv("input/test.csv").assign(euro=5)
    shared = table.drop(columns="SalePrice").iloc[:2]
    pd.concat([test, shared]).to_csv("input/test.csv", index=False)
    about = load_task(load_config("my.yaml")).describe_data()
    assert "Predicted: SalePrice." in about
    assert "sold      date" in about
    assert "LEAK? The column euro tells the target" in about
    assert "LEAK? The ids order the target" in about
    assert "LEAK? 2 of 8 rows of the test have the cells of a training row" in about


def test_columns_that_the_test_lacks_are_not_learned_from(written):
    written("houses", rows=60)
    table = pd.read_csv("input/train.csv").assign(later=range(60))
    table.to_csv("input/train.csv", index=False)
    task = load_task(load_config("my.yaml"))
    assert "Columns that test.csv lacks, which are not used: later" in task.describe_data()
    assert "later" not in task.learned()["encoded"]
    assert "nothing used" not in task.describe_data()  # the ids join the submission


def test_groups_stay_in_one_split(written):
    written("leaves")
    task = load_task(load_config("my.yaml"))
    groups = [{task.group(sample) for sample in part.samples} for part in task.parts.values()]
    assert all(groups)
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]


def test_pictures_are_mirrored_unless_the_block_refuses(written):
    written("leaves")
    assert load_task(load_config("my.yaml")).settings.flip
    assert not load_task(load_config("my.yaml", {"workload.flip": False})).settings.flip


def test_the_logarithms_of_a_target_are_learned_and_come_back(written):
    written("houses")
    task = load_task(load_config("my.yaml"))
    assert isinstance(task._kind, Logarithms)
    prices = pd.read_csv("input/train.csv")["SalePrice"]
    targets = [sample[-1] for part in task.parts.values() for sample in part.samples]
    assert max(targets) == pytest.approx(math.log1p(prices.max()))
    assert rmsle(task.targets("test"), task.targets("test")) == 0


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"target": ["Price"]}, r"has no column Price; .* Correct workload\.target"),
        ({"key": "Nr"}, r"has no column Nr; .* Correct workload\.key"),
        ({"table": "no.csv"}, r"There is no file no\.csv .* Correct workload\.table"),
        ({"metric": "dice"}, r"judges masks of pictures"),
        ({"folder": "input/*.doc"}, r"names neither pictures nor sounds"),
        ({"target": ["district"]}, r"is no number, and rmsle judges numbers"),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_do(changes, what, written):
    written("houses", **changes)
    with pytest.raises(BadInput, match=what):
        load_task(load_config("my.yaml")).datasets()


def test_a_submission_that_differs_from_its_sample_is_refused(tmp_path):
    sample = tmp_path / "sample.csv"
    place = tmp_path / "submission.csv"
    sample.write_text("id,a,b\n1,0.5,0.5\n2,0.5,0.5\n", "utf-8")
    place.write_text("id,a,b\n1,0.1,0.9\n2,0.2,0.8\n", "utf-8")
    assert checked(place, sample) == "Checked against sample.csv: columns, ids, order, ranges."
    for text, what in (
        ("id,a\n1,0.1\n2,0.2\n", "the columns are id, a"),
        ("id,a,b\n2,0.1,0.9\n1,0.2,0.8\n", "are not the sample's, in its order"),
        ("id,a,b\n1,0.1,0.9\n2,,0.8\n", "is no number"),
        ("id,a,b\n1,1.5,0.9\n2,0.2,0.8\n", "1.5 is no share from 0 to 1"),
    ):
        place.write_text(text, "utf-8")
        with pytest.raises(BadInput, match=what):
            checked(place, sample)


def test_a_mask_that_ends_behind_its_picture_is_named_with_row_and_file(written, tmp_path):
    written("salt", rows=20)
    pixels = layouts.SIDE**2
    table = play.read(Path("input/train.csv"))
    wrong = table.assign(rle_mask=[f"{pixels} 2", *table["rle_mask"][1:]])
    wrong.to_csv("input/train.csv", index=False)
    where = r"train\.csv:2, train0\.png of 48 x 48 pixels: .* one ends at pixel 2,305 of 2,304"
    with pytest.raises(BadInput, match=where):
        load_task(load_config("my.yaml")).datasets()
    table.to_csv("input/train.csv", index=False)
    task = load_task(load_config("my.yaml"))
    sample = Path("input/sample_submission.csv")
    place = tmp_path / "submission.csv"
    place.write_text(sample.read_text("utf-8").replace("1 1", f"1 {pixels}"), "utf-8")
    assert checked(place, sample, task.cell_check()).endswith("masks.")
    place.write_text(sample.read_text("utf-8").replace("1 1", f"2 {pixels}"), "utf-8")
    with pytest.raises(BadInput, match="6 cells of rle_mask .* test0: .* pixel 2,305 of 2,304"):
        checked(place, sample, task.cell_check())


def test_rmsle_of_logarithms_is_that_of_scikit_learn_where_a_guess_below_zero_counts_as_zero():
    true = np.array([0.0, 1.0, 30.0, 250_000.0])
    guess = np.array([-0.5, 2.0, 25.0, 310_000.0])
    error = rmsle(np.log1p(true), np.log1p(guess))
    assert error == pytest.approx(root_mean_squared_log_error(true, guess.clip(0)))
