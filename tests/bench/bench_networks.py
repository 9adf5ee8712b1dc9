"""The example's network for tables beside boosting that is tuned on validation; figures go to records/networks.json.

    python -m tests.bench.bench_networks --rows wine,mpg --seeds 0,1,2    (10 to 60 seconds of one core a seed)

A seed deals the rows, 60, 20 and 20 % to training, validation and test, and draws the network's weights. Both see the
same rows; boosting has 12 settings (digits: 4), each ended by validation, and the best of them by its loss there, with
leaves of 20 rows or more, which is weak on the 107 of wine. The first four tables are scikit-learn's; the others are
read from a checkout of github.com/mwaskom/seaborn-data in the folder that SEABORN_DATA names. Intervals: 500 draws of
the test's rows.
"""

import csv
import os
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets, ensemble, metrics

from tests.bench.bench_chat import cpu_seconds
from tests.bench.record import RECORDS, head, measure, rounded, train

RECORD = RECORDS / "networks.json"
HERE = Path(__file__).parent
PACKAGED = {
    "diabetes": datasets.load_diabetes,
    "wine": datasets.load_wine,
    "cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
}
SEABORN = {"mpg": "mpg", "diamonds": "price", "titanic": "survived", "penguins": "species"}
NUMBERS = ("diabetes", "mpg", "diamonds")
LEFT_OUT = {"mpg": ["name"], "titanic": ["alive", "class", "who", "adult_male", "embark_town"]}
MOST = 12_000  # rows of a table
SETTINGS = {
    "learning_rate": (0.05, 0.1),
    "max_leaf_nodes": (8, 16, 31),
    "l2_regularization": (0, 5),
}
FEWER = {"learning_rate": (0.1,), "max_leaf_nodes": (8, 16), "l2_regularization": (0, 5)}
DRAWS = 500


def table_of(name: str) -> pd.DataFrame:
    """Returns a table whose last column is `target`."""
    if name in PACKAGED:
        table = PACKAGED[name](as_frame=True).frame
        target = "target"
    else:
        target = SEABORN[name]
        table = pd.read_csv(Path(os.environ["SEABORN_DATA"]) / f"{name}.csv")
        table = table.drop(columns=LEFT_OUT.get(name, []))
    targets = table.pop(target)
    if name not in NUMBERS:
        targets = "is " + targets.astype(str)
    table["target"] = targets
    return table.sample(min(len(table), MOST), random_state=0)


def dealt(table: pd.DataFrame, seed: int) -> dict[str, pd.DataFrame]:
    rows = table.sample(frac=1, random_state=seed)
    ends = [round(share * len(rows)) for share in (0, 0.6, 0.8, 1)]
    parts = ("train", "validation", "test")
    return {part: rows[ends[n] : ends[n + 1]] for n, part in enumerate(parts)}


def of_network(name: str, parts: Mapping[str, pd.DataFrame], seed: int, place: Path) -> np.ndarray:
    """Returns the network's answers for the test's rows."""
    for part, rows in parts.items():
        rows.to_csv(place / f"{part}.csv", index=False)
    options: dict[str, Any] = {
        "task": f"{HERE / 'given.py'}:{'Numbers' if name in NUMBERS else 'Names'}",
        "data.dir": place, "workload.features": "[]", "workload.words": "[]", "workload.target": "target",
        "training.start_from_baseline": "false", "seed": seed, "output_dir": place / "runs", "run.name": "run",
    }  # fmt: skip
    if len(parts["train"]) > 5000:
        options["training.effective_batch"] = 128
    train(RECORDS.parents[2] / "trainbook" / "new" / "examples" / "tabular.yaml", options)
    with (place / "runs" / "run" / "answers.csv").open(encoding="utf-8") as file:
        answers = {int(row["sample"]): row["network"] for row in csv.DictReader(file)}
    values = [answers[number] for number in range(len(parts["test"]))]
    return np.array(values, float if name in NUMBERS else object)


