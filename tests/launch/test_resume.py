"""The checkpoint that a run resumes from: damaged ones are set aside, and a run never starts from 0 in silence."""

import os
import shutil

import pytest

from lib import checkpoint, launch
from lib.errors import BadInput
from lib.launch.queue import find_completed
from lib.launch.resume import announce
from lib.machine import platform

pytestmark = pytest.mark.usefixtures("quick")


def test_a_run_whose_every_checkpoint_is_damaged_never_starts_from_0_in_silence(toy, tmp_path):
    launch.train(toy())
    folder = tmp_path / "runs" / "toy" / "checkpoints"
    for step in checkpoint.steps(folder):
        (checkpoint.path_of(folder, step) / "manifest.json").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"(?s)step-00000012 is damaged.*step-00000009 is damaged.*run\.name"):
            launch.train(toy({"training.max_steps": 15}))
    assert checkpoint.steps(folder) == [9, 12]


def test_a_damaged_checkpoint_is_set_aside_in_the_runs_own_folder_and_not_in_a_mount(toy, tmp_path, capsys):
    launch.train(toy())
    runs = tmp_path / "runs"
    (runs / "toy" / "checkpoints" / "step-00000012" / "state.json").write_bytes(b"{}")
    announce(launch.prepare(toy({"run.resume_from": str(runs), "output_dir": "elsewhere"})))
    assert checkpoint.steps(runs / "toy" / "checkpoints") == [9, 12]
    assert announce(launch.prepare(toy())).step == 9
    assert "It is kept as step-00000012.damaged." in capsys.readouterr().out
    assert checkpoint.steps(runs / "toy" / "checkpoints") == [9]


def test_what_a_run_resumes_from_is_printed_once_in_a_notebook_and_again_where_it_changed(toy, monkeypatch, capsys):
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    run = launch.prepare(toy())
    assert announce(run) is None  # the cell "Resume"
    launch.train(run)  # the cell "Full run"
    assert capsys.readouterr().out.count("No earlier checkpoint of toy") == 1
    assert announce(run).step == 12 and "step 12: 0 of 12 steps left" in capsys.readouterr().out
    monkeypatch.setattr(platform, "in_notebook", lambda: False)
    announce(run), announce(run)
    assert capsys.readouterr().out.count("step 12: 0 of 12 steps left") == 2


def test_metrics_and_events_come_along_from_elsewhere_and_replace_those_of_a_killed_start(toy, tmp_path, cut):
    plateau = {"scheduler.name": "plateau", "scheduler.patience": 0, "optimizer.lr": 0.3}
    config = {**plateau, "training.evaluate_every_steps": 1}
    whole = tmp_path / "whole"
    launch.train(toy({**config, "output_dir": str(whole)}))
    cut(7)
    launch.train(toy(config))
    (tmp_path / "runs").rename(tmp_path / "earlier")
    (tmp_path / "runs" / "toy").mkdir(parents=True)
    left = "step,kind,before,after,text\n1,plateau,9,8,Of another start.\n"
    (tmp_path / "runs" / "toy" / "events.csv").write_text(left)
    cut(None)
    launch.train(toy({**config, "run.resume_from": str(tmp_path / "earlier")}))
    assert (whole / "toy" / "events.csv").read_bytes().count(b"plateau") > 2
    assert (tmp_path / "runs" / "toy" / "events.csv").read_bytes() == (whole / "toy" / "events.csv").read_bytes()


def test_sessions_are_counted_though_killed_ones_leave_no_summary(toy, tmp_path, cut, monkeypatch):
    """On Kaggle each begins in an empty folder, with the output of the one before mounted."""

    def kill(*_):
        raise KeyboardInterrupt

    more = {}
    for number in range(1, 4):
        cut(2)
        more["output_dir"] = str(tmp_path / f"output{number}")
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(launch, "_write_failure", lambda *_: None)
            patched.setattr(launch, "_end", kill)
            launch.train(toy(more))
        more["run.resume_from"] = more["output_dir"]
    cut(None)
    assert launch.train(toy({**more, "output_dir": str(tmp_path / "output4")})).session == 4
    assert not (tmp_path / "output4" / "toy" / "session").exists()


def test_links_and_pipes_do_not_come_along_from_elsewhere(toy, tmp_path, cut):
    """TensorBoard would write its files through them."""
    cut(3)
    launch.train(toy())
    earlier, outside = tmp_path / "earlier" / "toy", tmp_path / "outside"
    (tmp_path / "runs").rename(tmp_path / "earlier")
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (earlier / "tracking" / "deep").mkdir(parents=True)
    (earlier / "tracking" / "deep" / "ids").write_text("plain")
    (earlier / "tracking" / "tensorboard").symlink_to(outside)
    (earlier / "tracking" / "log").symlink_to(outside / "secret")
    os.mkfifo(earlier / "tracking" / "pipe")
    (earlier / "events.csv").unlink(missing_ok=True)
    (earlier / "events.csv").symlink_to(outside / "secret")
    cut(None)
    launch.train(toy({"run.resume_from": str(tmp_path / "earlier")}))
    here = tmp_path / "runs" / "toy"
    assert [path.name for path in sorted((here / "tracking").rglob("*"))] == ["deep", "ids"]
    assert not (here / "events.csv").exists()


def test_a_queue_takes_no_completed_run_of_other_settings_for_its_own(toy, tmp_path):
    launch.train(toy({"training.max_steps": 4}))
    shutil.rmtree(tmp_path / "runs" / "toy" / "checkpoints")
    folder = tmp_path / "runs" / "toy"
    same = {"training.micro_batch": 4, "training.max_steps": 4}
    assert find_completed("toy", tmp_path / "runs", toy(same)) == folder
    assert find_completed("toy", tmp_path / "runs") == folder
    for key in ("seed", "training.micro_batch_slots", "optimizer.lr", "workload.noise"):
        with pytest.raises(BadInput, match=f"(?s)was completed with another configuration.*{key}"):
            find_completed("toy", tmp_path / "runs", toy({key: 2}))
