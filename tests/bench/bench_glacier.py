"""Glacier's memory while it predicts many scenes, and its loader beside a step; figures go to records/glacier.json.

python -m tests.bench.bench_glacier
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from lib.config import Data, with_changes
from lib.machine import memory
from lib.report.meter import Meter
from lib.task import load_config, load_task
from lib.training import data
from lib.training.order import Order, weights_of
from lib.training.state import new_state
from lib.training.step import optimizer_step
from tests.bench.record import head, publish
from workloads.glacier import maps
from workloads.glacier.data import terrain
from workloads.glacier.settings import Generator

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
LOADED, BATCH, STEP_BATCH = 96, 24, 4  # images timed in the loader, images of its batch, images of the step


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
    predicted = maps.masks([model], place / "scenes", settings.source, settings.tiles.size, place / "maps", views=1)
    status = Path("/proc/self/status").read_text()  # getrusage would count the process that started this one
    peak = int(status.split("VmHWM:")[1].split()[0])
    side = next(iter(predicted.values())).shape[0]
    figures = {"scenes": len(predicted), "side": side, "peak_mib": round(peak / 1024)}
    print(json.dumps({**figures, "seconds": round(time.perf_counter() - begin)}))


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


def main() -> None:
    if len(sys.argv) > 1:
        predict_now(Path(sys.argv[2]))
        return
    figures = {"predicting": [predicting(scenes, 2000) for scenes in (1, 6)], "images_per_second": loader_and_step()}
    publish("glacier", head("torch") | figures)


if __name__ == "__main__":
    main()
