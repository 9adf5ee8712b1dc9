"""What a checkpoint restores, what it refuses, and which weights are best."""

import pytest
import torch

from lib import checkpoint
from lib.errors import TrainingFailed
from lib.report.metrics import read
from tests.training.test_loop import StopAfter, fit, newest


def test_best_weights_are_those_of_the_best_validation(toy, tmp_path):
    outcome = fit(toy({"training.max_steps": 40, "optimizer.lr": 0.05}), tmp_path / "run")
    rows = [r for r in read(tmp_path / "run" / "metrics.csv") if r["split"] == "validation"]
    best = min(rows, key=lambda r: float(r["loss"]))
    assert outcome.state.best == {"step": int(best["step"]), "metric": "loss", "value": float(best["loss"])}
    assert checkpoint.steps(tmp_path / "run" / "best") == [int(best["step"])]
    saved = checkpoint.load(checkpoint.path_of(tmp_path / "run" / "best", int(best["step"])))
    assert set(saved.tensors) == {"model"}


def test_weights_that_are_not_finite_never_replace_a_good_checkpoint(toy, tmp_path, monkeypatch):
    config = toy()
    fit(config, tmp_path / "run", StopAfter(5))
    good = newest(tmp_path / "run")
    step = torch.optim.AdamW.step

    def diverge(self, *rest):
        step(self, *rest)
        self.param_groups[0]["params"][0].data.fill_(float("inf"))

    monkeypatch.setattr(torch.optim.AdamW, "step", diverge)
    with pytest.raises(TrainingFailed, match="no longer finite at step 6.*the checkpoint before is kept"):
        fit(config, tmp_path / "run", resume=good)
    assert newest(tmp_path / "run").step == 5
