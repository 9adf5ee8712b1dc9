"""What loader workers cost: the time until the first batch, and the memory of all processes together.

    python -m tests.bench.bench_workers

Each configuration is loaded in fresh processes: with 0, 1 and 2 workers from the fork server, and for comparison with 2
that are forked from the training process, whose corpus is in its memory and not mapped. Memory is the sum of the
proportional set sizes (PSS) of the training process and all below it, in which a page that n processes share counts
once. All ways must load the same bytes. Figures go to records/workers.json.
"""

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil

from lib.task import Task, load_config, load_task
from lib.training import data, workers
from lib.training.order import Order
from tests.bench.record import RECORDS, head, write

ROOT = Path(__file__).resolve().parents[2]
RECORD = RECORDS / "workers.json"
CONFIGS = ("graphmer_small", "glacier_pretrain_small")
WAYS = {"in the training process": 0, "1 from the server": 1, "2 from the server": 2, "2 forked": 2}
STEPS, REPEATS = 12, 3
_MIB = 2**20


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
        return
    record: dict[str, Any] = {
        **head("torch"),
        "load_average_before": round(os.getloadavg()[0], 2),
    }
    for name in CONFIGS:
        load_task(load_config(ROOT / "configs" / f"{name}.yaml")).datasets()  # fills the caches
        found = {way: [start(name, way) for _ in range(REPEATS)] for way in WAYS}
        digests = {each.pop("sha256") for way in found.values() for each in way}
        assert len(digests) == 1, f"{name}: {digests}"
        medians = {
            way: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for way, runs in found.items()
        }
        record[name] = {"the same bytes in all ways": True, **medians}
        print(json.dumps({name: record[name]}, indent=1), flush=True)
    write(RECORD, record)


def start(name: str, way: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.bench.bench_workers", name, way]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: str, way: str) -> dict[str, Any]:
    """Loads some steps: seconds to the first batch of a first and of a second loader, and MiB of all processes."""
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    task = load_task(config)
    options = dataclasses.replace(config.data, num_workers=WAYS[way])
    with forking(task) if way == "2 forked" else contextlib.nullcontext():
        train = task.datasets()["train"]
        order = Order.of(train, config)
        digest, seconds, pss = hashlib.sha256(), [], 0
        for _ in range(2):
            begin = time.perf_counter()
            for step, slots in data.train_batches(task, train, order, range(STEPS), options):
                if not step:
                    seconds.append(round(time.perf_counter() - begin, 2))
                if step == STEPS // 2:
                    pss = sum(map(proportional, [psutil.Process(), *psutil.Process().children(recursive=True)]))
                for batch in slots:
                    for key in sorted(batch):
                        digest.update(batch[key].numpy().tobytes())
    sent = len(workers.Sent((task, train), config.task).pickled) if way != "2 forked" else 0
    return {
        "seconds to the first batch": seconds[0],
        "seconds to the first batch of a second loader": seconds[1],
        "MiB of all processes": round(pss / _MIB),
        "KiB sent to each worker": round(sent / 1024) if WAYS[way] else 0,
        "sha256": digest.hexdigest(),
    }


@contextlib.contextmanager
def forking(task: Task) -> Iterator[None]:
    """Forks workers from this process, and holds the arrays of a corpus in its memory."""

    class Inherited:
        def __init__(self, dataset: Any, task: str):
            self.dataset = dataset

        def __getitem__(self, key: Any) -> Any:
            return self.dataset[key]

    if corpus := getattr(task.data, "corpus", None):  # type: ignore[attr-defined]
        for field in dataclasses.fields(corpus):
            setattr(corpus, field.name, np.array(getattr(corpus, field.name)))
    forked = multiprocessing.get_context("fork")
    with mock.patch.multiple(workers, context=forked, Sent=Inherited, start_server=lambda: None):
        yield


def proportional(process: psutil.Process) -> int:
    return process.memory_full_info().pss


if __name__ == "__main__":
    main()
