"""Deterministic runs that stop and resume, or run twice, end in the same bytes on a GPU."""

from pathlib import Path
from typing import Any

import torch

from lib import checkpoint
from lib.config import Config
from lib.machine import platform
from lib.task import load_config
from tests.conftest import ROOT, TOY
from tests.training.test_loop import check_resume
from trainbook import launch

WORKLOADS = ("graphmer", "chat", "vqa", "legal", "glacier_pretrain")
ROWS = ("toy twice", *WORKLOADS, "toy compiled")
CUT = 7  # the step after which a run is stopped


def measure(row: str, folder: Path, tiny: bool) -> dict[str, Any]:
    """Trains a row's run as often as it takes; raises where two ends differ."""
    if row == "toy twice":
        return {"ok": twice(folder)}
    if row == "toy compiled":
        return {"ok": compiled(folder)}
    run = launch.prepare(workload(row, folder))
    end = check_resume(run.config, folder, CUT)
    return {
        "ok": True,
        "tensors": len(end.tensors["model"]),
        "steps": run.config.training.max_steps,
    }


def workload(name: str, folder: Path) -> Config:
    changes: dict[str, Any] = {
        "data.dir": "" if name in ("graphmer", "chat") else "embedded", "data.num_workers": 2, "device.processes": 1,
        "training.precision": "fp16", "training.deterministic": True, "training.max_steps": 12, "training.epochs": 0,
        "training.evaluate_every_steps": 4, "checkpoint.every_steps": 3, "checkpoint.every_minutes": 0,
        "output_dir": str(folder / "runs"),
    }  # fmt: skip
    if name == "chat":
        changes |= {
            "workload.generated": 400,
            "workload.validation_rows": 10,
            "workload.answer": 20,
        }
    return load_config(ROOT / "configs" / f"{name}_small.yaml", changes)


def toy(folder: Path, name: str, **changes: Any) -> Config:
    path = folder / "toy.yaml"
    path.write_text(TOY, "utf-8")
    options = {"output_dir": str(folder / "runs"), "run.name": name, "device.processes": 1}
    return load_config(
        path, {**options, **{key.replace("__", "."): value for key, value in changes.items()}}
    )


def weights(config: Config) -> dict[str, torch.Tensor]:
    """Trains a configuration and returns the weights of its last checkpoint."""
    launch.train(config)
    folder = platform.output_dir(config.output_dir) / config.run.name / "checkpoints"
    return checkpoint.load_newest(folder)[0].tensors["model"]


def twice(folder: Path) -> bool:
    first, second = (
        weights(toy(folder, name, training__deterministic=True)) for name in ("first", "second")
    )
    return all(torch.equal(value, second[name]) for name, value in first.items())


def compiled(folder: Path) -> bool:
    """Trains with torch.compile; the checkpoint has the plain names."""
    return "blocks.0.weight" in weights(
        toy(folder, "compiled", training__compile=True, training__precision="fp32")
    )
