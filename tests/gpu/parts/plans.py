"""Planned beside measured, on the card that is there: peak, reserved, what the driver shows, seconds a step."""

import contextlib
import itertools
import os
from pathlib import Path
from typing import Any

import torch

from lib import planner
from lib.config import Config
from lib.machine import memory
from lib.planner import search
from lib.planner.card import card_of_gpu, find_card
from lib.planner.search import Option
from lib.task import load_config
from tests.conftest import ROOT, TOY
from tests.gpu.parts.shared import card_alone, chat_changes, within
from trainbook import launch
from trainbook.launch import smoke

PEAK_ABOVE = 0.05
PEAK_BELOW = 0.03
SECONDS = 0.30  # goals: shares of what was measured
STEPS = 6
LARGE = ("graphmer", "glacier_pretrain", "glacier_finetune", "legal", "vqa")
CHATS = {"QLoRA Qwen2.5-1.5B": "Qwen2.5-1.5B", "QLoRA Qwen2.5-7B": "Qwen2.5-7B"}
MORE = 8  # times the shipped effective batch, so that the card and not the batch bounds the micro-batch
SPLITS = [
    f"graphmer {p} {r} {m}"
    for p, r, m in itertools.product(("fp32", "fp16", "bf16"), ("0", "all"), (4, 16))
]
SMALLER = [f"graphmer on {gib} GiB" for gib in (2.5, 4, 6, 8)]
ROWS = (*LARGE, *CHATS, *SPLITS, *SMALLER)


def measure(row: str, folder: Path, tiny: bool) -> dict[str, Any]:
    """Plans a row, trains some steps, and returns both."""
    if tiny:
        return toy(folder)
    if row in SMALLER:
        return smaller(float(row.split()[2]))
    with (
        card_alone() if row in CHATS else contextlib.nullcontext()
    ):  # a base of 7 B is made on the card
        config = config_of(row, folder)
    run = launch.prepare(config)
    with card_alone():
        return compare(run, run.predicted)


def config_of(row: str, folder: Path) -> Config:
    changes: dict[str, Any] = {
        "device.processes": 1,
        "data.num_workers": 2,
        "training.smoke_steps": STEPS,
    }
    if row in CHATS:
        return load_config(
            ROOT / "configs" / "chat.yaml", {**changes, **chat_changes(CHATS[row], folder, 2)}
        )
    if row in SPLITS:
        _, precision, recomputed, size = row.split()
        changes |= {
            "training.precision": precision, "training.gradient_checkpointing": recomputed, "workload.packages": [],
            "training.micro_batch": int(size), "training.effective_batch": 2 * int(size),
            "training.micro_batch_slots": 2,
        }  # fmt: skip
        return load_config(ROOT / "configs" / "graphmer.yaml", changes)
    path = ROOT / "configs" / f"{row}.yaml"
    shipped = load_config(path).training.effective_batch
    changes |= {
        "training.micro_batch": 0,
        "training.effective_batch": MORE * shipped,
        "training.micro_batch_slots": 1,
    }
    changes |= {"data.dir": "" if row == "graphmer" else "embedded"}
    changes |= FROM_SCRATCH.get(row, {})
    return load_config(path, changes)


# Published weights do not lie on the machine: the same parts with random ones
FROM_SCRATCH: dict[str, dict[str, Any]] = {
    "graphmer": {"workload.packages": []},
    "legal": {"workload.encoder.weights": ""},
    "vqa": {
        "workload.image.weights": "",
        "workload.text.weights": "",
        "workload.decoder.weights": "",
    },
}


def compare(run: launch.Run, option: Option | None) -> dict[str, Any]:
    """Trains the smoke test's steps and returns them beside the prediction."""
    memory.clear_memory()
    memory.reset_peak()
    outcome = smoke.few_steps(run)
    measured: dict[str, Any] = {
        "precision": outcome.state.precision, "micro_batch": outcome.state.micro_batch,
        "peak_bytes": outcome.peak_bytes, "steps_per_second": round(outcome.steps_per_second, 4),
        "moments": outcome.allocated, "skipped_steps": outcome.state.skipped_steps,
    }  # fmt: skip
    if torch.cuda.is_available():
        measured |= {
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "driver_bytes": driver_bytes(),
        }
    if option is None:
        return {"ok": False, "error": "there was no plan", **measured}
    planned = {
        "predicted_peak_bytes": option.prediction.peak_bytes,
        "predicted_reserved_bytes": option.prediction.reserved_bytes,
        "predicted_driver_bytes": list(option.prediction.driver_bytes),
        "predicted_seconds": option.expected_seconds, "predicted_moments": option.prediction.moments,
    }  # fmt: skip
    return judged({**measured, **planned})


def judged(figures: dict[str, Any]) -> dict[str, Any]:
    """Adds whether the goals were met, and a sentence on each that was missed."""
    peak = figures["peak_bytes"]
    seconds = 1 / max(figures["steps_per_second"], 1e-9)
    missed = []
    if not within(peak, figures["predicted_peak_bytes"], PEAK_BELOW, PEAK_ABOVE):
        missed.append(
            f"the planned peak is {figures['predicted_peak_bytes'] / peak - 1:+.1%} of the measured one"
        )
    if not within(seconds, figures["predicted_seconds"], SECONDS, SECONDS):
        missed.append(
            f"the planned seconds are {figures['predicted_seconds'] / seconds - 1:+.0%} of the measured ones"
        )
    return {"ok": not missed, **({"missed": "; ".join(missed)} if missed else {}), **figures}


def driver_bytes() -> int | None:
    """Returns what the driver counts for this process, as nvidia-smi shows it; None where it does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return next(
            (process.usedGpuMemory for process in processes if process.pid == os.getpid()), None
        )
    except Exception:  # of drivers, in many classes; a container may hide the processes
        return None


def smaller(gib: float) -> dict[str, Any]:
    """Trains what is recommended for a card of `gib` GiB on a card that torch is told to be as small."""
    total = torch.cuda.get_device_properties(0).total_memory
    capability = ".".join(map(str, card_of_gpu(0).card.capability))
    target = find_card(f"{gib} GiB, capability {capability}")
    changes = {
        "training.micro_batch": 0,
        "workload.packages": [],
        "device.processes": 1,
        "data.num_workers": 0,
    }
    plan = search.make(load_config(ROOT / "configs" / "graphmer.yaml", changes), target, 1)
    size = plan.chosen.micro_batch
    changes |= {
        **plan.overrides,
        "training.effective_batch": 2 * size,
        "training.micro_batch_slots": 2,
    }
    changes |= {"training.smoke_steps": 3}
    run = launch.prepare(load_config(ROOT / "configs" / "graphmer.yaml", changes))
    with card_alone():
        torch.cuda.set_per_process_memory_fraction(target.usable_bytes / total)
        outcome = smoke.few_steps(run)
    used = outcome.state.micro_batch
    return {
        "ok": used == size,
        "planned_micro_batch": size,
        "micro_batch": used,
        "peak_bytes": outcome.peak_bytes,
    }


def toy(folder: Path) -> dict[str, Any]:
    """Runs the same on the toy task, planned for a T4 that is not there: figures without a verdict."""
    path = folder / "toy.yaml"
    path.write_text(TOY, "utf-8")
    config = load_config(path, {"output_dir": str(folder / "runs"), "training.micro_batch": 4})
    plan = planner.plan(config, find_card("t4"), 1)
    figures = compare(launch.prepare(config), plan.options[0])
    return {
        **figures,
        "ok": figures["predicted_peak_bytes"] > 0 and figures["steps_per_second"] > 0,
    }
