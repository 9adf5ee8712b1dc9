"""Two processes on one card over gloo end where one process does, and two cards do where there are two.

python -m tests.gpu.parts.ranks CONFIG OVERRIDES   one rank of the pair, told by the environment
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lib import checkpoint, ranks
from lib.machine import platform
from lib.task import load_config
from tests.conftest import ROOT
from tests.gpu.parts.bits import toy, weights
from trainbook import launch

ROWS = ("two on one card", "two cards")
OPTIONS: dict[str, Any] = {
    "training__micro_batch_slots": 2, "training__precision": "fp32", "training__deterministic": True,
}  # fmt: skip


def measure(row: str, folder: Path, tiny: bool) -> dict[str, Any]:
    """Trains the toy task in one process and in two; returns the largest difference of a weight."""
    if row == "two cards" and torch.cuda.device_count() < 2:
        return {"ok": True, "left_out": "there is one card"}
    one = weights(toy(folder, "one", **OPTIONS))
    two = on_two_cards(folder) if row == "two cards" else on_one_card(folder)
    worst = max(float((two[name] - value).abs().max()) for name, value in one.items())
    return {"ok": worst < 1e-6, "largest_difference": worst}


def on_two_cards(folder: Path) -> dict[str, torch.Tensor]:
    config = toy(folder, "two", **{**OPTIONS, "device__processes": 2})
    summary = launch.train(config)
    assert summary["world_size"] == 2
    return newest(folder)


def on_one_card(folder: Path) -> dict[str, torch.Tensor]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    toy(folder, "two", **OPTIONS)  # writes the configuration
    changes = {key.replace("__", "."): value for key, value in OPTIONS.items()}
    changes |= {"output_dir": str(folder / "runs"), "run.name": "two"}
    command = [
        sys.executable,
        "-m",
        "tests.gpu.parts.ranks",
        str(folder / "toy.yaml"),
        json.dumps(changes),
    ]
    shared = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
    }
    shared |= {"MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "pair"}
    pair = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    errors = [process.communicate()[1].decode("utf-8", "replace") for process in pair]
    if any(process.returncode for process in pair):
        raise RuntimeError(" | ".join(error.strip()[-300:] for error in errors if error))
    return newest(folder)


def newest(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load_newest(
        platform.output_dir(str(folder / "runs")) / "two" / "checkpoints"
    )[0].tensors["model"]


def main() -> None:
    """Trains as one of two ranks; nccl refuses two of them on one card, so gloo sums the gradients."""
    original = dist.init_process_group

    def over_gloo(backend: str, **options: Any) -> None:
        original("gloo", **options)

    dist.init_process_group = over_gloo
    launch.train(load_config(sys.argv[1], json.loads(sys.argv[2])))
    ranks.end()  # else gloo's threads may outlive the interpreter, and the process aborts


if __name__ == "__main__":
    main()
