"""How long a resume takes for the model of the Kaggle size: from the start of a process to a state ready for its step.

    python -m tests.bench.bench_resume

A checkpoint of `configs/graphmer.yaml` with AdamW's moments is written once; then fresh processes import, build the
model, verify the checkpoint and load it. Figures go to records/resume.json.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from lib import checkpoint
from lib.task import find_task, load_config
from lib.training.state import State, new_state, restore_state, state_tensors
from tests.bench.record import head, publish

ROOT = Path(__file__).resolve().parents[2]
REPEATS = 5


def fresh() -> State:
    config = load_config(ROOT / "configs" / "graphmer.yaml")
    return new_state(find_task(config.task)(config), config)  # the model reads no data


def write(folder: Path) -> tuple[int, int]:
    """Saves the state after one update with zero gradients; returns parameters and bytes."""
    state = fresh()
    for parameter in state.parameters:
        parameter.grad = torch.zeros_like(parameter)
    state.optimizer.step()
    config = load_config(ROOT / "configs" / "graphmer.yaml")
    facts = {"kept_best": [], "pending": {}, "skipped_steps": 0, "skipped_in_a_row": 0, "micro_batch": 32, "scaler": {}}
    path = checkpoint.save(folder, 1, state_tensors(state, config), facts)
    return sum(p.numel() for p in state.parameters), sum(file.stat().st_size for file in path.iterdir())


def resume(folder: Path) -> None:
    """What a session does before its first step, without the data."""
    state = fresh()
    found, _ = checkpoint.load_newest(folder)
    assert found
    restore_state(state, found)
    assert state.step == 1


def main() -> None:
    if len(sys.argv) > 1:
        resume(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        parameters, size = write(Path(folder))
        seconds = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-m", "tests.bench.bench_resume", folder], cwd=ROOT, check=True)
            seconds.append(round(time.perf_counter() - begin, 2))
    record = {
        **head("torch"),
        "parameters": parameters,
        "checkpoint_bytes": size,
        "seconds": {"median": statistics.median(seconds), "worst": max(seconds), "all": seconds},
    }
    publish("resume", record)


if __name__ == "__main__":
    main()
