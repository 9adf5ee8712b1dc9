"""A run from its configuration to its archive, on the command line and over sessions."""

import dataclasses
import errno
import fcntl
import json
import math
import os
import shutil
import signal
import tarfile
from pathlib import Path

import pytest

from lib import checkpoint, launch
from lib.errors import BadInput, TrainingFailed
from lib.launch import queue
from lib.report import outputs, plot
from lib.report.metrics import read
from lib.report.summary import Summary
from tests.conftest import VOLATILE_COLUMNS

pytestmark = pytest.mark.usefixtures("quick")


def test_a_run_leaves_everything_that_is_promised(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "draw_metrics", plot.draw_metrics)
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


def files_of(folder):
    """Every file of a run, but for the picture's bytes and what no two sessions share."""
    content = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    summary = json.loads(content["summary.json"])
    for name in ("session", "steps_per_second", "peak_memory_bytes", "samples_seen"):
        summary.pop(name)
    rows = [{k: v for k, v in row.items() if k not in VOLATILE_COLUMNS} for row in read(folder / "metrics.csv")]
    return {**content, "summary.json": json.dumps(summary), "metrics.csv": rows, "plots/metrics.png": True}


class Killed(BaseException):
    """What a kill is to the code: nothing is done any more."""


@pytest.mark.parametrize("where", ["evaluate", "draw_metrics", "Summary.write", "outputs.bundle", "outputs.package"])
def test_a_run_killed_at_its_end_is_completed_by_the_next_call(toy, tmp_path, monkeypatch, where):
    config = toy({"output_dir": str(tmp_path / "whole")})
    launch.train(config)

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(launch, "_write_failure", kill)
        patched.setattr(f"lib.launch.{where}", kill)
        launch.train(toy())
    again = launch.train(toy())
    assert (again.reason, again.step, again.missing) == ("completed", 12, {})
    whole, mended = (files_of(tmp_path / name / "toy") for name in ("whole", "runs"))
    whole.pop("config.yaml"), mended.pop("config.yaml")  # which names the folder
    assert mended == whole
    assert outputs.holds(tmp_path / "runs" / outputs.ARCHIVE, tmp_path / "runs" / "toy")


@pytest.mark.parametrize("damage", ["removed", "cut", "of an earlier session"])
def test_an_archive_that_is_not_that_of_the_run_is_packed_again(toy, tmp_path, damage):
    launch.train(toy({"training.max_steps": 6}))
    archive = tmp_path / "runs" / outputs.ARCHIVE
    earlier = archive.read_bytes()
    launch.train(toy())
    good = archive.read_bytes()
    if damage == "removed":
        archive.unlink()
    else:
        archive.write_bytes(good[:-20] if damage == "cut" else earlier)
    launch.train(toy())
    assert archive.read_bytes() == good
    before = archive.stat().st_mtime_ns
    launch.train(toy())
    assert archive.stat().st_mtime_ns == before


@pytest.mark.parametrize("keep_last", [0, 2])
@pytest.mark.parametrize("what", ["test", "plot", "baseline", "report", "archive"])
def test_an_error_after_the_last_step_costs_no_summary_and_is_made_up_for(
    toy, tmp_path, monkeypatch, capsys, what, keep_last
):
    def fail(*_):
        raise ValueError("a mistake in it")

    run = launch.prepare(toy({"checkpoint.keep_last": keep_last}))
    places = {"test": (launch, "evaluate"), "plot": (launch, "draw_metrics"), "archive": (outputs, "package")}
    with monkeypatch.context() as patched:
        patched.setattr(*places.get(what, (type(run.task), what)), fail, raising=False)
        summary = launch.train(run)
    assert summary.reason == "completed" and Summary.read(run.folder) == summary
    assert summary.missing == ({} if what == "archive" else {what: "ValueError: a mistake in it"})
    out = capsys.readouterr().out
    assert f"Warning: the {what} failed" in out and "Traceback" in out
    rows = (run.folder / "metrics.csv").read_bytes()
    mended = launch.train(run)
    assert mended.missing == {} and mended.metrics and mended.baseline and mended.session == 1
    assert mended.samples_seen == [96] and (run.folder / "metrics.csv").read_bytes() == rows  # nothing was trained
    assert launch.picture(run).is_file() and outputs.holds(run.output_dir / outputs.ARCHIVE, run.folder)


def failing_once(monkeypatch, run, method="report"):
    """Trains a run whose report fails; returns its summary."""

    def fail(*_):
        raise ValueError("a mistake in it")

    with monkeypatch.context() as patched:
        patched.setattr(type(run.task), method, fail, raising=False)
        return launch.train(run)


def test_a_run_that_kept_no_weights_is_not_tested_with_others(toy, monkeypatch, capsys):
    run = launch.prepare(toy({"checkpoint.keep_last": 0, "checkpoint.keep_best": 0}))
    first = failing_once(monkeypatch, run)
    assert first.missing.keys() == {"report"} and first.metrics
    assert launch.train(run) == first and "keeps no weights of this run" in capsys.readouterr().out


def test_making_up_for_a_report_leaves_the_settings_of_the_run_as_they_were(toy, monkeypatch, capsys):
    run = launch.prepare(toy())
    first = failing_once(monkeypatch, run)
    config = (run.folder / launch.CONFIG).read_bytes()
    mended = launch.train(launch.prepare(toy({"optimizer.lr": 0.5, "run.accept_changes": True})))
    assert mended == dataclasses.replace(first, missing={}, report=mended.report)
    assert (run.folder / launch.CONFIG).read_bytes() == config
    capsys.readouterr()
    launch.train(launch.prepare(toy({"optimizer.lr": 0.5, "run.accept_changes": True})))
    assert "optimizer.lr" in capsys.readouterr().out


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_costs_no_summary(toy, monkeypatch, value):
    run = launch.prepare(toy())
    names = run.task.baseline()
    monkeypatch.setattr(type(run.task), "baseline", lambda self: dict.fromkeys(names, value))
    assert launch.train(run).missing == {}
    saved = Summary.read(run.folder)
    assert saved.baseline.keys() == names.keys() and all(map(math.isnan, saved.baseline.values()))
    assert outputs.holds(run.output_dir / outputs.ARCHIVE, run.folder)


