"""GraphMER at 12 layers of width 768 on this machine's GPU: speed, utilisation, memory, and waiting for data.

    python -m tests.gpu.bench_graphmer [--set training.micro_batch=32 ...]

It trains configs/graphmer.yaml (64 samples of up to 104 positions a step) through the trainer as it ships, reading the
standard library of the running Python. Model FLOPs are counted by torch over one forward and backward pass of the same
batches, recomputation left out; the card's rate is that of its own matrix product of 8192 x 8192 in the same precision.
Figures go to tests/bench/records/gpu_<card>.json.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from lib import launch
from lib.machine import memory
from lib.report.metrics import read
from lib.report.progress import Plain
from lib.task import load_config
from lib.training import data, loop
from lib.training.order import Order
from lib.training.precision import Precision, autocast
from lib.training.session import Session
from tests.bench.record import head, publish
from tests.conftest import ROOT
from workloads.graphmer import settings

STEPS, LOG_EVERY, WARM_ROWS = 120, 10, 3
GOALS = {"model_flop_utilisation": 0.45, "data_wait_share": 0.02}  # at least, at most


def matmul_tflops(precision: Precision, device: torch.device, size: int = 8192, seconds: float = 3.0) -> float:
    """What the card sustains in a product of two matrices for some seconds: a T4 slows down at its power limit."""
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        a @ b
        torch.cuda.synchronize()
        count += 1
    return 2 * size**3 * count / (time.perf_counter() - begin) / 1e12


def work(run: launch.Run, outcome: loop.Outcome, steps: range) -> tuple[float, float]:
    """Model FLOPs and positions that are no padding, of a step, over some of the steps that were timed."""
    config, task, state = run.config, run.task, outcome.state
    train_set = task.datasets()["train"]
    training = config.training
    order = Order(len(train_set), config.seed, training.effective_batch, training.micro_batch_slots)
    flops, positions = [], []
    for _, slots in data.train_batches(task, train_set, order, steps, config.data):
        counter = FlopCounterMode(display=False)
        with counter:
            for slot in slots:
                for micro in data.micro_batches(slot, state.micro_batch):
                    with autocast(state.precision, state.device):
                        sums, _ = task.loss(state.model, data.to_device(micro, state.device))
                    sum(sums.values()).backward()
        flops.append(counter.get_total_flops())
        pads = {"roots": settings.PAD, "gold": settings.IGNORE}
        positions.append(sum(int((slot[key] != pad).sum()) for slot in slots for key, pad in pads.items()))
        state.model.zero_grad()
    return statistics.mean(flops), statistics.mean(positions)


def measure(overrides: dict[str, object]) -> dict:
    fixed = {"training.max_steps": STEPS, "training.log_every_steps": LOG_EVERY, "training.evaluate_every_steps": 0,
             "workload.packages": []}  # fmt: skip
    config = load_config(ROOT / "configs" / "graphmer.yaml", {**fixed, **overrides, "checkpoint.keep_last": 0})
    run = launch.prepare(config)
    with tempfile.TemporaryDirectory() as folder:
        outcome = loop.train(run.task, run.config, Path(folder), Session(None, 0, 0), Plain())
        rows = [row for row in read(Path(folder) / "metrics.csv") if row["split"] == "train"][WARM_ROWS:]
    batch = config.training.effective_batch
    steps_per_second = statistics.median(float(row["samples_per_second"]) / batch for row in rows)
    flops, positions = work(run, outcome, range(STEPS, STEPS + 5))
    rate = matmul_tflops(outcome.state.precision, outcome.state.device)
    return {
        "precision": outcome.state.precision,
        "micro_batch": outcome.state.micro_batch,
        "steps_per_second": round(steps_per_second, 4),
        "tokens_per_second_without_padding": round(steps_per_second * positions),
        "model_tflop_a_step": round(flops / 1e12, 3),
        "measured_matmul_tflops": round(rate, 1),
        "model_flop_utilisation": round(steps_per_second * flops / 1e12 / rate, 4),
        "peak_memory_gib": round(outcome.peak_bytes / memory.GIB, 3),
        "data_wait_share": round(max(float(row["data_wait_share"]) for row in rows), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    overrides = dict(pair.split("=", 1) for pair in parser.parse_args().set)
    name = torch.cuda.get_device_name()
    figures = {"graphmer, 12 x 768, 64 samples of up to 104 positions": measure(overrides)}
    record = {**head("torch", gpu=name, cuda=torch.version.cuda), "overrides": overrides, "goals": GOALS, **figures}
    publish(f"gpu_{name.lower().replace(' ', '_')}", record)


if __name__ == "__main__":
    main()
