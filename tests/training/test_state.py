"""What a checkpoint restores, what it refuses, and which weights are best."""

import pytest
import torch

from lib import checkpoint
from lib.checkpoint import weights
from lib.errors import BadInput, TrainingFailed
from lib.report.metrics import read
from lib.task import load_task
from lib.training.state import new_state
from tests.training.test_loop import StopAfter, fit, newest


def test_best_weights_are_those_of_the_best_validation(toy, tmp_path):
    outcome = fit(toy({"training.max_steps": 40, "optimizer.lr": 0.05}), tmp_path / "run")
    rows = [r for r in read(tmp_path / "run" / "metrics.csv") if r["split"] == "validation"]
    best = min(rows, key=lambda r: float(r["loss"]))
    assert outcome.state.best == {"step": int(best["step"]), "metric": "loss", "value": float(best["loss"])}
    assert checkpoint.steps(tmp_path / "run" / "best") == [int(best["step"])]
    saved = checkpoint.load(checkpoint.path_of(tmp_path / "run" / "best", int(best["step"])))
    assert set(saved.tensors) == {"model"}


def test_weights_of_another_shape_are_refused_with_what_differs(toy, tmp_path):
    config = toy()
    state = new_state(load_task(config), config)
    tensors = {name: value.clone() for name, value in weights.of(state.model).items()}
    tensors["blocks.0.weight"] = torch.zeros(5, 3)
    with pytest.raises(BadInput, match="1 of 4 tensors are missing or of another shape.*blocks.0.weight"):
        weights.put_back(state.model, tensors)


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
