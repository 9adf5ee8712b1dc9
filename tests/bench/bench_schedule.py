"""Three sessions of a schedule without a horizon beside one cosine as long; figures go to records/schedule.json.

    ANSWERS_DATA=FOLDER python -m tests.bench.bench_schedule    (four runs a row and seed, half a minute)

A row is a set of tests/bench/sets.py with the example that reads it, the network alone. In `wsd` two sessions train at
the highest rate, and the third is the falling part; in `a fifth` the rate falls in the last fifth alone, as it does by
default. The seed draws weights and order; the split stays. Scores are of the test.
"""

import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy import stats

from lib.config import Config
from lib.task import load_config
from tests.bench import sets
from tests.bench.record import RECORDS, head, measure, rounded
from trainbook import launch, new
from trainbook.supervised import scoring, simple

RECORD = RECORDS / "schedule.json"
# Epochs of a session: of three, as many as the example has, or two more
SESSIONS = {"pictures of digits": 4, "mpg": 20, "ParTUT": 4}
SHARES = {"ParTUT": 0.5}  # of the training texts, for runs of seconds
WAYS = ("cosine", "wsd", "a fifth")


def measured(row: str, seed: int, place: Path) -> dict[str, Any]:
    """Trains once by a cosine, and in three sessions by wsd; returns the test's scores of each."""
    torch.set_num_threads(1)
    shutil.rmtree(place)
    place.mkdir()
    written = sets.write(row, place / "data")
    new.write("my", written.example, place)
    shutil.rmtree(place / "my_data")
    (place / "data").rename(place / "my_data")
    options = {
        **written.options, "seed": seed, "output_dir": str(place / "runs"), "data.num_workers": 0,
        "training.start_from_baseline": False, "data.subset_ratio": SHARES.get(row, 1.0),
    }  # fmt: skip
    if written.example == "images":
        options["workload.encoder"] = "none"
    begin = time.process_time()
    with mock.patch.object(simple, "fit", return_value=[]):  # nothing here is compared with one
        ways = trained(place / "my.yaml", options, SESSIONS[row])
    seconds = round(time.process_time() - begin, 1)
    shutil.rmtree(place / "runs")
    return {**head("torch"), "example": written.example, "seconds": seconds, **ways}


def trained(path: Path, options: Mapping[str, Any], session: int) -> dict[str, Any]:
    """Returns the scores of each way, and the steps, which are the same."""

    def run(name: str, epochs: float, **more: Any) -> dict[str, Any]:
        config = load_config(path, {**options, "run.name": name, "training.epochs": epochs, **more})
        return scored(config)

    stable = {"scheduler.name": "wsd"}
    end = {**stable, "run.finishes": "stable"}
    cosine = run("cosine", 3 * session, **{"scheduler.name": "cosine"})
    steps = cosine["steps"]
    run("stable", session, **stable)
    run("stable", 2 * session, **stable)
    third = run("third", 2 * session, **end, **{"scheduler.decay_steps": steps - steps * 2 // 3})
    run("stable", 3 * session * 0.8, **stable)
    fifth = run("fifth", 3 * session * 0.8, **end)
    return dict(zip(WAYS, (cosine, third, fifth), strict=True))


def scored(config: Config) -> dict[str, Any]:
    """Trains a run; returns its steps, its metric, and the test's score and loss."""
    summary = launch.train(config)
    metric = summary.best["metric"]
    score = summary.metrics[metric]
    return {
        "steps": summary.step,
        "metric": metric,
        **rounded({"score": score, "loss": summary.test_loss}),
    }


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns for each row the means, the deviation of the cosine over seeds, and the paired differences."""
    tables = {}
    for row in dict.fromkeys(name.rpartition(", seed ")[0] for name in runs):
        seeds = [run for name, run in runs.items() if name.startswith(f"{row}, seed ")]
        scores = {way: np.array([run[way]["score"] for run in seeds]) for way in WAYS}
        metric = seeds[0]["cosine"]["metric"]
        sign = -1 if scoring.better(metric) == "min" else 1
        gains = {way: interval(sign * (scores[way] - scores["cosine"])) for way in WAYS[1:]}
        tables[row] = {
            "metric": metric, "seeds": len(seeds), "steps": seeds[0]["cosine"]["steps"],
            **rounded({way: each.mean() for way, each in scores.items()}),
            "deviation of cosine": round(float(scores["cosine"].std(ddof=1)), 4) if len(seeds) > 1 else None,
            "gain over cosine": gains,
        }  # fmt: skip
    return tables


def interval(gains: np.ndarray) -> list[float]:
    """Returns the mean of paired gains, and Student's interval of 95 % over the seeds; + is better than the cosine."""
    mean = float(gains.mean())
    if len(gains) < 2:
        return [round(mean, 4)]
    half = stats.t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / math.sqrt(len(gains))
    return [round(value, 4) for value in (mean, mean - half, mean + half)]


if __name__ == "__main__":
    measure(RECORD, SESSIONS, "0,1,2,3,4", measured, summed_up, __doc__)
