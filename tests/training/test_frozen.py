"""Fine-tuning with adapters: what is trained is kept by name, and what is frozen and published is left out."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lib import checkpoint
from lib.checkpoint import weights
from lib.errors import BadInput
from lib.training.precision import widen_on_cpu
from tests.conftest import ROOT
from tests.training.test_loop import same_tensors
from trainbook import launch
from trainbook.launch import ensemble

BASE = {"blocks.0.base.weight", "blocks.0.base.bias"}
TRAINED = {
    "blocks.0.down.weight": "float32 (2, 3)", "blocks.0.up.weight": "float32 (4, 2)",
    "blocks.2.weight": "float32 (1, 4)", "blocks.2.bias": "float32 (1,)",
}  # fmt: skip
LONG = {"training.max_steps": 6, "checkpoint.every_steps": 2, "training.evaluate_every_steps": 2}
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def lora(toy, tmp_path):
    """lora(**overrides) -> the configuration of adapters on a base that is read from a file."""
    torch.manual_seed(1)
    save_file(weights.of(nn.Linear(3, 4)), tmp_path / "base.safetensors")

    def make(overrides=None, task="Adapted"):
        given = {"task": f"{ROOT / 'tests' / 'adapters.py'}:{task}"}
        return toy(
            {
                **given,
                "workload.base": str(tmp_path / "base.safetensors"),
                **LONG,
                **(overrides or {}),
            }
        )

    return make


def newest(tmp_path, name="toy"):
    return checkpoint.load_newest(tmp_path / "runs" / name / "checkpoints")[0]


def same(one, other):
    groups = ("model", "optimizer")
    return all(same_tensors(one.tensors[group], other.tensors[group]) for group in groups)


def test_a_base_that_is_not_published_is_in_each_checkpoint_and_resuming_is_exact(
    lora, tmp_path, cut, monkeypatch
):
    """No file and no draw need give it again."""
    drawn = {"workload.base": "", "training.ema_decay": 0.5}
    cut(None)
    launch.train(lora({**drawn, "run.name": "whole"}))
    cut(3)
    launch.train(lora(drawn))
    cut(None)
    other = lambda self: nn.init.constant_(self.weight, 0.5)  # noqa: E731
    monkeypatch.setattr(
        nn.Linear, "reset_parameters", other
    )  # of a version of torch with another generator
    launch.train(lora(drawn))
    run = tmp_path / "runs" / "toy"
    saved = newest(tmp_path)
    assert saved.state["trained"] == TRAINED
    assert not saved.state["frozen"]
    assert saved.tensors["model"].keys() == TRAINED.keys() | BASE
    assert saved.tensors["ema"].keys() == TRAINED.keys()
    (best,) = (run / "best").iterdir()
    assert load_file(best / "model.safetensors").keys() == TRAINED.keys() | BASE
    assert same(saved, newest(tmp_path, "whole"))


def test_a_model_that_trains_something_else_is_not_resumed(lora, cut):
    cut(3)
    launch.train(lora())
    cut(None)
    with pytest.raises(
        BadInput, match=r"then blocks.0.down.weight .*, blocks.0.up.weight .*; now nothing more"
    ):
        launch.train(lora({"workload.wrong": "frozen", "run.accept_changes": True}))


def test_an_archive_predicts_in_an_empty_folder_with_the_base_that_it_holds(lora, tmp_path):
    config = lora(task="Exported")
    launch.train(config)
    archive = shutil.move(tmp_path / "runs" / "outputs.tar.gz", tmp_path / "there.tar.gz")
    shutil.rmtree(tmp_path / "runs")
    save_file({"weight": torch.zeros(4, 3), "bias": torch.zeros(4)}, tmp_path / "base.safetensors")
    _, (model,) = ensemble.load(Path(archive), config.task)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "there", filter="data")
    run = tmp_path / "there" / "toy"
    (best,) = (run / "best").iterdir()
    for name, value in load_file(best / "model.safetensors").items():
        assert torch.equal(model.get_parameter(name), value)
    assert (
        json.loads((run / "export" / "weights.txt").read_text()) == model(torch.ones(1, 3)).tolist()
    )


def test_frozen_matrices_lie_in_halves_and_adapters_stay_fp32(lora, tmp_path, cut):
    halves = {"training.frozen_precision": "bf16", "training.precision": "bf16"}
    cut(None)
    launch.train(lora({**halves, "run.name": "whole"}))
    cut(3)
    launch.train(lora(halves))
    cut(None)
    assert launch.train(lora(halves)).reason == "completed"
    saved = newest(tmp_path)
    assert saved.tensors["model"]["blocks.0.base.weight"].dtype is torch.bfloat16
    assert saved.tensors["model"]["blocks.0.base.bias"].dtype is torch.float32
    assert saved.state["trained"] == TRAINED
    assert same(saved, newest(tmp_path, "whole"))


def test_frozen_halves_of_a_file_are_computed_in_fp32_on_a_cpu_unless_the_run_says_otherwise():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).bfloat16()
    model.requires_grad_(False)
    cpu = torch.device("cpu")
    assert (
        widen_on_cpu(model, "bf16", cpu) == widen_on_cpu(model, "fp32", torch.device("meta")) == ""
    )
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    assert "Frozen weights in bf16 are computed in fp32" in widen_on_cpu(model, "fp32", cpu)
    floats = [value for value in model.state_dict().values() if value.is_floating_point()]
    assert {value.dtype for value in floats} == {torch.float32}
    assert widen_on_cpu(model, "fp32", cpu) == ""


def test_a_whole_model_in_halves_is_trained_tested_and_put_back_in_fp32(toy, tmp_path, cut):
    config = {
        "task": f"{ROOT / 'tests' / 'adapters.py'}:Halves",
        **LONG,
        "workload.batch_norm": True,
    }
    cut(None)
    launch.train(toy({**config, "optimizer.lr": 1e-5, "run.name": "slow"}))
    weight = newest(tmp_path, "slow").tensors["model"]["blocks.0.weight"]
    assert weight.dtype is torch.float32, "small updates count"
    assert not torch.equal(weight, weight.bfloat16().float()), "small updates count"
