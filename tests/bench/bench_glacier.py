"""Glacier's small preset, its loader beside a step, its memory for many scenes, and folds that are killed and resumed.

    python -m tests.bench.bench_glacier                      all of it
    python -m tests.bench.bench_glacier only predicting      a part of it, by its name in the record

Everything runs on generated scenes, in a cache and an output folder of its own. Figures go to records/glacier.json.
"""

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from lib import launch
from lib.config import Data, with_changes
from lib.launch import queue
from lib.machine import memory
from lib.report.meter import Meter
from lib.task import load_config, load_task
from lib.training import data, loop
from lib.training.order import Order, weights_of
from lib.training.state import new_state
from lib.training.step import optimizer_step
from tests.bench.record import head, write
from workloads.glacier import maps
from workloads.glacier.data import cutter, layout, terrain
from workloads.glacier.settings import Generator, Prediction

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
RECORD = Path(__file__).with_name("records") / "glacier.json"
LOADED, BATCH, STEP_BATCH = 96, 24, 4  # images timed in the loader, images of its batch, images of the step


def small_preset(folder: Path) -> dict:
    """The whole run of the small pretraining, with its baseline."""
    begin = time.perf_counter()
    config = load_config(CONFIGS / "glacier_pretrain_small.yaml", {"output_dir": str(folder)})
    summary = launch.train(config)
    return {
        "seconds": round(time.perf_counter() - begin),
        "steps": summary.step,
        "metrics": {key: round(summary.metrics[key], 4) for key in ("mcc", "mean_iou")},
        "baseline": {key: round(summary.baseline[key], 4) for key in ("mcc", "mean_iou")},
    }


def slicing(scenes: int) -> dict:
    """By how much the peak of memory grows while scenes of 512 x 512 x 7 are cut after a first one; a new process."""
    settings = load_config(CONFIGS / "glacier_pretrain.yaml").workload
    with tempfile.TemporaryDirectory() as place:
        terrain.write(Path(place), Generator(scenes=scenes + 1, size=512), settings.source)
        command = [sys.executable, "-m", "tests.bench.bench_glacier", "slicing", place]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def slice_now(folder: Path) -> None:
    settings = load_config(CONFIGS / "glacier_pretrain.yaml").workload
    found, problems = layout.find(folder, settings.source)
    with tempfile.TemporaryDirectory() as store:
        cut = cutter.Cutter(Path(store), settings.source, settings.tiles, 0)
        cut.add(found[0])
        before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        cut.all(found[1:], problems)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        rate = round((len(found) - 1) / (time.perf_counter() - begin), 1)
    told = {"scenes": len(found) - 1, "peak_mib": round((before + grown) / 1024), "grown_mib": round(grown / 1024, 2)}
    print(json.dumps({**told, "scenes_per_second": rate}))


def predicting(scenes: int, side: int) -> dict:
    """The peak of memory of a process that predicts scenes one after another: the same one under many names."""
    settings = load_config(CONFIGS / "glacier_finetune_small.yaml").workload
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "scenes")
        terrain.write(folder, Generator(scenes=1, size=side), settings.source)
        for number, band in itertools.product(range(2, scenes + 1), range(1, 1 + len(settings.source.bands))):
            (folder / f"Band{band}" / f"img{number:03d}.tif").hardlink_to(folder / f"Band{band}" / "img001.tif")
        command = [sys.executable, "-m", "tests.bench.bench_glacier", "predicting", place]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def predict_now(place: Path) -> None:
    config = load_config(CONFIGS / "glacier_finetune_small.yaml", {"data.dir": "embedded"})
    settings, begin = config.workload, time.perf_counter()
    model = load_task(config).model().eval()
    predicted = maps.masks(
        [model], place / "scenes", settings.source, settings.tiles.size, place / "maps", Prediction(views=1)
    )
    status = Path("/proc/self/status").read_text()  # getrusage would count the process that started this one
    peak = int(status.split("VmHWM:")[1].split()[0])
    told = {"scenes": len(predicted), "side": next(iter(predicted.values())).shape[0], "peak_mib": round(peak / 1024)}
    print(json.dumps({**told, "seconds": round(time.perf_counter() - begin)}))


