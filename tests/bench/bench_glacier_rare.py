"""What the preset for rare classes finds of lakes, beside the origin's and boosting; to records/glacier_rare.json.

    python -m tests.bench.bench_glacier_rare                            both presets, three seeds
    python -m tests.bench.bench_glacier_rare --rows rare --seeds 0      one of them

Generated scenes: lakes are 0.13 % of the pixels, 429 pixels in the eight scenes of validation and test. Both presets
start from one short pretraining of 10 epochs and show the network 28 million pixels, in fold 0; a run is 2 to 5 minutes
of a core. Scored is one view of the tiles of validation and test, pooled and the test alone. The weights are those of
the best validation, so the test alone is what nothing was chosen by. Gains are paired by scene.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.launch import ensemble
from lib.scores import scores_of
from lib.task import load_config, load_task
from lib.tasks.glacier import baselines
from lib.tasks.glacier.judging import gains, strongest, tile_counts
from lib.training.evaluation import EvaluationLoader
from tests.bench.record import RECORDS, add_run, head

ROOT = Path(__file__).resolve().parents[2]
RECORD = RECORDS / "glacier_rare.json"
ROWS = {"rare": "glacier_rare_small", "origin": "glacier_finetune_small"}
PARTS = ("validation", "test")
SHOWN = ("mcc", "mean_iou", "iou_background", "iou_glacier", "iou_debris", "iou_lake")


def train(config: str, options: Mapping[str, object]) -> None:
    """Trains in a fresh process; one that was killed resumes."""
    parts = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    subprocess.run([sys.executable, "-m", "lib", "train", f"configs/{config}.yaml", *parts], cwd=ROOT, check=True)


def pretrained(scratch: Path) -> Path:
    options = load_config(ROOT / "configs" / f"{ROWS['origin']}.yaml").queue.before_overrides
    name = "pretrained"
    train("glacier_pretrain_small", {**options, "run.name": name, "output_dir": scratch})
    return scratch / name


def trained(row: str, seed: int, scratch: Path) -> Path:
    name = f"{row}-{seed}"
    alone = {"queue.folds": 0, "queue.before": "[]", "queue.start_from": ""}
    options = {"seed": seed, "data.dir": "embedded", "run.initial_weights": pretrained(scratch)}
    train(ROWS[row], {**alone, **options, "run.name": name, "output_dir": scratch})
    return scratch / name


def measured(row: str, seed: int, scratch: Path) -> dict[str, Any]:
    """Returns what a run reached on both parts, and its gains over each baseline."""
    begin = time.perf_counter()
    folder = trained(row, seed, scratch)
    found: dict[str, Any] = {**head("torch", "scikit-learn"), "seconds": round(time.perf_counter() - begin, 1)}
    task, (model,) = ensemble.load(folder)
    found["pixels"] = pixels(task)
    counts = {part: counts_of(task, model, part) for part in PARTS}
    other = boosted(seed)
    for name, parts in (("validation and test", PARTS), ("test", PARTS[1:])):
        own = np.concatenate([counts[part] for part in parts])
        units = [unit for part in parts for unit in units_of(task, part)]
        methods = {method: np.concatenate([other[method][part] for part in parts]) for method in other}
        found[name] = {"network": shown(own)}
        for method, reference in methods.items():
            gain = {measure: one.signed for measure, one in gains(own, reference, units).items()}
            found[name][method] = {**shown(reference), **{f"network above, {key}": one for key, one in gain.items()}}
        found[name]["strongest"] = strongest(methods)
    return found


def pixels(task: Any) -> int:
    """Returns how many pixels the training showed."""
    task.source = None
    side = task.settings.sampling.crop or task.settings.tiles.size
    return round(task.config.training.epochs * len(task.datasets()["train"]) * side**2)


def counts_of(task: Any, model: torch.nn.Module, part: str) -> np.ndarray:
    """(tiles, classes, classes) of one view of each tile of a part."""
    tiles, found = task.datasets()[part], []
    with torch.inference_mode():
        for batch in EvaluationLoader(task, tiles, 16, torch.device("cpu")):
            guess = model(batch["image"]).argmax(1)
            found.append(tile_counts(guess, batch["target"], len(task.settings.source.classes)).numpy())
    return np.concatenate(found)


@cache
def boosted(seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Returns (tiles, classes, classes) of each baseline by part; it sees the indices of the rare preset."""
    task: Any = load_task(load_config(ROOT / "configs" / f"{ROWS['rare']}.yaml", {"data.dir": "embedded"}))
    classes, places = task.settings.source.classes, task.settings.index_places
    found: dict[str, dict[str, np.ndarray]] = {}
    for part in PARTS:
        tiles = task.datasets()[part]
        bounds = task.settings.baseline
        compared = baselines.compared(
            task.data.whole_tiles, tiles, len(classes), seed, places, pixels=bounds.pixels, rounds=bounds.rounds
        )
        for method, counts in compared.items():
            found.setdefault(method, {})[part] = counts
    return found


def units_of(task: Any, part: str) -> list[Any]:
    return task.data.parts.groups[task.datasets()[part].chosen].tolist()


def shown(counts: np.ndarray) -> dict[str, float]:
    names = ("background", "glacier", "debris", "lake")
    scores = scores_of(counts.sum(0), names)
    return {name: round(scores.get(name, 0.0), 4) for name in SHOWN}


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the mean and the least over seeds of each row and of the baselines beside it."""
    tables: dict[str, Any] = {}
    for row in ROWS:
        own = [run for name, run in runs.items() if name.startswith(f"{row}, ")]
        for part in ("validation and test", "test"):
            for method in own[0][part] if own else ():
                if method != "strongest":
                    values = [[run[part][method][name] for name in SHOWN] for run in own]
                    mean = dict(zip(SHOWN, np.mean(values, 0).round(4).tolist(), strict=True))
                    least = dict(zip(SHOWN, np.min(values, 0).tolist(), strict=True))
                    tables[f"{row}, {part}, {method}"] = {"seeds": len(own), "mean": mean, "least": least}
    return tables


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS), type=lambda text: text.split(","))
    parser.add_argument("--seeds", default="0,1,2", type=lambda text: [int(one) for one in text.split(",")])
    parser.add_argument("--scratch", default=Path(tempfile.gettempdir()) / "trainbook-bench-rare", type=Path)
    options = parser.parse_args(arguments)
    if unknown := set(options.rows) - ROWS.keys():
        raise SystemExit(f"There are no rows {sorted(unknown)}. Known are {list(ROWS)}.")
    for row in options.rows:
        for seed in options.seeds:
            run = measured(row, seed, options.scratch)
            add_run(RECORD, f"{row}, seed {seed}", run, summed_up, "torch", "scikit-learn")
            print(f"{row}, seed {seed}", json.dumps(run, indent=1), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
