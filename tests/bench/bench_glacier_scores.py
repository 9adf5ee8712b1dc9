"""What glacier's presets reach of all classes, lakes too, beside boosting; figures go to records/glacier_scores.json.

    python -m tests.bench.bench_glacier_scores                            every row, three seeds
    python -m tests.bench.bench_glacier_scores --rows rare --seeds 0      one of them

Rows `rare` and `origin` are generated scenes. Lakes are 0.13 % of their pixels, 429 pixels in the eight scenes of
validation and test. Both presets start from one short pretraining of 10 epochs and show the network 28 million pixels,
in fold 0; a run is about 5 minutes of a core. Scored is one view of the tiles of validation and test, pooled, and the
test alone, by the network alone and by the run's answer, which has a gate. The weights are those of the best
validation, and the gate is set there, so the test alone is what nothing was chosen by. Gains are paired by scene.

Row `liligo` is a real glacier of the shared data (Karakoram, 480 x 346 pixels, masks from Landsat 5): ice,
debris and firn by elevation, temperature, radiation and precipitation, where the mask has one of them. Row `landsat` is
a real scene of Landsat 8 there (627 x 603 pixels): land, water and cloud as the sensor's own quality band has them.
Gains are paired by square of the map, and there are few of them.
"""

import itertools
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch

from lib.task import load_config, load_task
from lib.training.evaluation import EvaluationLoader
from tests.bench.record import RECORDS, head, measure, rounded, train
from trainbook.launch import ensemble
from workloads.glacier import baselines
from workloads.glacier.judging import judged, scores_of, sums_of, tile_counts

ROOT = Path(__file__).resolve().parents[2]
RECORD = RECORDS / "glacier_scores.json"
ROWS = {
    "rare": "glacier_rare_small",
    "origin": "glacier_finetune_small",
    "liligo": "",
    "landsat": "",
}
SHARED = Path(os.environ.get("TRAINBOOK_DATA", ROOT.parent / "shared" / "data"))
REAL = """
task: glacier
training: {epochs: 60, effective_batch: 16, micro_batch: 16, evaluate_every_epochs: 2, log_every_steps: 10}
optimizer: {lr: 1.0e-3, weight_decay: 1.0e-4}
scheduler: {name: plateau, patience: 5, min_lr: 1.0e-6}
workload:
  split: {by: map, square: 2, validation: 0.15, test: 0.15}
  baseline: {gate: true}
  model: {widths: [16, 16, 32, 64, 128], depths: [1, 1, 1, 1], decoder: [64, 32, 16, 16, 16]}
"""
# Outside the glacier all bands are missing, which would give the class 0 away
LILIGO = """
  tiles: {size: 32, stride: 0}
  source:
    bands: [elevation, temperature, radiation, air, precipitation]
    band_files: [Band1_srtm_dem_30m, Band2_lst_30m_hourly, Band3_netRad_30m_daily, Band4_airTemperature_30m_daily,
                 Band5_precip_30m_daily]
    images: "{band}.tif"
    masks: mask_0_85_170_255.tif
    classes: [ice, debris, firn]
    codes: [85, 170, 255]
    ignored_codes: [0]
"""
LANDSAT = """
  tiles: {size: 64, stride: 0}
  indices: [[green, nir], [green, swir1], [nir, red], [blue, red], [red, swir1]]
  source:
    bands: [blue, green, red, nir, swir1, thermal, swir2]
    band_files: [B2, B3, B4, B5, B6, B10, B7]
    images: "l8_{band}.tif"
    masks: mask.tif
    classes: [land, water, cloud]
    codes: [0, 1, 2]
"""
PARTS = {"validation and test": ("validation", "test"), "test": ("test",)}


def shipped(row: str) -> Path:
    return ROOT / "configs" / f"{ROWS[row]}.yaml"


def of_real(row: str, scratch: Path) -> tuple[Path, Path]:
    """Writes the configuration of a real scene; returns it and the folder of the data, with a mask if that has none."""
    path = scratch / f"{row}.yaml"
    data = SHARED / "glacier_liligo"
    path.write_text(REAL.lstrip() + (LILIGO if row == "liligo" else LANDSAT).lstrip("\n"))
    if row == "landsat":
        data = scratch / "landsat"
        data.mkdir(exist_ok=True)
        for band in (SHARED / "landsat8_bqa").glob("*.tif"):
            shutil.copy(band, data)
        with rasterio.open(data / "l8_BQA.tif") as file:
            quality = file.read(1)
            profile = file.profile
        mask = np.where(
            (quality >> 14 & 3) >= 2, 2, (quality >> 4 & 3) >= 2
        )  # two bits each: sure from 2
        with rasterio.open(
            data / "mask.tif", "w", **{**profile, "dtype": "uint8", "nodata": None}
        ) as file:
            file.write(mask.astype(np.uint8), 1)
    return path, data


def trained(row: str, seed: int, scratch: Path) -> Path:
    """Trains a row, generated scenes from weights that are pretrained first; returns the folder of the run."""
    options = {"seed": seed, "run.name": row, "output_dir": scratch}
    if not ROWS[row]:
        path, data = of_real(row, scratch)
        train(path, {**options, "data.dir": data})
    else:
        before = load_config(shipped("origin")).queue.before_overrides
        pretraining = {
            **before,
            "run.name": "pretrained",
            "output_dir": scratch.parent,
        }  # which all runs share
        train(ROOT / "configs" / "glacier_pretrain_small.yaml", pretraining)
        alone = {
            "folds": 0,
            "queue.before": "[]",
            "queue.start_from": "",
            "data.dir": "embedded",
        }
        train(
            shipped(row), {**options, **alone, "run.initial_weights": scratch.parent / "pretrained"}
        )
    return scratch / row


