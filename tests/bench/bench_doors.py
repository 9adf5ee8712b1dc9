"""The examples of `new` that write, hear and foresee, on data of their own kind; figures go to records/doors.json.

    python -m tests.bench.bench_doors                         what the record has left out, a few minutes a run
    python -m tests.bench.bench_doors --rows gpt --seeds 0    one run

A row is an example, trained with the configuration that `new --like` writes, in a fresh process. The seed draws the
data too. Gains are of the test, paired by its groups, over the strongest simple method.
"""

import csv
import hashlib
import json
import resource
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.record import RECORDS, head, measure, rounded, train
from trainbook import new
from trainbook.new import made

RECORD = RECORDS / "doors.json"
ROWS = ("gpt", "sequence", "audio", "series")


def measured(row: str, seed: int, place: Path) -> dict[str, Any]:
    """Trains an example, or resumes what was killed; returns the scores of each method and the gain."""
    config = place / "my.yaml"
    if not config.exists():
        write(row, seed, place)
    begin = time.perf_counter()
    before = cpu_seconds()
    train(config, {"output_dir": place / "runs", "run.name": "run", "seed": seed})
    return {
        **head("torch"),
        **figures(place / "runs" / "run"),
        "seconds": round(time.perf_counter() - begin, 1),
        "CPU seconds": round(cpu_seconds() - before, 1),
    }


def write(row: str, seed: int, place: Path) -> None:
    """Writes an example as `new --like` does; its data is drawn by the seed."""
    new.write("my", row, place)
    shutil.rmtree(place / "my_data")
    getattr(made, row)(place / "my_data", seed=seed)


def cpu_seconds() -> float:
    """Returns those of the processes that ended below this one: a busy machine does not lengthen them as a clock's."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def figures(folder: Path) -> dict[str, Any]:
    """Returns the scores of each method of a run, the network's gain with its interval, and the weights' hash."""
    with (folder / "evaluation.csv").open(encoding="utf-8") as file:
        lines = {line.pop("method"): line for line in csv.DictReader(file)}
    metric = next(iter(lines["network"]))
    gain = (f"gain_{metric}", f"gain_{metric}_low", f"gain_{metric}_high")
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    weights = folder / "best" / f"step-{summary['best']['step']:08}" / "model.safetensors"
    return {
        "metric": metric,
        "scores": rounded({name: float(line[metric]) for name, line in lines.items()}),
        "strongest": strongest(lines, gain[0]),
        "gain": [round(float(lines["network"][key]), 4) for key in gain],
        "weights": hashlib.sha256(weights.read_bytes()).hexdigest()[:16],
    }


def strongest(lines: Mapping[str, Mapping[str, str]], gain: str) -> str:
    """Returns the method that gains are over: its own is nothing, to the last digit."""
    return next(name for name, line in lines.items() if float(line[gain]) == 0)


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns of each row the least gain with its interval's lower end, and the most seconds."""
    tables = {}
    for row in ROWS:
        seeds = [run for name, run in runs.items() if name.startswith(f"{row},")]
        if seeds:
            gains, lows, _ = zip(*(run["gain"] for run in seeds), strict=True)
            tables[row] = {
                "metric": seeds[0]["metric"], "seeds": len(seeds),
                "scores of the network": [run["scores"]["network"] for run in seeds],
                "of the strongest": [run["scores"][run["strongest"]] for run in seeds],
                "gain, least": min(gains), "its lower end, least": min(lows),
                "surely gains": f"{sum(low > 0 for low in lows)} of {len(lows)}",
                "CPU seconds, most": max(run["CPU seconds"] for run in seeds),
            }  # fmt: skip
    return tables


if __name__ == "__main__":
    measure(RECORD, ROWS, "0,1,2", measured, summed_up, __doc__)
