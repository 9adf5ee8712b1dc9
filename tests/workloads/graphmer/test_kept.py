"""A run of graphmer goes on with its corpus where Python, packages or sources are others by then."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from lib import launch
from lib.errors import BadInput
from workloads.codegraph import records, trees


@pytest.fixture
def embedded(graphmer, tmp_path, monkeypatch):
    """embedded(**overrides) -> the task on embedded data, which is a small tree with the version 3.11.1 of Python."""
    graphmer()
    monkeypatch.setattr(trees, "STANDARD_LIBRARY", tmp_path / "tree")
    monkeypatch.setattr(trees.platform, "python_version", lambda: "3.11.1")
    return lambda overrides=None: graphmer({"data.dir": "", **(overrides or {})})


@pytest.fixture
def stored(embedded):
    """What a run on the embedded data learned, and the fingerprint of its data."""
    task = embedded()
    return task.learned(), task.fingerprint()


def resumed(task, values):
    task.take_learned(values)
    return task


def another_python(tmp_path, monkeypatch):
    (tmp_path / "tree" / "house1.py").write_text("def f(): return g()\n")
    monkeypatch.setattr(trees.platform, "python_version", lambda: "3.11.2")


def test_stored_data_is_taken_where_the_library_is_another_and_that_is_said(embedded, stored, tmp_path, monkeypatch):
    values, before = stored
    same = resumed(embedded(), values)
    assert same.fingerprint() == before and same.data.stored["corpus"] == values["corpus"] and not same.data.changed
    another_python(tmp_path, monkeypatch)
    assert embedded().fingerprint() != before
    task = resumed(embedded(), values)
    text = task.describe_data()
    assert "the standard library 3.11.1, has changed since the run began" in text and "another run.name" in text
    assert task.fingerprint() == before and task.learned() == values
    assert np.array_equal(task.data.structural, same.data.structural)


def test_what_is_of_other_settings_or_of_another_source_is_not_taken(embedded, stored, tmp_path):
    shutil.copytree(tmp_path / "tree", tmp_path / "tree2")
    for change in ({"workload.chain.roots": 32}, {"workload.split.test": 0.4}, {"data.dir": "tree2"}):
        assert resumed(embedded(change), stored[0]).data.stored["about"] != stored[0]["about"]
    more_allowed = embedded({"workload.bad_input_limit": 9})  # which changes nothing of what is read
    assert resumed(more_allowed, stored[0]).data.stored["corpus"] == stored[0]["corpus"]


def test_what_this_version_cannot_read_is_built_again_and_that_is_said(embedded, stored, tmp_path):
    values, before = stored
    with np.load(values["corpus"]) as arrays:
        fewer = {name: arrays[name] for name in arrays.files if name != "head"}
    np.savez(tmp_path / "fewer.npz", **fewer)
    (tmp_path / "damaged.npz").write_bytes(b"{}")
    for changes in ({"corpus": tmp_path / "damaged.npz"}, {"corpus": tmp_path / "fewer.npz"}, {"about": {}}):
        task = resumed(embedded(), {**values, **changes})
        assert "cannot be read by this version" in task.describe_data() and task.fingerprint() == before
        assert task.learned() == values


def test_a_package_that_has_gone_does_not_stop_a_run_that_has_its_corpus(embedded, tmp_path, monkeypatch):
    package = dataclasses.replace(trees.folder(tmp_path / "tree"), name="some", version="1.0", is_own=False)
    with monkeypatch.context() as patched:
        patched.setattr(trees, "installed", lambda texts: [package] if texts else [])
        began = embedded({"workload.packages": ["some==1.0"]})
        assert "and 1 packages (some==1.0)" in began.describe_data()
        values = began.learned()
    task = resumed(embedded({"workload.packages": ["some==1.0"]}), values)
    text = task.describe_data()
    assert "some 1.0" in text and "cannot be read as then" in text and "some is not installed" in text
    assert task.fingerprint() == began.fingerprint() and task.datasets()["train"]
    with pytest.raises(BadInput, match="some is not installed"):
        embedded({"workload.packages": ["some==1.0"]}).fingerprint()


def test_a_run_trains_on_after_a_new_image_as_if_there_had_been_none(embedded, tmp_path, monkeypatch, cut, capsys):
    monkeypatch.setattr(launch, "draw_metrics", lambda *_: None)

    def config(name):
        return embedded({"output_dir": str(tmp_path / name), "training.max_steps": 4, "data.num_workers": 0}).config

    def weights(name):
        return (tmp_path / name / "graphmer" / "checkpoints" / "step-00000004" / "model.safetensors").read_bytes()

    launch.train(config("whole"))
    cut(2)
    assert launch.train(config("runs")).step == 2
    assert "The data of the run is kept in" in capsys.readouterr().out
    another_python(tmp_path, monkeypatch)
    cut(None)
    assert launch.train(config("runs")).reason == "completed"
    assert weights("runs") == weights("whole")


def test_a_graph_and_a_tree_are_not_mixed_and_several_of_a_kind_are_one(graphmer, tmp_path):
    task = graphmer()
    records.write(task.data.graph, tmp_path / "given")
    with pytest.raises(BadInput, match=r"graphs in JSON lines \(.*given\) beside trees of Python files \(.*tree\)"):
        graphmer({"data.dir": [str(tmp_path / "given"), str(tmp_path / "tree")]}).describe_data()
    shutil.copytree(tmp_path / "given", tmp_path / "given2")
    two = graphmer({"data.dir": [str(tmp_path / "given"), str(tmp_path / "given2")]})
    assert len(two.data.graph.triples) == len(task.data.graph.triples)
    assert two.describe_data().startswith(f"Data: {tmp_path / 'given'}, {tmp_path / 'given2'}.")
    (tmp_path / "given2" / "own.yaml").write_text("entities: {A: {}}\nrelations: {}\n")
    with pytest.raises(BadInput, match="have different ontologies"):
        graphmer({"data.dir": [str(tmp_path / "given"), str(tmp_path / "given2")]}).data.rules  # noqa: B018


def test_two_trees_train_together_and_resume_in_any_order(graphmer, tmp_path):
    graphmer()
    shutil.copytree(tmp_path / "tree", tmp_path / "other")
    (tmp_path / "other" / "house1.py").write_text("import helper2\ndef lone(): helper2.open_door(1)\n")
    both = [str(tmp_path / "tree"), str(tmp_path / "other")]
    task, turned = graphmer({"data.dir": both}), graphmer({"data.dir": both[::-1]})
    assert task.fingerprint() == turned.fingerprint() != graphmer().fingerprint()
    corpus = task.data.corpus
    assert {"house1", "tree.house1", "tree.helper2.open_door"} <= set(corpus.entities)
    texts = {tuple(corpus.window_text(window)) for window in range(len(corpus))}
    assert any("lone" in [corpus.word_list[word] for word in text] for text in texts)


def test_what_is_stored_names_no_folder_of_this_machine(stored, tmp_path):
    about = stored[0]["about"]
    assert about["names"] == ["the standard library"] and str(tmp_path) not in json.dumps(about)


def test_packages_beside_given_data_are_said_to_be_left_out(graphmer):
    assert "workload.packages is left out" in graphmer({"workload.packages": ["numpy"]}).describe_data()
