"""What only a GPU can show; skipped where there is none. `make gpu` also compares plans."""

import pytest
import torch

from lib import checkpoint, launch
from lib.machine import platform
from lib.task import load_config
from tests.conftest import ROOT
from tests.training.test_loop import check_resume

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")


def test_a_deterministic_run_is_the_same_twice_to_the_bit(toy):
    ends = []
    for name in ("first", "second"):
        summary = launch.train(toy({"run.name": name, "training.deterministic": True, "device.processes": 1}))
        folder = platform.output_dir(toy().output_dir) / name / "checkpoints"
        ends.append(checkpoint.load(checkpoint.path_of(folder, summary.step)).tensors["model"])
    assert all(torch.equal(value, ends[1][key]) for key, value in ends[0].items())


@pytest.mark.parametrize("name", ["graphmer", "legal", "vqa", "glacier_pretrain", "chat"])
def test_a_deterministic_workload_in_fp16_stops_and_resumes_to_the_same_bits(name, tmp_path):
    changes = {
        "data.dir": "" if name in ("graphmer", "chat") else "embedded", "data.num_workers": 2, "device.processes": 1,
        "training.precision": "fp16", "training.deterministic": True, "training.max_steps": 12,
        "training.evaluate_every_steps": 4, "checkpoint.every_steps": 3, "checkpoint.every_minutes": 0,
    }  # fmt: skip
    if name == "chat":
        changes |= {"workload.generated": 400, "workload.validation_rows": 10, "workload.answer": 20}
    run = launch.prepare(load_config(ROOT / "configs" / f"{name}_small.yaml", changes))
    check_resume(run.config, tmp_path, 7)


def test_a_compiled_model_trains_and_its_checkpoint_has_the_plain_names(toy):
    launch.train(toy({"training.compile": True, "training.precision": "fp32", "device.processes": 1}))
    names = checkpoint.load_newest(platform.output_dir(toy().output_dir) / "toy" / "checkpoints")[0].tensors["model"]
    assert "blocks.0.weight" in names


@two_gpus
def test_two_gpus_end_where_one_does(toy):
    options = {"training.micro_batch_slots": 2, "training.precision": "fp32", "training.deterministic": True}
    one = launch.train(toy({**options, "run.name": "one", "device.processes": 1}))
    two = launch.train(toy({**options, "run.name": "two"}))
    assert (one["world_size"], two["world_size"]) == (1, 2)
    base = platform.output_dir(toy().output_dir)
    a, b = (checkpoint.load_newest(base / name / "checkpoints")[0].tensors["model"] for name in ("one", "two"))
    for key, value in a.items():
        torch.testing.assert_close(b[key], value, rtol=1e-5, atol=1e-6)
