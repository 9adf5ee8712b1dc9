"""The examples of `new` on data that nobody tuned them to; figures go to records/answers.json.

    ANSWERS_DATA=FOLDER python -m tests.bench.bench_answers                    (two runs a row and seed, 1 to 4 minutes)
    ANSWERS_DATA=FOLDER python -m tests.bench.bench_answers --rows wine,mpg --seeds 0

A row is a set of tests/bench/sets.py, which says what FOLDER holds. Each example trains with its own configuration,
once from its simple method, which is the default, and once alone. Beside them is what a sensible person takes, tuned on
the training samples (sensible.py). Seed 0 has the split of the run, other seeds deal the groups anew. All is of the
test, paired by its groups. In further rows the targets are shuffled, and the gate should be shut. Of errors, what a
method has less is its gain, as a share of the other's.
"""

import hashlib
import random
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save
from torch.nn import functional as F

from lib.task import find_task, load_config
from tests.bench import sensible, sets
from tests.bench.record import RECORDS, head, measure, rounded
from trainbook import launch, new
from trainbook.supervised import calibration, gate, scoring, simple
from trainbook.supervised.samples import PARTS, target_of, with_target
from trainbook.supervised.scoring import Judged

RECORD = RECORDS / "answers.json"
SHUFFLED = " with shuffled targets"
ROWS = (
    *sets.NAMES,
    *(f"{name}{SHUFFLED}" for name in ("wine", "diabetes", "mpg", "penguins", "reviews")),
)
HELD_OUT = 0.15  # of the groups, for validation and for the test
_CLOSE = 0.005  # of a score, and of the size of an error
_NEAR = 0.01
# What LinearSVC reaches on tags and on texts, tuned by folds, on the split of seed 0
PRINTED = {"ParTUT": 0.944, "WNUT17": 0.291, "TREC": 0.863}


def trained(config: Any) -> dict[str, Any]:
    """Trains; returns the scores of each method, the strongest, what is said of the answer, and the weights' hash."""
    begin = time.process_time()
    summary = launch.train(config)
    seconds = time.process_time() - begin
    folder = Path(config.output_dir) / config.run.name
    table = pd.read_csv(folder / "evaluation.csv").set_index("method")
    metric = str(table.columns[0])
    lows = table[f"gain_{metric}_low"]
    strongest = re.search(rf"{metric} (?:above|less than) '(.+?)'", summary.report)
    assert strongest
    return {
        "metric": metric,
        "scores": rounded(table[metric].to_dict()),
        "strongest": strongest[1],
        "surely gains": bool(lows.get("network", -1) > 0),
        "verdict": _verdict(summary.report),
        "weights": _hash(folder),
        "seconds": round(seconds, 1),
    }


def _verdict(report: str) -> str:
    """Returns the sentences on the answer and its probabilities."""
    begin = report.index("In brackets: ")
    lines = report[begin:].split("\n\n")[0].splitlines()
    return " ".join(lines[1:])


def _hash(folder: Path) -> str:
    """Returns that of the network's best weights, without what a validation fits beside them."""
    (path,) = folder.glob("best/*/model.safetensors")
    beside = {simple.GATE, gate.LEAD, calibration.POWERS}
    tensors = {name: each for name, each in load_file(path).items() if name not in beside}
    return hashlib.sha256(save(tensors)).hexdigest()[:16]


def dealt(cls: Any, seed: int, shuffles: bool) -> Callable[[Any, Path], dict[str, list[Any]]]:
    """Returns the `read` of a task class; of another seed than 0 the groups are dealt anew.

    `shuffles`: the targets are dealt among the samples of each part, so that nothing can be learned.
    """
    read = cls.read

    def shuffled(task: Any, source: Path) -> dict[str, list[Any]]:
        draw = random.Random(seed)
        parts = anew(task, source)
        for part, rows in parts.items():
            targets = draw.sample([target_of(row) for row in rows], len(rows))
            parts[part] = [*map(with_target, rows, targets)]
        return parts

    def anew(task: Any, source: Path) -> dict[str, list[Any]]:
        parts = read(task, source)
        if not seed:
            return parts
        samples = [sample for part in PARTS for sample in parts[part]]
        groups = [task.group(sample) for sample in samples]
        names = [number if group is None else group for number, group in enumerate(groups)]
        _, unit = np.unique(np.array([str(name) for name in names]), return_inverse=True)
        place = np.random.default_rng(seed).permutation(unit.max() + 1)[unit] / (unit.max() + 1)
        dealt_to = np.digitize(place, [HELD_OUT, 2 * HELD_OUT])
        order = ("test", "validation", "train")
        return {
            part: [
                sample for sample, to in zip(samples, dealt_to, strict=True) if order[to] == part
            ]
            for part in PARTS
        }

    return shuffled if shuffles else anew