def of_boosting(name: str, parts: Mapping[str, pd.DataFrame]) -> np.ndarray:
    """Returns the answers for the test's rows of the setting with the least loss on validation."""
    words = [column for column in parts["train"] if parts["train"][column].dtype.kind not in "if"]
    inputs = {part: rows.drop(columns="target").copy() for part, rows in parts.items()}
    for column in set(words) - {"target"}:
        known = sorted(parts["train"][column].dropna().astype(str).unique())
        for rows in inputs.values():
            codes = pd.Categorical(rows[column].astype(str), known).codes
            rows[column] = np.where(codes < 0, np.nan, codes)
    targets = {part: rows["target"] for part, rows in parts.items()}
    is_number = name in NUMBERS
    cls = (
        ensemble.HistGradientBoostingRegressor
        if is_number
        else ensemble.HistGradientBoostingClassifier
    )
    best = (np.inf, None)
    settings = FEWER if name == "digits" else SETTINGS
    for values in product(*settings.values()):
        model = cls(
            **dict(zip(settings, values, strict=True)),
            max_iter=80 if name == "digits" else 300,
            early_stopping=True, n_iter_no_change=20, random_state=0,
            categorical_features=[column for column in words if column != "target"],
        )  # fmt: skip
        held = (inputs["validation"], targets["validation"])
        model.fit(inputs["train"], targets["train"], X_val=held[0], y_val=held[1])
        if is_number:
            loss = metrics.mean_squared_error(held[1], model.predict(held[0]))
        else:
            shares = model.predict_proba(held[0])
            loss = metrics.log_loss(held[1], shares, labels=model.classes_)
        if loss < best[0]:
            best = (loss, model)
    return best[1].predict(inputs["test"])


def score(name: str, true: np.ndarray, guess: np.ndarray) -> float:
    if name in NUMBERS:
        return float(metrics.root_mean_squared_error(true, guess))
    return float(metrics.f1_score(true, guess, average="macro"))


def measured(name: str, seed: int, place: Path) -> dict[str, Any]:
    """Returns the scores of both, and what the network gains: of errors less, of macro F1 more is a gain."""
    parts = dealt(table_of(name), seed)
    true = parts["test"]["target"].to_numpy()
    before = cpu_seconds()
    network = of_network(name, parts, seed, place)
    seconds = cpu_seconds() - before
    begin = time.process_time()
    boosting = of_boosting(name, parts)
    of_fits = time.process_time() - begin
    sign = -1 if name in NUMBERS else 1
    gains = []
    draw = np.random.default_rng(0)
    for _ in range(DRAWS):
        some = draw.integers(0, len(true), len(true))
        gain = score(name, true[some], network[some]) - score(name, true[some], boosting[some])
        gains.append(sign * gain)
    low, high = np.quantile(gains, (0.025, 0.975))
    scores = {"network": score(name, true, network), "boosting": score(name, true, boosting)}
    gain = sign * (scores["network"] - scores["boosting"])
    figures = {**scores, "gain": gain, "gain, low": float(low), "gain, high": float(high)}
    return {
        **head("torch", "scikit-learn"), "metric": "rmse" if name in NUMBERS else "macro_f1", "rows": len(true) * 5,
        **rounded(figures), "CPU seconds of the run": round(seconds, 1), "of boosting": round(of_fits, 1),
    }  # fmt: skip


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns means over the seeds, and of the gain its standard error, for each table."""
    tables = {}
    for name in (*PACKAGED, *SEABORN):
        seeds = [run for key, run in runs.items() if key.startswith(f"{name},")]
        if not seeds:
            continue
        gains = [run["gain"] for run in seeds]
        error = np.std(gains, ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.nan
        tables[name] = {
            "seeds": len(seeds), "metric": seeds[0]["metric"],
            **rounded({key: float(np.mean([run[key] for run in seeds])) for key in ("network", "boosting", "gain")}),
            "standard error of the gain": None if np.isnan(error) else round(float(error), 4),
            "CPU seconds of the run, mean": round(float(np.mean([run["CPU seconds of the run"] for run in seeds])), 1),
        }  # fmt: skip
    return tables


if __name__ == "__main__":
    measure(RECORD, (*PACKAGED, *SEABORN), "0,1,2", measured, summed_up, __doc__)
