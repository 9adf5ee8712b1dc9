"""What to expect from N ranks: computed from a measured step and measured all-reduces, and checked against two ranks.

    python -m tests.bench.bench_nodes

Measured: the seconds of a step of one rank on its own slot, the seconds of `ranks.add_up` between two ranks for several
sizes (over nccl where there are two GPUs, else over gloo between CPU processes), and a step of two ranks. Computed: a
ring's all-reduce takes 2 (N - 1) messages, each of 1/N of the gradient (Patarasuk and Yuan, J. Parallel Distrib.
Comput. 69, 2009), so (N - 1) * a + 2 (N - 1) / N * bytes / bandwidth, where a is what an empty one of two ranks takes.
Nothing is assumed to overlap: gradients are summed after the backward pass. The computed figures hold for links as fast
as the measured one; between machines run it there, under their torchrun, with --rank FILE. Figures go to
records/nodes.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lib import ranks
from lib.config import Config, Data, Device, Training
from lib.config.reader import option
from lib.machine import memory
from lib.ranks.sums import add_up
from lib.report.meter import Meter
from lib.task import Task
from lib.training import data
from lib.training.order import Order
from lib.training.state import new_state
from lib.training.step import optimizer_step
from tests.bench.record import head, publish
from tests.conftest import ROOT

MIB = 2**20
SIZES = (1, 4, 16, 64)  # MiB of gradients
RANKS = (1, 2, 4, 8, 16, 32, 64)
STEPS, TURNS = 12, 3


@dataclass(frozen=True)
class Settings:
    width: int = option(768, "Width.")
    layers: int = option(4, "Layers.")
    tokens: int = option(128, "Length of a sample.")


class Block(nn.Module):
    """A transformer's layer without attention: the matrix products that decide a step."""

    def __init__(self, width):
        super().__init__()
        wide = 4 * width
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x):
        return x + self.layers(x)


class Encoder(Task):
    """Blocks over random numbers."""

    Settings = Settings

    def model(self):
        return nn.Sequential(*(Block(self.config.workload.width) for _ in range(self.config.workload.layers)))

    def datasets(self):
        return {"train": range(1024), "validation": range(1), "test": range(1)}

    def collate(self, samples, generator):
        settings = self.config.workload
        return {"x": torch.randn(len(samples), settings.tokens, settings.width, generator=generator)}

    def count(self, batch):
        return {"squared": batch["x"].shape[0]}

    def loss(self, model, batch):
        return {"squared": model(batch["x"]).square().mean((1, 2)).sum()}, {}


def config_of(slots: int, slot: int = 8) -> Config:
    return Config(
        task="bench",
        training=Training(max_steps=STEPS, effective_batch=slots * slot, micro_batch_slots=slots),
        data=Data(num_workers=0),
        workload=Settings(),
    )


def step_seconds(slots: int) -> float:
    """The median of whole optimizer steps on this rank's slots, the first ones left out."""
    config = config_of(slots)
    task = Encoder(config)
    state = new_state(task, config)
    order = Order(1024, 0, config.training.effective_batch, slots)
    meter = Meter({}, state.device)
    seconds = []
    for step, mine in data.train_batches(task, range(1024), order, range(STEPS), config.data):
        ranks.highest(0)  # all begin together
        begin = time.perf_counter()
        optimizer_step(state, task, config, mine, step, order, meter)
        seconds.append(time.perf_counter() - begin)  # it ends with a wait for the device
    return statistics.median(seconds[2:])


def all_reduce_seconds(size: int) -> float:
    """The best of some sums over the ranks of so many bytes, in tensors as large as a layer's."""
    parts = [torch.ones(MIB // 4, device=memory.device()) for _ in range(size // MIB)]
    seconds = []
    for _ in range(8):
        ranks.highest(0)
        begin = time.perf_counter()
        add_up(parts)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(ranks.highest(*seconds))


def on_a_rank(out: Path) -> None:
    ranks.start(Device())
    sums = {str(size): min(all_reduce_seconds(size * MIB) for _ in range(TURNS)) for size in SIZES}
    steps = [step_seconds(ranks.world()) for _ in range(TURNS)]
    if ranks.is_first():
        out.write_text(json.dumps({"all_reduce": sums, "step": statistics.median(steps), "world": ranks.world()}))
    ranks.end()


def computed(compute: float, gradient: int, fixed: float, bandwidth: float) -> dict[str, dict]:
    """For each number of ranks: seconds of the all-reduce, and samples a second as a multiple of one rank's."""
    rows = {}
    for n in RANKS:
        reduce = 0.0 if n == 1 else (n - 1) * fixed + 2 * (n - 1) / n * gradient / bandwidth
        rows[str(n)] = {
            "all_reduce_seconds": round(reduce, 4),
            "times_one_rank_same_slot": round(n * compute / (compute + reduce), 2),  # the effective batch grows with n
            "times_one_rank_same_effective_batch_of_64_slots": round(64 * compute / (64 / n * compute + reduce), 2),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=Path, help="what torchrun starts: measure, and write to this file")
    out = parser.parse_args().rank
    if out:
        on_a_rank(out)
        return
    torch.set_num_threads(1)
    load = round(os.getloadavg()[0], 2)
    alone = statistics.median(step_seconds(1) for _ in range(TURNS))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "two.json"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
        launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
        program = ["-m", "tests.bench.bench_nodes", "--rank", str(out)]
        subprocess.run([sys.executable, *launcher, *program], cwd=ROOT, env=environment, check=True)
        two = json.loads(out.read_text())
    sizes = np.array([size * MIB for size in SIZES], dtype=float)
    slope, fixed = np.polyfit(sizes, [two["all_reduce"][str(size)] for size in SIZES], 1)
    fixed = max(0.0, float(fixed))
    model = Encoder(config_of(1)).model()
    gradient = sum(p.numel() for p in model.parameters()) * 4
    expected = alone + fixed + gradient * slope
    record = {
        **head("torch", device=torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, a thread a rank"),
        "load_average_before": load,
        "gradient_bytes": gradient,
        "measured": {
            "step_of_one_rank_seconds": round(alone, 4),
            "all_reduce_of_two_ranks_seconds_by_mib": {k: round(v, 5) for k, v in two["all_reduce"].items()},
            "step_of_two_ranks_seconds": round(two["step"], 4),
        },
        "computed": {
            "latency_of_an_all_reduce_of_two_seconds": round(fixed, 6),
            "bandwidth_bytes_per_second": round(1 / float(slope)),
            "step_of_two_ranks_seconds": round(expected, 4),
            "computed_over_measured": round(expected / two["step"], 3),
            "by_ranks, from these measurements and not measured": computed(alone, gradient, fixed, 1 / float(slope)),
        },
    }  # fmt: skip
    publish("nodes", record)


if __name__ == "__main__":
    main()
