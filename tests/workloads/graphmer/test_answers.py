"""Predictions about a tree, from a run's folder or its archive, where nothing of the training's data is left."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lib.errors import BadInput
from tests.workloads.graphmer.conftest import load, write_new, write_tree
from trainbook import launch
from trainbook.commands import main
from trainbook.launch import ensemble
from workloads.codegraph import follow, trees
from workloads.graphmer.answers import open_references
from workloads.graphmer.settings import OF_REFERENCES


@pytest.fixture(scope="module")
def run(tmp_path_factory, built):
    """The output folder of a short run on a tree that is gone, as the standard library of another machine is."""
    home = tmp_path_factory.mktemp("trained")
    write_tree(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINBOOK_CACHE", str(built))
        patch.setattr(launch, "draw_metrics", lambda *_: None)
        patch.setattr(trees, "STANDARD_LIBRARY", home / "tree")
        small = {"output_dir": str(home / "runs"), "data.num_workers": 0}
        assert launch.train(load(home, {"data.dir": "", **small}).config).missing == {}
    shutil.rmtree(home / "tree")
    return home / "runs"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder on a machine whose standard library is another."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "other.py").write_text("def f(): pass\n")
    monkeypatch.setattr(trees, "STANDARD_LIBRARY", tmp_path / "library")
    monkeypatch.setattr(follow, "is_installed", lambda: False)
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return write_new(tmp_path / "new")


def rows_of(folder):
    return list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))


def test_an_archive_predicts_in_an_empty_folder_on_another_machine(
    run, elsewhere, tmp_path, capsys
):
    (tmp_path / "empty").mkdir()
    shutil.copy(run / "outputs.tar.gz", tmp_path / "empty")
    assert (
        main(
            [
                "predict",
                str(tmp_path / "empty" / "outputs.tar.gz"),
                str(elsewhere),
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "6 of them are references that could not be followed" in said
    assert re.search(r"Expect [\d.]+% of the model's 6 answers to be right", said)
    assert not (tmp_path / "cache").exists(), "nothing was built of this machine's library"
    found = {(row["head"], row["asked"]): row for row in rows_of(tmp_path / "out")}
    row = found["shop.main.visit", "name::open_slowly"]
    assert row["file"] == "shop/main.py"
    assert row["line"] == "8"
    assert found["shop.main.visit", "name::nowhere_at_all"]["tail"] == ""
    assert 0.5 < float(found["shop.main.visit", "name::nowhere_at_all"]["probability"]) < 1
    assert {row["by"] for row in found.values()} == {"model"}
    other = ensemble.run(run / "graphmer", elsewhere, tmp_path / "same")
    assert f"{len(found)} predictions of one model" in other
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["predictions.csv"]
    assert (tmp_path / "same" / "predictions.csv").read_bytes() == (
        tmp_path / "out" / "predictions.csv"
    ).read_bytes()


def believing(models):
    """Gives models weights that believe any answer."""
    for model in models:
        buffer = model.get_buffer("of_references")
        buffer.zero_()
        buffer[0] = 1.0
        buffer[OF_REFERENCES.index("none")] = -20.0


def test_several_models_answer_by_the_mean_of_their_probabilities(run, elsewhere):
    task, (first,) = ensemble.load(run / "outputs.tar.gz")
    _, (second,) = ensemble.load(run / "graphmer")
    believing([second])

    def probability(*models):
        choices = open_references(task, elsewhere).choices(models)
        return pd.concat(choices)["probability"].to_numpy()

    with torch.inference_mode():
        assert not np.allclose(probability(first), probability(second), atol=1e-3)
        mean = (probability(first) + probability(second)) / 2
        assert probability(first, second) == pytest.approx(mean)
    assert len(task.predict([first, second], elsewhere, None)) == 6


MORE = """
from console import board
from shop.doors import Door


def lines(path, thing):
    "a".join(path).strip()
    for door in [Door()]:
        door.open_slowly()
    thing.paint()
    board.print(thing.print())
    print(path)
    return thing.make(Door)