def measured(row: str, seed: int, scratch: Path) -> dict[str, Any]:
    """Returns what a run reached on both parts, and its gains over each baseline."""
    begin = time.perf_counter()
    folder = trained(row, seed, scratch)
    found: dict[str, Any] = {
        **head("torch", "scikit-learn"),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    task, (model,) = ensemble.load(folder)
    task.source = (
        None if ROWS[row] else of_real(row, scratch)[1]
    )  # a model is loaded without what it was trained on
    side = task.settings.sampling.crop or task.settings.tiles.size
    steps = json.loads((folder / "summary.json").read_text())["step"]
    found["pixels"] = steps * task.config.training.effective_batch * side**2
    found["squares or scenes"] = {
        part: len(set(units_of(task, part))) for part in ("validation", "test")
    }
    names = task.settings.source.classes
    parts = PARTS if ROWS[row] else {"test": PARTS["test"]}
    counts = {part: counts_of(task, model, part) for part in ("validation", "test")}
    found["share of the network"] = round(float(model.boosted.weight), 2)
    other = boosted(row, seed, scratch)
    for name, joined in parts.items():
        own = {
            name: np.concatenate([counts[part][name] for part in joined])
            for name in ("network", "answer")
        }
        units = [unit for part in joined for unit in units_of(task, part)]
        methods = {
            method: np.concatenate([other[method][part] for part in joined]) for method in other
        }
        found[name] = {method: shown(matrices, names) for method, matrices in own.items()}
        rows = {method: judged(reference) for method, reference in methods.items()}
        for method, reference in methods.items():
            answers = {name: judged(counts_of_tiles) for name, counts_of_tiles in own.items()}
            gains = task._compared({method: rows[method], **answers}, method, units).gains
            above = {
                f"{n} above, {key}": one.signed
                for n in own
                for key, one in zip(task.metrics, gains[n], strict=True)
            }
            found[name][method] = {**shown(reference, names), **above}
        found[name]["strongest"] = task._strongest(rows)
    return found


def counts_of(task: Any, model: Any, part: str) -> dict[str, np.ndarray]:
    """(tiles, classes, classes) of one view of each tile of a part: by the network alone, and by what a run answers."""
    tiles = task.datasets()[part]
    found = {"network": [], "answer": []}
    with torch.inference_mode():
        for batch in EvaluationLoader(task, tiles, 16, torch.device("cpu")):
            network = model(batch["image"]).log_softmax(1)
            for name, scores in (
                ("network", network),
                ("answer", model.boosted.answer(batch["image"], network)),
            ):
                counts = tile_counts(scores.argmax(1), batch["labels"], len(task.classes))
                found[name].append(counts)
    return {name: np.concatenate(counts) for name, counts in found.items()}


def boosted(row: str, seed: int, scratch: Path) -> dict[str, dict[str, np.ndarray]]:
    """Returns (tiles, classes, classes) of each baseline by part; it sees the indices of the rare preset."""
    path, data = (shipped("rare"), "embedded") if ROWS[row] else of_real(row, scratch)
    task: Any = load_task(load_config(path, {"data.dir": str(data)}))
    classes = len(task.settings.source.classes)
    places = task.settings.boosted_places
    bounds = task.settings.baseline
    methods = baselines.fit(task.data.whole_tiles, seed, places, bounds.pixels, bounds.rounds)
    found: dict[str, dict[str, np.ndarray]] = {}
    for part in ("validation", "test"):
        tiles = task.datasets()[part].samples
        for method, answers in baselines.compared(methods, tiles, classes, seed, places).items():
            counts = np.zeros((len(tiles), classes, classes), np.int64)
            np.add.at(counts, (answers.sample, answers.true, answers.guess), answers.counts)
            found.setdefault(method, {})[part] = counts
    return found


def units_of(task: Any, part: str) -> list[Any]:
    return task.datasets()[part].samples.groups


def shown(counts: np.ndarray, classes: Sequence[str]) -> dict[str, float]:
    scores = scores_of(sums_of(counts.sum(0)), classes)
    return rounded(
        {
            name: scores.get(name, 0.0)
            for name in ("mcc", "mean_iou", *(f"iou_{cls}" for cls in classes))
        }
    )


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the mean and the least over seeds of each row and of the baselines beside it."""
    tables: dict[str, Any] = {}
    for row, part in itertools.product(ROWS, PARTS):
        own = [
            run[part] for name, run in runs.items() if name.startswith(f"{row}, ") and part in run
        ]
        for method in own[0] if own else ():
            if method != "strongest":
                names = [name for name, value in own[0][method].items() if isinstance(value, float)]
                values = [[run[method][name] for name in names] for run in own if method in run]
                mean = dict(zip(names, np.mean(values, 0).round(4).tolist(), strict=True))
                least = dict(zip(names, np.min(values, 0).tolist(), strict=True))
                tables[f"{row}, {part}, {method}"] = {
                    "seeds": len(values),
                    "mean": mean,
                    "least": least,
                }
    return tables


if __name__ == "__main__":
    measure(RECORD, ROWS, "0,1,2", measured, summed_up, __doc__)