def measured(row: str, seed: int, place: Path) -> dict[str, Any]:
    """Returns the figures of both runs, and of what a sensible person takes; of shuffled targets those of one run."""
    torch.set_num_threads(1)
    name = row.removesuffix(SHUFFLED)
    is_shuffled = name != row
    shutil.rmtree(place)
    place.mkdir()
    data = place / "data"
    written = sets.write(name, data)
    new.write("my", written.example, place)
    shutil.rmtree(place / "my_data")
    data.rename(place / "my_data")
    runs = {}
    beside: dict[str, Any] = {}
    for key in ("started",) if is_shuffled else ("started", "alone"):
        options = {
            **written.options, "seed": seed, "output_dir": str(place / "runs"), "run.name": key,
            "data.num_workers": 0, "training.start_from_baseline": key == "started",
        }  # fmt: skip
        if str(options.get("task", "")).startswith("my_task"):
            options["task"] = f"{place}/{options['task']}"
        config = load_config(place / "my.yaml", options)
        cls = find_task(config.task)
        read = cls.read
        cls.read = dealt(cls, seed, is_shuffled)
        try:
            runs[key] = trained(config)
            if key == "alone":
                beside = _beside(written.example, runs[key]["metric"], config)
        finally:
            cls.read = read
    shutil.rmtree(place / "runs")
    return {**head("torch", "scikit-learn"), "example": written.example, **runs, **beside}


def _beside(example: str, metric: str, config: Any) -> dict[str, Any]:
    """Returns the scores of the sensible person's methods, and the one that folds choose; nothing for tags."""
    from lib.task import load_task

    task = load_task(config)
    task.datasets()
    parts = {part: [*task.parts[part].samples] for part in ("train", "test")}
    if example == "tokens":
        return {}
    targets = {part: [target_of(sample) for sample in rows] for part, rows in parts.items()}
    begin = time.process_time()
    if example == "tabular":
        tables = [
            pd.DataFrame([row for row, _ in rows]).apply(_numbers).assign(target=targets[part])
            for part, rows in parts.items()
        ]
        found = sensible.of_tables(metric, *tables)
    elif example == "images":
        arrays = [_pixels(task, rows) for rows in parts.values()]
        found = sensible.of_pictures(metric, arrays[0], targets["train"], arrays[1])
    else:
        texts = [[text for _, text, _ in rows] for rows in parts.values()]
        found = sensible.of_texts(metric, texts[0], targets["train"], texts[1])
    scores = {name: _score(metric, targets["test"], best.guess) for name, best in found.items()}
    return {
        "sensible": {"scores": rounded(scores), "chosen": max(found, key=lambda key: found[key].score)},
        "seconds of the sensible": round(time.process_time() - begin, 1),
    }  # fmt: skip


def _numbers(column: pd.Series) -> pd.Series:
    """Returns a column of numbers, if its cells are; gaps are NaN."""
    numbers = pd.to_numeric(column, errors="coerce")
    is_gap = column.isna() | (column.astype(str) == "")
    return column if (numbers.isna() & ~is_gap).any() else numbers


def _pixels(task: Any, rows: list[Any]) -> np.ndarray:
    """Returns (pictures, pixels) of pictures that are scaled to 8 x 8."""
    batch = task.batch([(image, 0) for image, _ in rows], training=False)
    return F.adaptive_avg_pool2d(batch["pixel_values"], 8).flatten(1).numpy()