"""


def test_what_is_expected_is_the_mean_of_the_lines_own_probabilities(
    run, elsewhere, tmp_path, capsys
):
    (elsewhere / "shop" / "more.py").write_text(MORE)
    ensemble.run(run / "graphmer", elsewhere, tmp_path / "out")
    said = capsys.readouterr().out
    chances = [float(row["probability"]) for row in rows_of(tmp_path / "out")]
    assert f"Expect {np.mean(chances):.1%} of the model's {len(chances)} answers" in said
    assert "the mean of their own probabilities" in said
    sure = [chance for chance in chances if chance >= 0.9]
    expected = f"{np.mean(sure):.1%} of the {len(sure)} at 0.9 or more" if sure else "to be right:"
    assert expected in said


def test_an_attribute_is_never_a_builtin_of_its_name(run, elsewhere):
    """console.print is not print, though print itself stands in the same function."""
    (elsewhere / "shop" / "more.py").write_text(MORE)
    task, models = ensemble.load(run / "graphmer")
    opened = open_references(task, elsewhere)
    with torch.inference_mode():
        choices = pd.concat(opened.choices(models))
    corpus = opened.asking.corpus
    assert "builtins.print" in corpus.entities, "a bare print names it"
    names = [ref.tail for ref in opened.references]
    assert "name::print" in names
    of_print = choices[[names[question] == "name::print" for question in choices["question"]]]
    assert of_print["entity"].tolist() == [-1]


def test_jedi_is_asked_first_and_moves_the_promise_of_the_rest(
    run, elsewhere, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("jedi")
    (elsewhere / "shop" / "more.py").write_text(MORE)
    ensemble.run(run / "graphmer", elsewhere, tmp_path / "without")
    monkeypatch.undo()
    capsys.readouterr()
    ensemble.run(run / "graphmer", elsewhere, tmp_path / "with")
    said = capsys.readouterr().out
    before = {(row["head"], row["asked"]): row for row in rows_of(tmp_path / "without")}
    found = {(row["head"], row["asked"]): row for row in rows_of(tmp_path / "with")}
    assert found.keys() == before.keys()
    strip = found["shop.more.lines", "name::strip"]
    assert (strip["tail"], strip["probability"], strip["by"]) == ("builtins.str.strip", "", "jedi")
    door = found["shop.more.lines", "name::open_slowly"]
    assert (door["tail"], door["by"]) == ("shop.doors.Door.open_slowly", "jedi")
    paint = found["shop.more.lines", "name::paint"]
    assert paint["by"] == "model"
    assert paint["probability"] != before["shop.more.lines", "name::paint"]["probability"]
    by_jedi = [row for row in found.values() if row["by"] == "jedi"]
    assert f"jedi, asked first, follows {len(by_jedi)}" in said
    assert f"of the model's {len(found) - len(by_jedi)} answers" in said


def test_a_single_file_is_a_tree_and_what_cannot_be_read_is_named(run, elsewhere, tmp_path, capsys):
    (elsewhere / "broken.py").write_text("def (:\n")
    ensemble.run(run / "graphmer", elsewhere, tmp_path / "out")
    assert "Left out" in (said := capsys.readouterr().out)
    assert "broken.py: line 1" in said
    found = ensemble.run(run / "graphmer", elsewhere / "shop" / "main.py", tmp_path / "one")
    assert "predictions of one model" in found
    assert {row["file"] for row in rows_of(tmp_path / "one")} == {"main.py"}


def test_a_run_whose_kept_data_is_damaged_is_refused(run, elsewhere, tmp_path, capsys):
    shutil.copytree(run / "graphmer", tmp_path / "copy")
    corpus = tmp_path / "copy" / "data" / "corpus.npz"
    corpus.write_bytes(corpus.read_bytes()[:-1] + b"x")
    with pytest.raises(BadInput, match="counts that the model begins at are not there"):
        ensemble.run(tmp_path / "copy", elsewhere, tmp_path / "out")
    assert "corpus.npz is not used: it is not as it was written" in capsys.readouterr().out


def test_kept_data_of_a_stranger_runs_no_code_and_is_refused(run, elsewhere, tmp_path):
    """A pickle in an array is neither opened nor mapped, and no index leads out of an array."""
    task, models = ensemble.load(run / "graphmer")
    arrays = dict(np.load(run / "graphmer" / "data" / "corpus.npz"))
    shutil.copytree(run / "graphmer" / "data", tmp_path / "data")
    task.take_learned({**task.learned(), "corpus": tmp_path / "data" / "corpus.npz"})
    wrong = {
        "objects": {**arrays, "head": np.array([Evil()] * len(arrays["head"]), object)},
        "other tails": {**arrays, "tail": arrays["tail"] + 2**40},
    }
    for content in wrong.values():
        np.savez(tmp_path / "data" / "corpus.npz", **content)
        with pytest.raises(BadInput, match="the run kept, by this version, raises"):
            task.predict(models, elsewhere, None)
    np.savez_compressed(tmp_path / "data" / "corpus.npz", **arrays)
    with pytest.raises(BadInput, match="no array of plain numbers"):
        task.predict(models, elsewhere, None)
    assert not Path("ran").exists()


class Evil:
    """Writes a file where it is read from a pickle."""

    def __reduce__(self):
        return Path.touch, (Path("ran"),)
