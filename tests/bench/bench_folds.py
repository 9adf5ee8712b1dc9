"""Five folds of the example of tables, averaged, beside single folds and AutoGluon; figures go to records/folds.json.

    TABLES=folder python -m tests.bench.bench_folds --rows wine,cars --seeds 0    (a minute of one core a seed)

A seed holds out 30 % of the rows, which no fold sees. On them the mean answer of the folds is compared with the mean
score of single folds, over 1,000 draws of the rows, and with what the folds expected. AUTOGLUON names a Python with
autogluon.tabular, whose preset "medium" gets the same seconds of the clock. The first four tables are scikit-learn's;
the others lie in the folder TABLES as CSV with a column `target`: cars and seattle-weather of vega_datasets, penguins
of palmerpenguins, anes96 (vote), randhie (mdvis) and fair (rate_marriage) of statsmodels, of each at most 2,000 rows.
"""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets, metrics

from tests.bench.bench_chat import cpu_seconds
from tests.bench.record import RECORDS, head, measure, rounded, train
from trainbook.launch import ensemble
from trainbook.supervised import expected

RECORD = RECORDS / "folds.json"
EXAMPLE = RECORDS.parents[2] / "trainbook" / "new" / "examples" / "tabular"
PACKAGED = {
    "diabetes": datasets.load_diabetes,
    "wine": datasets.load_wine,
    "cancer": datasets.load_breast_cancer,
    "iris": datasets.load_iris,
}
OTHERS = ("cars", "weather", "penguins", "anes96", "randhie", "fair")
NUMBERS = ("diabetes", "cars", "randhie")
FOLDS = 5
DRAWS = 1000
PEER = """
import sys
import pandas as pd
from autogluon.tabular import TabularPredictor

folder, kind, metric, seconds = sys.argv[1:]
predictor = TabularPredictor("target", problem_type=kind or None, eval_metric=metric, path=f"{folder}/ag", verbosity=0)
predictor.fit(pd.read_csv(f"{folder}/train.csv"), presets="medium", time_limit=float(seconds))
answers = predictor.predict(pd.read_csv(f"{folder}/test.csv").drop(columns="target"))
answers.to_csv(f"{folder}/peer.csv", index=False)
"""


def table_of(name: str) -> pd.DataFrame:
    """Returns a table with a column `target`, whose classes are words."""
    if name in PACKAGED:
        table = PACKAGED[name](as_frame=True).frame
    else:
        table = pd.read_csv(Path(os.environ["TABLES"]) / f"{name}.csv")
    if name not in NUMBERS:
        table["target"] = "is " + table["target"].astype(str)
    return table


def score(name: str, true: np.ndarray, guess: np.ndarray) -> float:
    if name in NUMBERS:
        return float(metrics.root_mean_squared_error(true, guess))
    return float(metrics.f1_score(true, guess, average="macro"))


def answers_of(runs: Path, name: str, test: Path, number: bool) -> np.ndarray:
    """Returns the answers of a run, or of a queue's runs together."""
    found = [path for path in sorted(runs.glob("*-fold*")) if name in ("", path.name)]
    task, models = ensemble.load_members(found, trusted=True, name="")
    rows = task.predict(models, test, None).values()
    return np.array([row["prediction"] for row in rows], float if number else object)


def of_peer(name: str, place: Path, seconds: float) -> np.ndarray | None:
    """Returns AutoGluon's answers within these seconds; None without it."""
    python = os.environ.get("AUTOGLUON")
    if not python:
        return None
    kind, metric = ("regression", "rmse") if name in NUMBERS else ("", "f1_macro")
    command = [python, "-c", PEER, str(place), kind, metric, str(seconds)]
    subprocess.run(command, check=True)
    return pd.read_csv(place / "peer.csv").iloc[:, 0].to_numpy()


def measured(name: str, seed: int, place: Path) -> dict[str, Any]:
    """Returns the scores on held-out rows; of the gain over single folds, + is better."""
    is_number = name in NUMBERS
    rows = table_of(name).sample(frac=1, random_state=seed)
    border = round(0.7 * len(rows))
    data = place / "data"
    data.mkdir(parents=True, exist_ok=True)
    for folder in (data, place):
        rows[:border].to_csv(folder / "train.csv", index=False)
    rows[border:].to_csv(place / "test.csv", index=False)
    options: dict[str, Any] = {
        "task": f"{EXAMPLE}.py:{'Tabular' if is_number else 'Classes'}", "data.dir": data, "folds": FOLDS,
        "workload.features": "[]", "workload.words": "[]", "workload.target": "target",
        "output_dir": place / "runs", "run.name": name, "seed": seed,
    }  # fmt: skip
    before = cpu_seconds()
    begin = time.monotonic()
    train(f"{EXAMPLE}.yaml", options)
    seconds = time.monotonic() - begin
    used = cpu_seconds() - before
    true = rows[border:]["target"].to_numpy()
    names = ["", *(f"{name}-fold{fold}" for fold in range(FOLDS))]
    runs = place / "runs"
    together, *singles = (answers_of(runs, each, place / "test.csv", is_number) for each in names)
    peer = of_peer(name, place, seconds)
    sign = -1 if is_number else 1

    def gain(places: np.ndarray) -> float:
        single = np.mean([score(name, true[places], each[places]) for each in singles])
        return sign * (score(name, true[places], together[places]) - single)

    draw = np.random.default_rng(0)
    drawn = [gain(draw.integers(0, len(true), len(true))) for _ in range(DRAWS)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    hoped = expected.read(runs / f"{name}-together")
    figures = {
        "together": score(name, true, together),
        "single, mean": float(np.mean([score(name, true, each) for each in singles])),
        "gain": gain(np.arange(len(true))), "gain, low": float(low), "gain, high": float(high),
        "expected": hoped.value, "expected, low": hoped.low, "expected, high": hoped.high,
        "share of the networks": hoped.share,
    }  # fmt: skip
    if peer is not None:
        figures["AutoGluon"] = score(name, true, peer)
    return {
        **head("torch", "scikit-learn"), "metric": "rmse" if is_number else "macro_f1", "rows": len(rows),
        **rounded(figures), "CPU seconds": round(used, 1), "seconds": round(seconds, 1),
    }  # fmt: skip


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns means over the seeds for each table."""
    tables = {}
    for name in (*PACKAGED, *OTHERS):
        seeds = [run for key, run in runs.items() if key.startswith(f"{name},")]
        if not seeds:
            continue
        keys = ["together", "single, mean", "gain", "expected"]
        keys += ["AutoGluon"] * all("AutoGluon" in run for run in seeds)
        tables[name] = {
            "seeds": len(seeds), "metric": seeds[0]["metric"],
            **rounded({key: float(np.mean([run[key] for run in seeds])) for key in keys}),
            "seeds surely below single folds": sum(run["gain, high"] < 0 for run in seeds),
            "seeds surely above": sum(run["gain, low"] > 0 for run in seeds),
            "seeds in the expected interval": sum(
                run["expected, low"] <= run["together"] <= run["expected, high"] for run in seeds
            ),
        }  # fmt: skip
    return tables


if __name__ == "__main__":
    measure(RECORD, (*PACKAGED, *OTHERS), "0,1,2", measured, summed_up, __doc__)