def _score(metric: str, true: list[Any], guess: np.ndarray) -> float:
    if metric == "rmse":
        judged = Judged(np.array(true, float), np.asarray(guess, float))
    else:
        names = sorted({*map(str, true), *map(str, guess)})
        number = {name: place for place, name in enumerate(names)}
        pair = [np.array([number[str(each)] for each in values]) for values in (true, guess)]
        judged = Judged(*pair)
    return float(scoring.scores([metric], judged)[metric])


def gained(metric: str, one: float, other: float) -> float:
    """Returns by how much a score is better than another; of errors it is a share."""
    return (other - one) / other if scoring.better(metric) == "min" else one - other


def promises(run: Mapping[str, Any]) -> dict[str, bool]:
    """Tells which promises a run keeps; those without a meaning for it are left out."""
    started = run["started"]
    metric = started["metric"]
    scores = started["scores"]
    answer, network = scores["answer"], scores["network"]
    printed = scores[started["strongest"]]
    if "alone" not in run:
        return {"gate shut on shuffled targets": "The gate is shut" in started["verdict"]}
    alone = run["alone"]
    found = {
        "answer not below the strongest": gained(metric, answer, printed) >= -_CLOSE,
        "network as without the key": started["weights"] == alone["weights"],
        "its row too": network == alone["scores"]["network"],
    }
    if started["surely gains"]:
        found["answer not below a network that surely gains"] = (
            gained(metric, answer, network) >= -_CLOSE
        )
    return found


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns how often each promise is kept, by which runs it is broken, and means over the seeds of each set."""
    kept: dict[str, list[bool]] = {}
    broken: dict[str, list[str]] = {}
    for key, run in runs.items():
        for promise, holds in promises(run).items():
            kept.setdefault(promise, []).append(holds)
            if not holds:
                broken.setdefault(promise, []).append(key)
    tables = {}
    for name in sets.NAMES:
        seeds = [runs[key] for key in sorted(runs) if key.rpartition(",")[0] == name]
        if seeds:
            tables[name] = _means(name, seeds)
    held = {promise: f"{sum(each)} of {len(each)}" for promise, each in kept.items()}
    near = [row["near"] for row in tables.values() if "near" in row]
    held["printed strongest of a set near the others' best"] = f"{sum(near)} of {len(near)}"
    return {"promises": held, "broken by": broken, "means": tables}


def _means(name: str, seeds: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the means of a set; of tables the network's gain over boosting, with its standard error."""
    metric = seeds[0]["started"]["metric"]
    table = pd.DataFrame([_figures(run) for run in seeds])
    means = table.mean()
    found: dict[str, Any] = {"seeds": len(seeds), "metric": metric, **rounded(means.to_dict())}
    if name in PRINTED:
        beside = table["strongest"][0], PRINTED[name]
        found |= {"strongest of seed 0": round(float(beside[0]), 4)}
    else:
        beside = means["strongest"], means["sensible"]
    found |= {"others' best": round(float(beside[1]), 4)}
    found["near"] = bool(gained(metric, *beside) >= -_NEAR)
    if "tuned boosting" in table:
        sign = -1 if scoring.better(metric) == "min" else 1
        gains = sign * (table["network alone"] - table["tuned boosting"])
        error = gains.sem() if len(gains) > 1 else 0.0
        found |= rounded({"network's gain over boosting": gains.mean(), "its error": error})
    seconds = [run["started"]["seconds"] for run in seeds]
    return {**found, "CPU seconds of a run, mean": round(float(np.mean(seconds)), 1)}


def _figures(run: Mapping[str, Any]) -> dict[str, float]:
    started = run["started"]
    scores = started["scores"]
    found = {
        "strongest": scores[started["strongest"]],
        "answer": scores["answer"],
        "network": scores["network"],
        "network alone": run["alone"]["scores"]["network"],
    }
    if "sensible" in run:
        others = run["sensible"]["scores"]
        found["sensible"] = others[run["sensible"]["chosen"]]
        if "boosting" in others:
            found["tuned boosting"] = others["boosting"]
    return found


if __name__ == "__main__":
    measure(RECORD, ROWS, "0,1,2", measured, summed_up, __doc__)
