"""Chips of water and land with 12 bands, dealt to five folds by the ground that they share."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from lib.task import load_config, load_task

# 306 chips of 128 x 128 pixels of Landsat and Sentinel-2, harmonised, with elevation, cover and how often there is
# water: data/images/N.tif and data/labels/N.png of github.com/shahed137003/Water-Segmentation-project
CHIPS = Path(os.environ.get("TRAINBOOK_WATER", "/tmp/water-chips"))
FOLDS = 5
CONFIG = """
task: glacier
training: {epochs: 8, effective_batch: 16, micro_batch: 16, evaluate_every_epochs: 4, log_every_steps: 10}
optimizer: {lr: 1.0e-3, weight_decay: 1.0e-4}
workload:
  tiles: {size: 128, stride: 0}
  baseline: {gate: true, pixels: 200000}
  indices: [[green, nir], [green, swir1], [nir, red], [blue, red], [red, swir1]]
  source:
    bands: [coastal, blue, green, red, nir, swir1, swir2, qa, merit, dem, cover, occurrence]
    classes: [land, water]
    codes: [0, 1]
    images: "PLACE/images/{scene}.tif"
    masks: "PLACE/labels/{scene}.png"
  model: {widths: [16, 16, 32, 64, 128], depths: [1, 1, 1, 1], decoder: [64, 32, 16, 16, 16]}
"""


def task_of(fold: int, scratch: Path) -> Any:
    """Returns the task on all chips: fold number `fold` tests, the next one validates, the others train."""
    folder = scratch / "chips"
    plain = _task(CHIPS, "data", scratch)
    tiles = plain.data.store
    groups = plain.data.parts.groups
    of_group = _folds(groups)
    for name, group in zip(tiles.names, groups, strict=True):
        ahead = (of_group[group] - fold) % FOLDS
        part = {0: "test", 1: "validation"}.get(ahead, "train")
        for kind, ending in (("images", "tif"), ("labels", "png")):
            place = folder / part / kind / f"{name}.{ending}"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(CHIPS / "data" / kind / f"{name}.{ending}", place)
    task = _task(folder, "{part}", scratch)
    store = task.data.store
    numbers = [store.names[scene].rpartition("/")[2] for scene in store.table.scene]
    joined = dict(zip(tiles.names, groups.tolist(), strict=True))
    # Of all chips: folders alone do not say which share ground
    task.data.parts = task.data.parts._replace(groups=np.array([joined[name] for name in numbers]))
    return task


def _task(folder: Path, place: str, scratch: Path) -> Any:
    path = scratch / f"{'all' if place == 'data' else 'water'}.yaml"
    path.write_text(CONFIG.lstrip().replace("PLACE", place))
    config = load_config(path, {"data.dir": str(folder), "output_dir": str(scratch / "runs")})
    return load_task(config)


def _folds(groups: np.ndarray) -> dict[str, int]:
    """Deals groups to folds, the largest first, each to the fold with fewest chips."""
    names, counts = np.unique(groups, return_counts=True)
    sizes = np.zeros(FOLDS)
    fold = {}
    for place in np.argsort(-counts, kind="stable"):
        least = int(sizes.argmin())
        fold[names[place]] = least
        sizes[least] += counts[place]
    return fold
