"""How long training stands still for a save of 0.96 GB, and how long resuming from it takes; keeps records/save.json.

    python -m tests.bench.bench_save [--folder DIR]

80 million parameters with both moments of AdamW, on the CPU: a stand-in step of matrix products goes on while the
writer thread works, as training does. Beside it a plain torch.save of the same state.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

from lib import checkpoint
from lib.checkpoint.saver import Retention, Saver
from lib.config import Checkpoint
from tests.bench.record import head, publish

PARAMETERS = 80_000_000
SAVES = 10
GOALS = {"median_seconds": 0.12, "worst_seconds": 0.25, "resume_seconds": 15}


def state(parameters: int) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors like those of a transformer of width 768: 100 matrices and as many vectors."""
    rows = parameters // 100 // 768
    model = {f"blocks.{i}.weight": torch.randn(rows, 768) for i in range(100)}
    model |= {f"blocks.{i}.bias": torch.randn(768) for i in range(100)}
    moments = {
        f"{kind}/{name}": torch.randn_like(v)
        for kind in ("exp_avg", "exp_avg_sq")
        for name, v in model.items()
    }
    return {"model": model, "optimizer": moments}


def train(seconds: float) -> None:
    """Matrix products for a while, as a step would."""
    a = torch.randn(512, 512)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        a = (a @ a).clamp(-1, 1)


def background(folder: Path, tensors: dict) -> dict:
    """Seconds that each call of `save` takes, and until it is committed while training goes on."""
    committed: list[float] = []
    still: list[float] = []
    with Saver(folder, Retention(folder, Checkpoint()), committed.append) as saver:
        saver.prepare("checkpoints", tensors)  # as the trainer does after its first step
        while not saver._works[-1].done():
            train(0.2)
        for step in range(1, SAVES + 1):
            begin = time.perf_counter()
            saver.save(
                "checkpoints",
                step,
                tensors,
                {},
                lambda step=step: saver.retention.after_checkpoint(step, []),
            )
            still.append(time.perf_counter() - begin)
            while not saver._works[-1].done():
                train(0.2)
            tensors["model"]["blocks.0.weight"].add_(1)
        saver.wait()
    return {
        "standing_still_seconds": [round(s, 3) for s in still],
        "median_seconds": round(statistics.median(still), 3),
        "worst_seconds": round(max(still), 3),
        "committed_after_seconds_median": round(statistics.median(committed), 2),
    }


def plain(folder: Path, tensors: dict) -> dict:
    """Three times torch.save with a sync, as a plain trainer would have to wait for it."""
    seconds = []
    for number in range(3):
        begin = time.perf_counter()
        with (folder / f"plain-{number}.pt").open("wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())
        seconds.append(time.perf_counter() - begin)
        (folder / f"plain-{number}.pt").unlink()
    return {
        "median_seconds": round(statistics.median(seconds), 2),
        "worst_seconds": round(max(seconds), 2),
    }


def resume(folder: Path, tensors: dict) -> dict:
    """Seconds of verifying, loading and copying everything into place; the page cache is asked to forget the files."""
    cold = _drop_caches(folder)
    begin = time.perf_counter()
    found, _ = checkpoint.load_newest(folder / "checkpoints")
    loaded = time.perf_counter() - begin
    for group, named in tensors.items():
        for name, value in named.items():
            value.copy_(found.tensors[group][name])
    return {
        "pages_dropped_before": cold,
        "verify_and_load_seconds": round(loaded, 2),
        "resume_seconds": round(time.perf_counter() - begin, 2),
    }


def _drop_caches(folder: Path) -> bool:
    """Drops the checkpoint's pages, so that it is read from the disk."""
    for path in folder.rglob("*.safetensors"):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    return hasattr(os, "posix_fadvise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", help="where to write; the system's folder for temporary files if not given"
    )
    folder = Path(tempfile.mkdtemp(dir=parser.parse_args().folder))
    try:
        tensors = state(PARAMETERS)
        size = sum(
            t.numel() * t.element_size() for named in tensors.values() for t in named.values()
        )
        record = {
            **head("torch", "safetensors"),
            "load_average_before": round(os.getloadavg()[0], 2),
            "bytes": size,
            "goals": GOALS,
            "background": background(folder, tensors),
            "resume": resume(folder, tensors),
            "plain_torch_save": plain(folder, tensors),
        }
    finally:
        shutil.rmtree(folder)
    publish("save", record)


if __name__ == "__main__":
    main()
