"""Plans of the small configurations beside what this machine's GPU does: speed, peak, reserved, what the driver shows.

    python -m tests.gpu.bench_plans

Figures go to tests/bench/records/gpu_plans_<card>.json.
"""

import json

import torch

from lib import launch
from lib.launch import smoke
from lib.machine import memory
from lib.task import load_config
from tests.bench.record import RECORDS, head, write
from tests.conftest import ROOT

CONFIGS = ("graphmer_small", "glacier_pretrain_small", "glacier_finetune_small", "legal_small")
GOAL = {"speed_within": 1.3, "peak_within": 0.06}


def compare(run: launch.Run) -> dict[str, float]:
    """Trains the smoke test's steps and returns them beside the prediction."""
    outcome = smoke.few_steps(run)
    option = run.predicted
    fast, slow = (1 / seconds for seconds in option.step_seconds)
    return {
        "steps_per_second": outcome.steps_per_second, "predicted": 1 / option.expected_seconds,
        "from": slow, "to": fast, "peak_bytes": outcome.peak_bytes,
        "predicted_peak_bytes": option.prediction.peak_bytes,
        "predicted_reserved_bytes": option.prediction.reserved_bytes,
        "predicted_driver_bytes": option.prediction.driver_bytes[0],
        "predicted_most_driver_bytes": option.prediction.driver_bytes[1],
    }  # fmt: skip


def main() -> None:
    rows = {}
    for name in CONFIGS:
        torch.cuda.reset_peak_memory_stats()
        run = launch.prepare(load_config(ROOT / "configs" / f"{name}.yaml", {"device.processes": 1}))
        rows[name] = compare(run) | {"reserved_bytes": torch.cuda.max_memory_reserved()}
        print(json.dumps({name: rows[name]}), flush=True)
        memory.clear_memory()
    card = torch.cuda.get_device_name()
    path = RECORDS / f"gpu_plans_{card.lower().replace(' ', '_')}.json"
    write(path, {**head("torch", gpu=card, cuda=torch.version.cuda), "goal": GOAL, "plans": rows})
    print(f"Wrote {path}.")


if __name__ == "__main__":
    main()
