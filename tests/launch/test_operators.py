"""What a GPU refuses under deterministic algorithms, or waits for, is named without one."""

import pytest
import torch
import transformers
from torch.nn import functional as F

from lib import launch
from lib.launch import gpu
from tests.launch.test_fp16 import FEW, small
from tests.toy import Toy


def spread(y):
    return y.mean() * torch.ones(1, 2, 4, 4, device=y.device)


PLANTED = {
    "nll_loss2d_forward": lambda y: F.cross_entropy(spread(y), torch.zeros(1, 4, 4, dtype=torch.long, device=y.device)),
    "upsample_bilinear2d_backward": lambda y: F.interpolate(spread(y), scale_factor=2, mode="bilinear").sum(),
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
    finding = gpu.examine_operators(task(toy()), config := toy({"training.deterministic": True}))
    waits = name in ("x[mask]", "_local_scalar_dense")
    assert finding.verdict == ("warning" if waits else "bad") and name in finding.value
    assert gpu.examine_operators(Planted(config), config).verdict == "ok"


def one_hot(y):
    return F.one_hot(torch.arange(3), 4).float().mean() * y.mean()


def test_what_a_cpu_alone_looks_at_is_no_wait(toy):
    task = type("Own", (Planted,), {"planted": staticmethod(one_hot)})
    assert not gpu.operators_of_step(task(toy()), toy())["_local_scalar_dense"]


def test_kernels_are_counted_with_what_they_take_a_cpu_to_launch(toy):
    task = type("Own", (Planted,), {"planted": staticmethod(lambda y: y.T.T.view(-1).sum())})  # views are no kernels
    few, many = gpu.operators_of_step(task(toy()), toy()).total(), 40
    task.planted = staticmethod(lambda y: sum((y + k).sum() for k in range(many)))
    counts = gpu.operators_of_step(task(toy()), toy())
    assert counts["sum"] >= many and counts.total() > few + 2 * many
    value = gpu.examine_operators(task(toy()), toy()).value
    milliseconds = f"{0.015 * counts.total():.0f} to {0.034 * counts.total():.0f} ms"
    assert f"{counts.total():,} kernels" in value and milliseconds in value


# of transformers: whether rows are packed; of 5.0 alone, whether a mask of T5 is full
LOOKS = {"chat": 1} | ({"vqa": 2} if transformers.__version__.startswith("5.0.") else {})


@pytest.mark.parametrize("name", [*FEW, "graphmer", "chat"])
def test_a_gpu_refuses_no_operator_of_the_workloads_and_their_losses_wait_for_it_once(name, tmp_path):
    few = {"workload.generated": 100} if name == "chat" else {}
    run = launch.prepare(small(name, tmp_path, **few, **{"training.deterministic": True}))
    assert gpu.examine_operators(run.task, run.config).verdict == "ok"
    counts = gpu.operators_of_step(run.task, run.config)
    assert counts["x[mask]"] + counts["nonzero"] <= 1 and counts["_local_scalar_dense"] == LOOKS.get(name, 0)
