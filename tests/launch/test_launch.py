"""A run from its configuration to its archive, on the command line and over sessions."""

import os
import shutil
import tarfile

import pytest

from lib import checkpoint, launch
from lib.errors import BadInput
from lib.report import outputs
from lib.report.metrics import read
from lib.report.summary import Summary


def test_a_run_leaves_everything_that_is_promised(toy, tmp_path):
    summary = launch.train(toy())
    folder = tmp_path / "runs" / "toy"
    assert summary.reason == "completed" and summary.step == 12 and summary.world_size == 1
    assert summary.metrics.keys() == summary.baseline.keys() == {"rmse"}
    assert summary.samples_seen == [96] and summary.session == 1
    assert Summary.read(folder) == summary
    assert (folder / "plots" / "metrics.png").is_file() and (folder / "config.yaml").is_file()
    assert checkpoint.steps(folder / "checkpoints") == [9, 12]
    with tarfile.open(tmp_path / "runs" / "outputs.tar.gz") as archive:
        names = archive.getnames()
    assert "toy/summary.json" in names and "toy/metrics.csv" in names and "toy/plots/metrics.png" in names
    assert any(name.startswith("toy/best/step-") and name.endswith("model.safetensors") for name in names)
    assert not any("checkpoints" in name for name in names)


def test_a_completed_run_is_left_as_it_is_and_more_steps_go_on(toy, tmp_path, capsys):
    launch.train(toy())
    before = (tmp_path / "runs" / "toy" / "metrics.csv").stat().st_mtime_ns
    assert launch.train(toy()).step == 12
    assert "was completed at step 12" in capsys.readouterr().out
    assert (tmp_path / "runs" / "toy" / "metrics.csv").stat().st_mtime_ns == before
    assert launch.train(toy({"training.max_steps": 15})).step == 15
    assert "step 12: 3 of 15 steps left" in capsys.readouterr().out


def test_a_deadline_ends_the_session_and_the_next_one_goes_on(toy, tmp_path, cut):
    cut(5)
    first = launch.train(toy())
    assert (first.reason, first.step, first.metrics) == ("deadline", 5, {})
    assert launch.EXIT_CODES[first.reason] == 75
    cut(None)
    second = launch.train(toy())
    assert (second.reason, second.step, second.session) == ("completed", 12, 2)


@pytest.mark.parametrize("layout", ["notebooks/someone/my-run", "my-run"])
def test_a_mounted_earlier_output_is_resumed_and_never_written(toy, tmp_path, monkeypatch, cut, layout):
    cut(5)
    launch.train(toy())
    mount = tmp_path / "kaggle" / "input" / layout
    shutil.copytree(tmp_path / "runs", mount)
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path / "kaggle"))
    before = {p: p.read_bytes() for p in mount.rglob("*") if p.is_file()}
    cut(None)
    summary = launch.train(toy())
    assert (summary.reason, summary.session) == ("completed", 2)
    rows = read(tmp_path / "runs" / "toy" / "metrics.csv")
    assert [r["step"] for r in rows if r["split"] == "train"] == ["5", "10", "12"]
    assert {p: p.read_bytes() for p in mount.rglob("*") if p.is_file()} == before


def test_resume_from_names_a_folder_and_refuses_one_without_a_checkpoint(toy, tmp_path, cut):
    cut(5)
    launch.train(toy())
    shutil.move(tmp_path / "runs", tmp_path / "earlier")
    cut(None)
    assert launch.train(toy({"run.resume_from": str(tmp_path / "earlier")})).session == 2
    (tmp_path / "nothing").mkdir()
    with pytest.raises(BadInput, match="which has no checkpoint of toy"):
        launch.train(toy({"run.resume_from": str(tmp_path / "nothing"), "run.name": "toy", "training.max_steps": 99}))


def test_a_damaged_newest_checkpoint_is_said_and_the_one_before_is_used(toy, tmp_path, cut, capsys):
    cut(7)
    launch.train(toy())
    newest = tmp_path / "runs" / "toy" / "checkpoints" / "step-00000007" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3])
    cut(None)
    assert launch.train(toy()).step == 12
    out = capsys.readouterr().out
    assert "step-00000007 is damaged" in out and "step 6: 6 of 12 steps left" in out


def test_a_failure_is_in_the_summary_with_the_step_that_was_saved(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(launch.loop, "train", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        launch.train(toy())
    summary = Summary.read(tmp_path / "runs" / "toy")
    assert (summary.reason, summary.error, summary.step, summary.session) == ("failed", "division by zero", 0, 1)
    assert summary.run == "toy" and summary.task.endswith("toy.py:Toy") and summary.max_steps == 12


def test_an_empty_summary_stops_no_run(toy, tmp_path):
    (tmp_path / "runs" / "toy").mkdir(parents=True)
    (tmp_path / "runs" / "toy" / "summary.json").write_text("")
    assert launch.train(toy()).reason == "completed"


def test_the_archive_is_the_same_bytes_for_the_same_content(toy, tmp_path):
    launch.train(toy())
    first = outputs.package(tmp_path / "runs").read_bytes()
    os.utime(tmp_path / "runs" / "toy" / "summary.json", (0, 0))
    assert outputs.package(tmp_path / "runs").read_bytes() == first


def test_a_lightweight_run_says_what_it_costs_and_is_a_third_of_the_size(toy, tmp_path, cut, capsys):
    cut(5)
    launch.train(toy({"checkpoint.lightweight": True}))
    saved = checkpoint.path_of(tmp_path / "runs" / "toy" / "checkpoints", 5)
    assert not (saved / "optimizer.safetensors").exists()
    cut(None)
    assert launch.train(toy({"checkpoint.lightweight": True})).step == 12
    assert "is lightweight: the optimizer starts anew" in capsys.readouterr().out


def test_a_new_run_starts_from_the_weights_of_another_and_says_what_matched(toy, tmp_path, capsys):
    launch.train(toy())
    first = {"run.name": "second", "run.initial_weights": str(tmp_path / "runs" / "toy"), "training.max_steps": 1}
    launch.train(toy(first))
    assert "Initial weights: 4 of 4 tensors match" in capsys.readouterr().out
    with pytest.raises(BadInput, match="4 of 9 tensors match.*less than 90%"):
        launch.train(toy({**first, "run.name": "third", "workload.batch_norm": True}))