def loader_and_step() -> dict:
    """Images of 512 x 512 x 7 a second: out of the loader with two workers, and through a step of the full U-Net."""
    config = load_config(
        CONFIGS / "glacier_pretrain.yaml",
        {"workload.generator.scenes": 32, "training.effective_batch": BATCH, "training.micro_batch_slots": 1},
    )
    task = load_task(config)
    part = task.datasets()["train"]
    order = Order(len(part), 0, BATCH, 1, weights_of(part))
    loaded = {}
    for workers in (0, 2):
        batches = data.train_batches(task, part, order, range(1 + LOADED // BATCH), Data(num_workers=workers))
        next(batches)  # workers start, files are mapped for the first time
        begin = time.perf_counter()
        for _ in batches:
            pass
        loaded[f"loader_{workers}_workers"] = round(LOADED / (time.perf_counter() - begin), 1)
    begin = time.process_time()
    task.collate([part[i] for i in range(BATCH)], torch.Generator().manual_seed(0))
    loaded["one_cpu_without_others"] = round(BATCH / (time.process_time() - begin), 1)  # by its own time of computing
    few = with_changes(config, {"training.effective_batch": STEP_BATCH, "training.micro_batch": STEP_BATCH})
    state = new_state(task, few)
    batch = {
        name: value[:STEP_BATCH] for name, value in task.collate([part[i] for i in range(4)], torch.Generator()).items()
    }
    order, meter = Order(len(part), 0, STEP_BATCH, 1), Meter({}, state.device)
    optimizer_step(state, task, few, [batch], 0, order, meter)
    begin = time.perf_counter()
    optimizer_step(state, task, few, [batch], 1, order, meter)
    return {**loaded, "step": round(STEP_BATCH / (time.perf_counter() - begin), 2), "device": str(memory.device())}


SHORT = {  # the small fine-tuning on small scenes, 12 steps a fold
    "training.max_steps": 12, "training.evaluate_every_steps": 4, "checkpoint.every_steps": 4,
    "workload.generator.size": 96, "queue.before": "[]", "queue.start_from": "",
}  # fmt: skip


def fold_queue(folder: Path) -> list[queue.Entry]:
    return queue.entries(CONFIGS / "glacier_finetune_small.yaml", {**SHORT, "output_dir": str(folder)})


def killed_in_fold_3(folder: Path) -> dict:
    """Five short folds in one go, and killed in the third and resumed: are best weights and metrics the same?"""
    ends = []
    for name in ("whole", "killed"):
        command = [sys.executable, "-m", "tests.bench.bench_glacier", name, str(folder / name)]
        code = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode
        assert code == (0 if name == "whole" else -signal.SIGKILL), code
        found = fold_queue(folder / name)
        killed_at = [(state.state, state.step) for state in map(queue.progress_of, found)]
        assert queue.run_queue(found) == 0
        ends.append({entry.name: end_of(entry.folder) for entry in found})
    same = [ends[0][name] == ends[1][name] for name in ends[0]]
    return {"folds": len(same), "same": sum(same), "states_when_killed": killed_at}


def end_of(folder: Path) -> tuple:
    summary = json.loads((folder / "summary.json").read_text())
    weights = [path.read_bytes() for path in sorted((folder / "best").glob("*/model.safetensors"))]
    return summary["metrics"], summary["best"], weights


def kill_in_the_third(folder: Path) -> None:
    real = loop.optimizer_step

    def step(state, task, config, slots, number, *rest):
        if config.run.name.endswith("fold2") and number == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(state, task, config, slots, number, *rest)

    loop.optimizer_step = step
    queue.run_queue(fold_queue(folder))


def main() -> None:
    kind, given = sys.argv[1:] or ("", "")
    inside = {
        "slicing": slice_now, "predicting": predict_now, "killed": kill_in_the_third,
        "whole": lambda folder: sys.exit(queue.run_queue(fold_queue(folder))),
    }  # fmt: skip
    if kind in inside:
        inside[kind](Path(given))
        return
    with tempfile.TemporaryDirectory() as place:
        os.environ["TRAINBOOK_CACHE"] = f"{place}/cache"
        measured = {
            "slicing": lambda: [slicing(scenes) for scenes in (4, 40)],
            "predicting": lambda: [predicting(scenes, 2000) for scenes in (1, 100)],
            "images_per_second": loader_and_step,
            "killed_in_fold_3_of_5": lambda: killed_in_fold_3(Path(place)),
            "small_preset": lambda: small_preset(Path(place) / "preset"),
        }
        record = json.loads(RECORD.read_text()) if kind == "only" else {}
        record |= head("torch")
        for name in [given] if kind == "only" else measured:
            record[name] = measured[name]()
            print(json.dumps({name: record[name]}, indent=1), flush=True)
    write(RECORD, record)


if __name__ == "__main__":
    main()
