"""What loader workers cost: seconds to the first batch, MiB of all processes; figures go to records/workers.json.

    python -m tests.bench.bench_workers

Each configuration is loaded in fresh processes, with 0, 1 and 2 workers. Memory is the sum of the proportional set
sizes (PSS) of the training process and all below it, in which a page that n processes share counts once. All ways must
load the same bytes.
"""

import dataclasses
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from lib.task import load_config, load_task
from lib.training import data
from lib.training.order import Order
from tests.bench.record import head, publish

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ("graphmer_small", "glacier_pretrain_small")
STEPS, REPEATS = 12, 3


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
        return
    record: dict[str, Any] = {**head("torch"), "load_average_before": round(os.getloadavg()[0], 2)}
    for name in CONFIGS:
        load_task(load_config(ROOT / "configs" / f"{name}.yaml")).datasets()  # fills the caches
        runs = {workers: [in_a_fresh_process(name, workers) for _ in range(REPEATS)] for workers in range(3)}
        digests = {run.pop("sha256") for repeated in runs.values() for run in repeated}
        assert len(digests) == 1, f"{name}: {digests}"
        record[name] = {
            f"{workers} workers": {key: statistics.median(run[key] for run in repeated) for key in repeated[0]}
            for workers, repeated in runs.items()
        }
    publish("workers", record)


def in_a_fresh_process(name: str, workers: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.bench_workers", name, str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured(name: str, workers: int) -> dict[str, Any]:
    """Loads some steps twice; returns seconds to the first batch of each loader, and MiB of all processes."""
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    task = load_task(config)
    options = dataclasses.replace(config.data, num_workers=workers)
    train = task.datasets()["train"]
    order = Order.of(train, config)
    digest, seconds, pss = hashlib.sha256(), [], 0
    for _ in range(2):
        begin = time.perf_counter()
        for step, slots in data.train_batches(task, train, order, range(STEPS), options):
            if not step:
                seconds.append(round(time.perf_counter() - begin, 2))
            if step == STEPS // 2:
                processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
                pss = sum(process.memory_full_info().pss for process in processes)
            for batch in slots:
                for key in sorted(batch):
                    digest.update(batch[key].numpy().tobytes())
    return {
        "seconds to the first batch": seconds[0],
        "seconds to the first batch of a second loader": seconds[1],
        "MiB of all processes": round(pss / 2**20),
        "sha256": digest.hexdigest(),
    }


if __name__ == "__main__":
    main()
