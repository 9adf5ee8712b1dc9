"""A run that overflows where a step cannot be repeated goes on from its newest checkpoint, and the next start knows."""

import shutil
from pathlib import Path

import pytest
import torch

from lib import checkpoint, launch
from lib.errors import OutOfMemory
from lib.machine import inputs
from lib.report.metrics import read
from lib.report.summary import Summary


@pytest.fixture
def full(monkeypatch):
    """full(3, 4): the third and fourth call of AdamW.step raise after their work."""
    original, calls = torch.optim.AdamW.step, []
    monkeypatch.setattr(launch, "plot", lambda *_: None)

    def at(*numbers):
        def step(self, closure=None):
            calls.append(self)
            original(self, closure)
            if len(calls) in numbers:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

        monkeypatch.setattr(torch.optim.AdamW, "step", step)

    return at


def tensors(folder):
    saved = checkpoint.load_newest(folder / "checkpoints")[0]
    return {f"{group}/{name}": value for group, named in saved.tensors.items() for name, value in named.items()}


@pytest.mark.parametrize(("at", "again"), [(1, "the first step"), (5, "step 3")])
def test_a_run_that_ran_out_after_an_update_ends_in_the_weights_of_the_others(toy, tmp_path, full, capsys, at, again):
    launch.train(toy({"run.name": "whole"}))
    full(at)
    summary = launch.train(toy())
    assert (summary.reason, summary.micro_batch) == ("completed", 4)
    assert f"Training starts again from {again} in micro-batches of 4." in capsys.readouterr().out
    assert "oom_restart,8,4" in (tmp_path / "runs" / "toy" / "events.csv").read_text()
    ours, whole = (tensors(tmp_path / "runs" / name) for name in ("toy", "whole"))
    assert all(torch.allclose(ours[name], value, rtol=1e-3, atol=1e-5) for name, value in whole.items())
    assert [row["step"] for row in read(tmp_path / "runs" / "toy" / "metrics.csv")] == ["4", "5", "8", "10", "12", "12"]


def test_without_progress_a_run_ends_after_three_attempts_and_the_next_start_keeps_the_size(toy, tmp_path, full):
    full(1, 2, 3)
    config = toy({"training.effective_batch": 16, "training.log_every_steps": 1})
    with pytest.raises(OutOfMemory, match="Set training.micro_batch to 2 and run again"):
        launch.train(config)
    failed = Summary.read(tmp_path / "runs" / "toy")
    assert (failed.reason, failed.limit["samples"]) == ("failed", 2)
    assert launch.train(config).micro_batch == 2
    assert {row["micro_batch"] for row in read(tmp_path / "runs" / "toy" / "metrics.csv")} == {"2", ""}


LIMIT = {"samples": 2, "micro_batch": 0, "gradient_checkpointing": 0}


def test_the_size_is_not_kept_for_a_run_that_asks_for_another_micro_batch_or_recomputation(toy, tmp_path, full):
    full()
    for asked in ({"micro_batch": 4}, {"gradient_checkpointing": 1}):
        folder = tmp_path / "runs" / "toy"
        folder.mkdir(parents=True, exist_ok=True)
        Summary("toy", "toy", "failed", limit={**LIMIT, **asked}).write(folder)
        assert launch.train(toy()).micro_batch == 8
        shutil.rmtree(folder)


def test_the_size_is_kept_where_the_failed_session_is_an_input_without_a_checkpoint(toy, tmp_path, full, monkeypatch):
    Path("earlier/toy").mkdir(parents=True)
    Summary("toy", "toy", "failed", limit=LIMIT).write(Path("earlier/toy"))
    monkeypatch.setattr(inputs, "earlier_runs", lambda name, here: [Path("earlier") / name])
    full()
    assert launch.train(toy()).micro_batch == 2
