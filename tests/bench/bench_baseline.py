"""Trains examples of `new` alone and from their simple method; figures go to records/baseline.json.

    python -m tests.bench.bench_baseline --rows tabular,text,images --seeds 0,1,2    (a minute of one core a seed)

Where targets are shuffled among the samples of each part nothing can be learned: the score should be the simple
method's, and the gate shut. With the data as it is the answer should be at least as good as that of the network alone.
Each is the example with its own configuration and data, in this process. The example `lm` writes texts, which a network
does alone, so it has no such run. The record keeps what it has of other runs.
"""

import csv
import random
import re
import shutil
import sys
import time
from pathlib import Path

import torch

from lib import launch
from lib.supervised import scoring, start, task
from lib.supervised.samples import target_of, with_target
from lib.task import find_task, load_config
from tests.bench.record import RECORDS, add_run, head, options_of, runs_of
from trainbook import new

RECORD = RECORDS / "baseline.json"
STARTS = {"training.start_from_baseline": True}
RUNS = {"alone": (False, {}), "started": (False, STARTS), "shuffled": (True, STARTS)}
KINDS = ("tabular", "text", "images")
_CLOSE = 0.005  # of a score, and of the size of an error


def trained(kind: str, name: str, seed: int, scratch: Path) -> dict:
    """Trains an example; returns the scores of each method, the gate, and seconds of the fit and of the rest."""
    is_shuffled, options = RUNS[name]
    folder = scratch / f"{kind}-{name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    new.write("my", kind, folder)
    options = {**options, "seed": seed, "output_dir": str(folder / "runs"), "data.num_workers": 0}
    config, fits = load_config(folder / "my.yaml", options), []
    cls = find_task(config.task)
    read, fit = cls.read, task.fit

    def shuffled(self, source):
        parts, draw = read(self, source), random.Random(seed)
        for rows in parts.values():
            targets = draw.sample([target_of(row) for row in rows], len(rows))
            rows[:] = [with_target(row, target) for row, target in zip(rows, targets, strict=True)]
        return parts

    def timed(*arguments):
        begin = time.perf_counter()
        fitted = fit(*arguments)
        fits.append(time.perf_counter() - begin)
        return fitted

    cls.read = shuffled if is_shuffled else read
    task.fit = start.fit = timed
    begin = time.perf_counter()
    try:
        summary = launch.train(config)
    finally:
        task.fit = start.fit = fit
    seconds = time.perf_counter() - begin - sum(fits)
    with next(folder.glob("runs/*/evaluation.csv")).open() as file:
        scores = {row["method"]: float(row[summary.best["metric"]]) for row in csv.DictReader(file)}
    gate = re.search(r"The gate is (?:open by ([\d.]+)|shut)", summary.report)
    return {
        **head("torch", "scikit-learn"), "metric": summary.best["metric"], "scores": scores,
        "gate": float(gate[1] or 0) if gate else None, "seconds of the fit": round(sum(fits), 2),
        "seconds of the rest": round(seconds, 2),
    }  # fmt: skip


def summed_up(runs: dict[str, dict]) -> dict[str, dict]:
    """Returns in how many seeds of each example what is promised held."""
    tables: dict[str, dict] = {}
    for kind in KINDS:
        alone, started, shuffled = (
            {key.split()[-1]: run for key, run in runs.items() if key.startswith(f"{kind}, {name},")} for name in RUNS
        )
        pairs = [(started[seed], alone[seed]) for seed in sorted(started.keys() & alone.keys())]
        share = (run["seconds of the fit"] / run["seconds of the rest"] for run, _ in pairs)
        tables[kind] = {
            "shuffled": {
                "seeds": len(shuffled),
                "gate shut": sum(run["gate"] == 0 for run in shuffled.values()),
                "score within .005 of the simple method's": sum(map(is_close, shuffled.values())),
            },
            "as it is": {
                "seeds": len(pairs),
                "gate open": sum(run["gate"] > 0 for run, _ in pairs),
                "at least as good as the network alone": sum(is_as_good(run, answer(other)) for run, other in pairs),
                "at least as good as the simple method": sum(is_as_good(run, simple_of(run)) for run, _ in pairs),
                "mean of the network alone": mean(answer(other) for _, other in pairs),
                "mean of the simple method": mean(simple_of(run) for run, _ in pairs),
                "mean of both": mean([*run["scores"].values()][-2] for run, _ in pairs),
                "mean of the answer": mean(answer(run) for run, _ in pairs),
                "the fit's share of the rest of a run": mean(share),
            },
        }
    return tables


def answer(run: dict) -> float:
    return [*run["scores"].values()][-1]


def simple_of(run: dict) -> float:
    """Returns the score of the simple method, which is the constant where that is all it knows."""
    return [*run["scores"].values()][-3]


def is_close(run: dict) -> bool:
    size = abs(simple_of(run)) if scoring.better(run["metric"]) == "min" else 1
    return abs(answer(run) - simple_of(run)) <= _CLOSE * size


def is_as_good(run: dict, other: float) -> bool:
    return answer(run) <= other if scoring.better(run["metric"]) == "min" else answer(run) >= other


def mean(values) -> float:
    values = list(values)
    return round(sum(values) / max(1, len(values)), 4)


def main(arguments: list[str]) -> None:
    options = options_of(KINDS, ",".join(map(str, range(20))), arguments, __doc__)
    torch.set_num_threads(1)
    for seed in options.seeds:
        for kind in options.rows:
            for name in RUNS:
                key = f"{kind}, {name}, seed {seed}"
                if options.again or key not in runs_of(RECORD):
                    tables = add_run(RECORD, key, trained(kind, name, seed, options.scratch), summed_up, "torch")
                    print(key, tables[kind], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