@pytest.mark.parametrize(
    ("method", "value", "sentence"),
    [
        ("report", Path("x"), "report returned a PosixPath. Return the text to print."),
        ("baseline", None, "baseline returned None instead of metrics by name."),
        ("baseline", {"rmse": "low"}, "baseline returned 'rmse' as a str. Return a number."),
    ],
)
def test_what_a_task_should_not_return_at_the_end_is_named_and_costs_no_summary(
    toy, monkeypatch, method, value, sentence
):
    run = launch.prepare(toy())
    monkeypatch.setattr(type(run.task), method, lambda *_: value, raising=False)
    assert sentence in launch.train(run).missing[method]
    assert outputs.holds(run.output_dir / outputs.ARCHIVE, run.folder)


def test_a_second_interrupt_is_an_interruption_and_no_failure(toy, tmp_path, monkeypatch):
    def impatient(*_):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(launch.loop, "train", impatient)
    with pytest.raises(KeyboardInterrupt):
        launch.train(toy())
    assert Summary.read(tmp_path / "runs" / "toy").reason == "interrupted"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_during_packing_leaves_the_summary(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "package", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        launch.train(toy())
    assert Summary.read(tmp_path / "runs" / "toy").reason == "completed"


def test_a_run_whose_folder_another_process_holds_is_refused_and_changes_nothing(toy, tmp_path):
    folder = tmp_path / "runs" / "toy"
    folder.mkdir(parents=True)
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(BadInput, match=f"Another process is training in {folder}"):
        launch.train(toy())
    assert not list(folder.iterdir()) and [path.name for path in folder.parent.iterdir()] == ["toy"]
    os.close(other)
    assert launch.train(toy({"training.max_steps": 1})).reason == "completed"


def test_a_completed_run_does_not_answer_for_another_one(toy, tmp_path):
    launch.train(toy())
    shutil.rmtree(tmp_path / "runs" / "toy" / "checkpoints")  # its summary knows what it was
    for key, value in (("seed", 1), ("training.effective_batch", 4), ("workload.samples", 36)):
        named = key.replace("workload.samples", "data fingerprint")
        with pytest.raises(BadInput, match=rf"(?s)completed with another configuration:\n +saved +now\n.* {named} "):
            launch.train(toy({key: value}))


@pytest.mark.parametrize(
    "edit", [{"optimizer.lr": 0.02}, {"workload.dropout": 0.5}, {"training.max_steps": 8}, {"training.ema_decay": 0.9}]
)
def test_no_score_of_a_completed_run_is_printed_under_other_settings(toy, capsys, edit):
    launch.train(toy())
    assert launch.train(toy({"training.micro_batch": 2, "training.log_every_steps": 1})).step == 12
    assert "rmse" in capsys.readouterr().out
    key = next(iter(edit))
    with pytest.raises(BadInput, match=rf"(?s)completed with another configuration.*{key}.*--set run.name=toy-2\n"):
        launch.train(toy(edit))
    assert "rmse" not in capsys.readouterr().out
    assert launch.train(toy({**edit, "run.name": "toy-2"})).reason == "completed"
    with pytest.raises(BadInput, match="--set run.name=toy-3\n"):
        launch.train(toy(edit))
    capsys.readouterr()
    launch.train(toy({**edit, "run.accept_changes": True}))
    out = capsys.readouterr().out
    assert "was completed with other settings, because these differ:\n" in out and key in out


def test_a_folder_in_the_place_of_a_file_is_named(toy, tmp_path):
    for name in ("metrics.csv", "summary.json", "config.yaml"):
        (tmp_path / "runs" / "toy" / name).mkdir(parents=True)
        with pytest.raises(BadInput, match=f"{name} is a folder"):
            launch.train(toy())
        (tmp_path / "runs" / "toy" / name).rmdir()


@pytest.mark.parametrize("where", ["config.yaml", "summary.json"])
@pytest.mark.parametrize("times", [1, 99])
def test_a_full_disk_at_a_file_of_the_run_is_a_sentence_and_a_passing_error_nothing(
    toy, tmp_path, monkeypatch, where, times
):
    left, replace = [times], Path.replace

    def full(self, target):
        if target.name == where and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        if times == 1:
            assert launch.train(toy()).reason == "completed"
        else:
            with pytest.raises(TrainingFailed, match=rf"{where} cannot be written \(No space left.*Free room"):
                launch.train(toy())
    assert launch.train(toy()).reason == "completed"
    assert outputs.holds(tmp_path / "runs" / outputs.ARCHIVE, tmp_path / "runs" / "toy")


def test_a_second_call_of_a_queue_ends_and_does_not_take_the_next_run(toy, tmp_path):
    toy()
    overrides = {"queue.seeds": [1, 2], "output_dir": str(tmp_path / "runs"), "training.max_steps": 1}
    runs = queue.entries(tmp_path / "toy.yaml", overrides)
    runs[0].folder.mkdir(parents=True)
    other = os.open(runs[0].folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(BadInput, match="Another process is training"):
        queue.run_queue(runs)
    assert not runs[1].folder.exists()
    os.close(other)
