"""Trained models out of an archive, a run's folder or a folder of runs."""

import pytest
import torch

from lib import checkpoint
from lib.checkpoint import weights
from lib.errors import BadInput
from lib.task import find_task
from lib.training.summary import Summary
from tests.conftest import ROOT
from trainbook import launch
from trainbook.launch.ensemble import load

OWN = f"{ROOT / 'tests' / 'toy.py'}:Toy"

pytestmark = pytest.mark.usefixtures("quick")


def test_the_best_weights_come_from_wherever_the_run_is_packed(toy, tmp_path):
    summary = launch.train(toy({"training.evaluate_every_steps": 4, "optimizer.lr": 0.05}))
    best = checkpoint.load(
        checkpoint.path_of(tmp_path / "runs" / "toy" / "best", summary.best["step"])
    )
    for place in ("outputs.tar.gz", "toy", "."):
        task, models = load(tmp_path / "runs" / place, OWN, "toy")
        assert task.config.run.name == "toy"
        assert len(models) == 1
        assert not models[0].training
        assert all(
            torch.equal(value, best.tensors["model"][name])
            for name, value in weights.of(models[0]).items()
        )


def test_runs_whose_inputs_have_different_forms_are_not_put_together(toy, tmp_path, monkeypatch):
    for seed, noise in ((1, 0.1), (2, 0.5)):
        launch.train(
            toy({"run.name": f"toy-seed{seed}", "queue.seeds": [1, 2], "workload.noise": noise})
        )
    assert len(load(tmp_path / "runs", OWN)[1]) == 2

    def wide(self, size, device):
        return {"x": torch.zeros(size, 3 + (self.config.workload.noise > 0.1))}

    monkeypatch.setattr(find_task(OWN), "example_batch", wide)
    with pytest.raises(BadInput, match="cannot vote together with"):
        load(tmp_path / "runs", OWN)


def test_several_runs_predict_together_only_where_one_queue_or_one_vote_made_them(toy, tmp_path):
    for seed in (1, 2):
        launch.train(toy({"run.name": f"good-seed{seed}", "queue.seeds": [1, 2], "seed": seed}))
    assert len(load(tmp_path / "runs", OWN)[1]) == 2
    launch.train(toy({"run.name": "probe"}))
    with pytest.raises(
        BadInput,
        match=r"2 experiments: good-seed1, good-seed2, probe. Choose by --run NAME: good, pr",
    ):
        load(tmp_path / "runs", OWN)
    for name, size in (("good", 2), ("good-seed2", 1), ("probe", 1)):
        assert len(load(tmp_path / "runs", OWN, name)[1]) == size
    (tmp_path / "runs" / "vote").mkdir()
    Summary("vote", "toy", "completed", members=["good-seed1", "good-seed2", "probe"]).write(
        tmp_path / "runs" / "vote"
    )
    assert len(load(tmp_path / "runs", OWN)[1]) == 3
