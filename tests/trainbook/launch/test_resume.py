"""The checkpoint that a run resumes from: damaged ones are set aside, and a run never starts from 0 in silence."""

import os
import shutil

import pytest
import torch

from lib import checkpoint
from lib.errors import BadInput, OutOfMemory
from lib.report.metrics import read
from lib.task import load_task
from lib.training import identity, optimization
from lib.training.summary import Summary
from trainbook import launch
from trainbook.launch.queue import find_completed

pytestmark = pytest.mark.usefixtures("quick")


def test_a_run_whose_every_checkpoint_is_damaged_never_starts_from_0_in_silence(toy, tmp_path):
    launch.train(toy())
    folder = tmp_path / "runs" / "toy" / "checkpoints"
    for step in checkpoint.steps(folder):
        (checkpoint.path_of(folder, step) / "manifest.json").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(
            BadInput, match=r"(?s)step-00000012 is damaged.*step-00000009 is damaged.*run\.name"
        ):
            launch.train(toy({"training.max_steps": 15}))
    assert checkpoint.steps(folder) == [9, 12]


def test_metrics_and_events_come_along_from_elsewhere_and_replace_those_of_a_killed_start(
    toy, tmp_path, cut
):
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
    assert (tmp_path / "runs" / "toy" / "events.csv").read_bytes() == (
        whole / "toy" / "events.csv"
    ).read_bytes()


def test_links_and_pipes_do_not_come_along_from_elsewhere(toy, tmp_path, cut):
    """TensorBoard would write its files through them."""
    cut(3)
    launch.train(toy())
    (tmp_path / "runs").rename(tmp_path / "earlier")
    tracking = tmp_path / "earlier" / "toy" / "tracking"
    tracking.mkdir(parents=True)
    (tracking / "ids").write_text("plain")
    (tracking / "tensorboard").symlink_to(tmp_path)
    os.mkfifo(tracking / "pipe")
    cut(None)
    launch.train(toy({"run.resume_from": str(tmp_path / "earlier")}))
    assert [path.name for path in (tmp_path / "runs" / "toy" / "tracking").iterdir()] == ["ids"]


def test_an_interrupted_run_is_completed_and_tested_where_it_is_if_that_is_its_length(toy, cut):
    cut(7)
    assert launch.train(toy()).reason == "deadline"
    cut(None)
    summary = launch.train(toy({"training.max_steps": 7}))
    assert summary.reason == "completed"
    assert summary.step == 7
    assert summary.metrics


def test_a_queue_takes_no_completed_run_of_other_settings_for_its_own(toy, tmp_path):
    launch.train(toy({"training.max_steps": 4}))
    shutil.rmtree(tmp_path / "runs" / "toy" / "checkpoints")
    folder = tmp_path / "runs" / "toy"
    same = {"training.micro_batch": 4, "training.max_steps": 4}
    assert find_completed("toy", tmp_path / "runs", toy(same)) == folder
    assert find_completed("toy", tmp_path / "runs") == folder
    for key in ("seed", "workload.noise"):
        with pytest.raises(BadInput, match=f"(?s)was completed with another configuration.*{key}"):
            find_completed("toy", tmp_path / "runs", toy({key: 2}))


@pytest.fixture
def full(monkeypatch):
    """full(3, 4): the third and fourth call of AdamW.step raise after their work."""
    original = torch.optim.AdamW.step
    calls = []

    def at(*numbers):
        def step(self, closure=None):
            calls.append(self)
            original(self, closure)
            if len(calls) in numbers:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

        monkeypatch.setattr(torch.optim.AdamW, "step", step)

    return at


def test_without_progress_a_run_ends_after_three_attempts_and_the_next_start_keeps_the_size(
    toy, tmp_path, full
):
    full(1, 2, 3)
    config = toy({"training.effective_batch": 16, "training.log_every_steps": 1})
    with pytest.raises(OutOfMemory, match="Set training.micro_batch to 2 and run again"):
        launch.train(config)
    failed = Summary.read(tmp_path / "runs" / "toy")
    assert failed.reason == "failed"
    assert failed.limit["samples"] == 2
    assert launch.train(config).micro_batch == 2
    assert {row["micro_batch"] for row in read(tmp_path / "runs" / "toy" / "metrics.csv")} == {
        "2",
        "",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"training.max_steps": 12},
            "from 0.00067 (step 6, cosine over 6 steps) to 0.005 (step 7, cosine over 12)",
        ),
        (
            {"training.max_steps": 12, "scheduler.name": "linear"},
            "cosine over 6 steps) to 0.005 (step 7, linear over",
        ),
        ({"training.max_steps": 12, "scheduler.name": "plateau"}, ""),
        ({"training.max_steps": 6}, ""),
    ],
)
def test_a_run_made_longer_says_the_rates_before_and_after_the_seam(toy, changes, words):
    options = {"scheduler.name": "cosine", "scheduler.warmup_steps": 0, "training.max_steps": 6}
    saved = identity.facts(toy(options), load_task(toy(options)))
    text = optimization.seam(saved, toy({**options, **changes}), 6)
    assert words in text
    assert bool(text) == bool(words)
    constant = {**options, "scheduler.name": "constant"}
    facts = identity.facts(toy(constant), load_task(toy(constant)))
    assert not optimization.seam(facts, toy({**constant, "training.max_steps": 12}), 6)
    assert not optimization.seam(
        {**saved, "training.max_steps": "x"}, toy({**options, **changes}), 6
    ), "damaged"
