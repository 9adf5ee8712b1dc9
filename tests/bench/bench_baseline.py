"""Trains examples of `new` alone and from their simple method; figures go to records/baseline.json.

    python -m tests.bench.bench_baseline --rows tabular,text,images --seeds 0,1,2    (a minute of one core a seed)

Where targets are shuffled among the samples of each part (tags among words) nothing can be learned: the score should be
the simple method's, and the gate shut. With the data as it is the answer should be at least as good as that of the
network alone. Each is the example with its own configuration and data, in this process. The example `chat` writes
texts, which a network does alone, so it has no such run. The record keeps what it has of other runs.
"""

import csv
import random
import re
import shutil
import sys
import time
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from lib.config import with_changes
from lib.task import find_task, load_config, load_task
from tests.bench.record import RECORDS, add_run, head, options_of, runs_of
from trainbook import launch, new
from trainbook.supervised import scoring
from trainbook.supervised.samples import target_of, with_target
from trainbook.supervised.simple import fit

RECORD = RECORDS / "baseline.json"
RUNS = ("alone", "started", "shuffled")
KINDS = ("tabular", "text", "images", "tokens", "segmentation")
_CLOSE = 0.005  # of a score, and of the size of an error


def trained(kind: str, name: str, seed: int, scratch: Path) -> dict:
    """Trains an example; returns the scores of each method, the gate, and seconds of the fit and of the rest."""
    folder = scratch / f"{kind}-{name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    new.write("my", kind, folder)
    options = {"seed": seed, "output_dir": str(folder / "runs"), "data.num_workers": 0}
    config = load_config(
        folder / "my.yaml", {**options, "training.start_from_baseline": name != "alone"}
    )
    cls = find_task(config.task)
    read = cls.read

    def shuffled(self, source):
        parts = read(self, source)
        draw = random.Random(seed)
        for rows in parts.values():
            targets = [target_of(row) for row in rows]
            if (
                kind == "tokens"
            ):  # tags go among all words: the place in a sentence teaches nothing either
                tags = iter(draw.sample([*chain(*targets)], sum(map(len, targets))))
                targets = [[*islice(tags, len(target))] for target in targets]
            else:
                targets = draw.sample(targets, len(targets))
            rows[:] = [with_target(row, target) for row, target in zip(rows, targets, strict=True)]
        return parts

    cls.read = shuffled if name == "shuffled" else read
    begin = time.perf_counter()
    summary = launch.train(config)
    whole = time.perf_counter() - begin
    task = load_task(with_changes(config, {"training.start_from_baseline": False}))
    task.datasets()
    begin = time.perf_counter()
    fit(task)
    seconds = time.perf_counter() - begin
    metric = summary.best["metric"]
    with next(folder.glob("runs/*/evaluation.csv")).open() as file:
        scores = [
            float(row[metric]) for row in csv.DictReader(file)
        ]  # a constant, what it knows more, the network
    gate = re.search(r"The gate is (?:open by ([\d.]+)|shut)", summary.report)
    return {
        **head("torch", "scikit-learn"), "metric": metric, "simple method": scores[1],
        "answer": scores[-1], "gate": float(gate[1] or 0) if gate else None,
        "seconds of the fit": round(seconds, 2), "seconds of the rest": round(whole - seconds, 2),
    }  # fmt: skip


def summed_up(runs: dict[str, dict]) -> dict[str, dict]:
    """Returns in how many seeds of each example what is promised held, and means over them."""
    tables = {}

    def average(values):
        return round(float(np.mean([*values] or [0])), 4)

    for kind in KINDS:
        alone, started, shuffled = (
            {
                key.split()[-1]: run
                for key, run in runs.items()
                if key.startswith(f"{kind}, {name},")
            }
            for name in RUNS
        )
        seeds = started.keys() & alone.keys()
        drawn = shuffled.values()
        share = (
            alone[seed]["seconds of the fit"] / alone[seed]["seconds of the rest"] for seed in seeds
        )
        tables[kind] = {
            "shuffled": {
                "seeds": len(drawn), "gate shut": sum(run["gate"] == 0 for run in drawn),
                "within .005 of simple method": sum(abs(gained(run, run, "simple method")) < _CLOSE for run in drawn),
            },
            "as it is": {
                "seeds": len(seeds), "gate open": sum(started[seed]["gate"] > 0 for seed in seeds),
                "as good as the network alone": sum(gained(started[seed], alone[seed]) >= 0 for seed in seeds),
                "simple method": average(started[seed]["simple method"] for seed in seeds),
                "network alone": average(alone[seed]["answer"] for seed in seeds),
                "answer": average(started[seed]["answer"] for seed in seeds),
                "the fit's share of the rest of a run": average(share),
            },
        }  # fmt: skip
    return tables


def gained(run: dict, other: dict, key: str = "answer") -> float:
    """Returns by how much a run is better than another; of errors it is a share."""
    gain = run["answer"] - other[key]
    if scoring.better(run["metric"]) == "min":
        return -gain / other[key]
    return gain


def main(arguments: list[str]) -> None:
    options = options_of(KINDS, ",".join(map(str, range(20))), arguments, __doc__)
    torch.set_num_threads(1)
    for seed in options.seeds:
        for kind in options.rows:
            for name in RUNS:
                key = f"{kind}, {name}, seed {seed}"
                if options.again or key not in runs_of(RECORD):
                    tables = add_run(
                        RECORD, key, trained(kind, name, seed, options.scratch), summed_up, "torch"
                    )
                    print(key, tables[kind], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
