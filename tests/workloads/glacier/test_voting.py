"""Which runs vote together, and what is left of one vote."""

import dataclasses

import pytest

from lib import launch
from lib.errors import BadInput
from lib.launch import queue
from lib.machine import inputs
from lib.report.summary import Summary
from lib.task import Task
from tests.conftest import ROOT, TOY
from workloads.glacier import voting


def test_folds_of_the_same_size_vote_with_a_completed_queue(tmp_path, monkeypatch, capsys):
    def complete(place, name):
        (place / name / "best" / "step-00000001").mkdir(parents=True)
        Summary(name, "toy", "completed").write(place / name)

    monkeypatch.setattr(queue.checkpoint, "steps", lambda folder: [1] if folder.is_dir() else [])
    mount, runs = tmp_path / "input", tmp_path / "runs"
    monkeypatch.setattr(inputs, "mounted", lambda here: [mount])
    path = tmp_path / "vote_small.yaml"
    path.write_text(TOY.replace("run: {name: toy}\n", "") + f"queue: {{seeds: [1, 2]}}\noutput_dir: {runs}\n")
    entries = queue.entries(path)
    complete(runs, "vote_small-seed1")
    assert voting.members(entries, "tune") == [] and "They vote once all of them are" in capsys.readouterr().out
    complete(runs, "vote_small-seed2")
    own = [runs / "vote_small-seed1", runs / "vote_small-seed2"]
    complete(mount, "tune-fold0")  # another size
    assert voting.members(entries, "tune") == own and "No fold of tune_small" in capsys.readouterr().out
    complete(mount, "tune_small-fold1")
    complete(runs, "tune_small-fold0")
    assert voting.members(entries, "tune") == [runs / "tune_small-fold0", mount / "tune_small-fold1", *own]


def test_a_member_whose_test_failed_votes_and_is_named(toy, tmp_path, monkeypatch, quick):
    run = launch.prepare(toy())
    launch.train(run)
    dataclasses.replace(Summary.read(run.folder), metrics={}, missing={"test": "ValueError"}).write(run.folder)
    monkeypatch.setattr(Task, "vote", lambda *_: ({"rmse": 0.25, "loss": 1.0}, "Voted."), raising=False)
    voted, text = voting.vote([run.folder], tmp_path / "vote", f"{ROOT / 'tests' / 'toy.py'}:Toy")
    assert voted.metrics == {"rmse": 0.25} and text.splitlines()[0] == "Voted." and "not tested" in text
    with pytest.raises(BadInput, match="no completed run that could vote"):
        voting.vote([], tmp_path)
