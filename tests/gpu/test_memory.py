"""Predicted against measured memory on the GPU that is there: 12 configurations of the Kaggle-size encoder.

    python -m pytest tests/gpu

The record goes to tests/bench/records/planner_gpu.json, with card, driver and versions.
"""

import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lib import planner
from lib.machine import hardware
from lib.planner import search
from lib.planner.card import card_of_gpu, find_card
from lib.task import load_config
from tests.bench.record import head, publish
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

CONFIGS = list(itertools.product(("fp32", "fp16", "bf16"), (0, "all"), (4, 16)))

# A process of its own for each: a fresh allocator, and what it leaves behind ends with it.
STEPS = """
import json, sys, torch
from lib.report.meter import Meter
from lib.task import find_task, load_config
from lib.training.order import Order
from lib.training.state import new_state
from lib.training.step import optimizer_step
config = load_config(sys.argv[1], json.loads(sys.argv[2]))
task = find_task(config.task)(config)
state = new_state(task, config)
batch = task.example_batch(config.training.micro_batch, torch.device("cpu"))
order = Order(1000, 0, config.training.effective_batch, config.training.micro_batch_slots)
for step in range(3):
    optimizer_step(state, task, config, [batch, batch], step, order, Meter({}, state.device))
print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), state.micro_batch]))
"""


def overrides(precision, recomputed, micro_batch):
    return {
        "training.precision": precision, "training.gradient_checkpointing": recomputed,
        "training.micro_batch": micro_batch, "training.effective_batch": 2 * micro_batch,
        "training.micro_batch_slots": 2, "workload.packages": [],
    }  # fmt: skip


def measured(changes):
    path = str(ROOT / "configs" / "graphmer.yaml")
    command = [sys.executable, "-c", STEPS, path, json.dumps(changes)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_predictions_are_what_the_card_says():
    target, rows = card_of_gpu(0), []
    for precision, recomputed, micro_batch in CONFIGS:
        if precision == "bf16" and target.card.capability < (8, 0):
            continue
        changes = overrides(precision, recomputed, micro_batch)
        config = load_config(ROOT / "configs" / "graphmer.yaml", changes)
        plan = planner.plan(config, target, 1)
        option = plan.option_of(micro_batch, plan.layers if recomputed == "all" else recomputed)
        allocated, reserved, used = measured(changes)
        assert used == micro_batch, "memory ran out where it was predicted to fit"
        error = option.prediction.peak_bytes / allocated - 1
        rows.append({**changes, "predicted": option.prediction.peak_bytes, "allocated": allocated, "error": error}
                    | {"predicted_reserved": option.prediction.reserved_bytes, "reserved": reserved})  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    errors = [abs(row["error"]) for row in rows]
    figures = {"median_error": statistics.median(errors), "worst_error": max(errors), "rows": rows}
    publish("planner_gpu", {**head("torch", gpu=torch.cuda.get_device_name(0), driver=hardware.driver()), **figures})
    assert statistics.median(errors) <= 0.02 and max(errors) <= 0.06


@pytest.mark.parametrize("gib", [2.5, 4, 6, 8])
def test_a_recommended_plan_never_runs_out(gib, monkeypatch):
    """On a card that torch is told to be smaller."""
    total = torch.cuda.get_device_properties(0).total_memory
    if gib * 2**30 > total:
        pytest.skip("the card is smaller")
    capability = ".".join(map(str, card_of_gpu(0).card.capability))
    target = find_card(f"{gib} GiB, capability {capability}")
    config = load_config(ROOT / "configs" / "graphmer.yaml", {"training.micro_batch": 0, "workload.packages": []})
    plan = search.make(config, target, 1)
    changes = {**plan.overrides, "training.effective_batch": 2 * plan.chosen.micro_batch, "workload.packages": []}
    limited = f"import torch; torch.cuda.set_per_process_memory_fraction({target.usable_bytes / total})\n{STEPS}"
    command = [sys.executable, "-c", limited, str(ROOT / "configs" / "graphmer.yaml"), json.dumps(changes)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(ROOT), check=True)
    assert json.loads(done.stdout.splitlines()[-1])[2] == plan.chosen.micro_batch
