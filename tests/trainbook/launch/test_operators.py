"""What a GPU refuses under deterministic algorithms, or waits for, is named without one."""

import pytest
import torch
import transformers
from torch.nn import functional as F

from lib.planner import fp16
from lib.task import load_config
from tests.conftest import ROOT
from tests.toy import Toy
from tests.workloads.graphmer.conftest import write_tree
from trainbook import launch


def spread(y):
    return y.mean() * torch.ones(1, 2, 4, 4, device=y.device)


PLANTED = {
    "upsample_bilinear2d_backward": lambda y: F.interpolate(
        spread(y), scale_factor=2, mode="bilinear"
    ).sum(),
    "cumsum": lambda y: y.cumsum(0).sum(),
    "x[mask]": lambda y: sum(y[y > bound].sum() for bound in range(-9, -5)),
    "_local_scalar_dense": lambda y: y.sum() * sum(float(y.detach().mean()) for _ in range(4)),
}


class Planted(Toy):
    planted = staticmethod(lambda y: y.sum())

    def loss(self, model, batch):
        return {"squared": self.planted(model(batch["x"]))}, {}


@pytest.mark.parametrize("name", PLANTED)
def test_an_operator_that_a_gpu_refuses_or_waits_for_is_named(name, toy):
    task = type("Own", (Planted,), {"planted": staticmethod(PLANTED[name])})
    finding = fp16.examine_operators(task(toy()), config := toy({"training.deterministic": True}))
    waits = name in ("x[mask]", "_local_scalar_dense")
    assert finding.verdict == ("warning" if waits else "bad")
    assert name in finding.value
    assert fp16.examine_operators(Planted(config), config).verdict == "ok"


# of the generated data
FEW = {
    "legal": {
        "workload.generator.documents": 12, "workload.generator.sentences": 20, "workload.split.validation": 0.3,
    },
    "vqa": {"workload.generator.pictures": 24, "workload.generator.questions": 2},
    "glacier_pretrain": {"workload.generator.scenes": 6, "workload.generator.size": 256},
    "chat": {"workload.generated": 100},
}  # fmt: skip
# of transformers: whether rows are packed; of 5.0 alone, whether a mask of T5 is full
LOOKS = {"chat": 1} | ({"vqa": 2} if transformers.__version__.startswith("5.0.") else {})


@pytest.mark.parametrize("name", [*FEW, "graphmer"])
def test_a_small_workload_holds_in_fp16_and_a_gpu_refuses_no_operator(name, tmp_path):
    path = ROOT / "configs" / f"{name}_small.yaml"
    changes = {"data.dir": "embedded", **FEW.get(name, {})}
    if name == "graphmer":
        write_tree(tmp_path)
        path = tmp_path / "graphmer.yaml"
        changes = {"data.dir": str(tmp_path / "tree"), "workload.objective.mlm_steps": 1}
    if name == "chat":
        del changes["data.dir"]
    run = launch.prepare(
        load_config(path, {"output_dir": "runs", "training.deterministic": True, **changes})
    )
    assert fp16.examine_operators(run.task, run.config).verdict == "ok"
    counts = fp16.operators_of_step(run.task, run.config)
    assert counts["x[mask]"] + counts["nonzero"] <= 1
    assert counts["_local_scalar_dense"] == LOOKS.get(name, 0)
    if name != "chat":
        checked = fp16.examine_fp16(run.task, run.config)
        assert checked.finding.verdict == "ok", checked.finding
        assert checked.scale >= 4_096, checked.finding
