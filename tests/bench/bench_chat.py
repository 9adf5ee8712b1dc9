"""What tuning the small base on the task "call" reaches; figures go to records/chat.json.

    python -m tests.bench.bench_chat                               what the record has left out
    python -m tests.bench.bench_chat --rows adapters --seeds 0     one run

A row and seed is a run of configs/chat_small.yaml in a fresh process: 6 minutes of one core. The seed draws the
conversations, too.
"""

import csv
import json
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.record import RECORDS, head, measure, rounded, train

RECORD = RECORDS / "chat.json"
ROWS = {"adapters": {}, "all weights": {"workload.method": "full", "optimizer.lr": 2e-3}}


def cpu_seconds() -> float:
    """Returns those of the processes that ended below this one: a busy machine does not lengthen them as a clock's."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measured(row: str, seed: int, scratch: Path) -> dict[str, Any]:
    """Trains a row, or resumes what was killed; returns its figures and those of each baseline."""
    begin = time.perf_counter()
    before = cpu_seconds()
    train(
        "configs/chat_small.yaml",
        {"output_dir": scratch, "run.name": "chat", "seed": seed, **ROWS[row]},
    )
    minutes = (time.perf_counter() - begin) / 60
    folder = scratch / "chat"
    with (folder / "evaluation.csv").open(encoding="utf-8") as file:
        methods = {line.pop("method"): line for line in csv.DictReader(file)}
    other = json.loads((folder / "summary.json").read_text("utf-8"))["metrics"]
    keys = (
        "exact",
        "exact_low",
        "exact_high",
        "valid",
        "stopped",
        "gain_exact",
        "gain_exact_low",
        "gain_exact_high",
    )
    return {
        **head("torch", "transformers", "peft"), "minutes": round(minutes, 1),
        "minutes of one core": round((cpu_seconds() - before) / 60, 1),
        **rounded({key: float(methods["network"][key]) for key in keys}),
        "baselines": rounded({name: float(line["exact"]) for name, line in methods.items() if name != "network"}),
        **rounded({key: value for key, value in other.items() if key.startswith("other")}),
    }  # fmt: skip


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns means and worst seeds of each row."""
    tables = {}
    for row in ROWS:
        seeds = [run for name, run in runs.items() if name.startswith(f"{row},")]
        if seeds:
            exact = [run["exact"] for run in seeds]
            ratios = [run["other_perplexity"] / run["other_perplexity_of_base"] for run in seeds]
            tables[row] = {
                "seeds": len(seeds), "exact, mean": round(float(np.mean(exact)), 4), "exact, least": min(exact),
                "least lower end": min(run["exact_low"] for run in seeds),
                "least lower end of the gain": min(run["gain_exact_low"] for run in seeds),
                "strongest baseline, mean": round(float(np.mean([max(run["baselines"].values()) for run in seeds])), 4),
                "perplexity of other text, times the base's, most": round(max(ratios), 3),
                "minutes of one core, most": max(run["minutes of one core"] for run in seeds),
            }  # fmt: skip
    return tables


if __name__ == "__main__":
    measure(RECORD, ROWS, "0,1,2", measured, summed_up, __doc__)
