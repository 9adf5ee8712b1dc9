"""The configuration of a tiny network on small scenes."""

import numpy as np
import pytest

from lib.task import find_task, load_config
from tests.workloads.glacier.files import write_scenes
from workloads import glacier
from workloads.glacier import judging
from workloads.glacier.settings import IGNORE

TINY = """
task: glacier
data: {num_workers: 0}
training: {max_steps: 6, effective_batch: 6, micro_batch: 3, log_every_steps: 2, evaluate_every_steps: 2}
scheduler: {name: plateau, patience: 0}
checkpoint: {every_minutes: 0, every_steps: 2}
workload:
  source: {bands: [red, nir]}
  tiles: {size: 32, stride: 16}
  split: {validation: 0.3, test: 0.2}
  sampling: {target_shares: [0.1, 0.35, 0.4, 0.15]}
  model: {widths: [4, 4, 4, 4, 4], depths: [1, 1, 1, 1], decoder: [4, 4, 4, 4, 4]}
  loss: {focal: 0.25, dice: 0.25, mcc: 0.35, boundary: 0.15, ramp_steps: 4}
  baseline: {pixels: 2000, rounds: 3}
"""


@pytest.fixture
def tiny(tmp_path):
    """tiny(**overrides) -> the configuration of a tiny network on eight scenes."""
    write_scenes(tmp_path / "scenes", 8)
    (tmp_path / "tiny.yaml").write_text(TINY)

    def make(overrides=None):
        given = {
            "data.dir": str(tmp_path / "scenes"),
            "output_dir": str(tmp_path / "runs"),
            **(overrides or {}),
        }
        return load_config(tmp_path / "tiny.yaml", given)

    return make


@pytest.fixture
def without_figures(quick, monkeypatch):
    """Runs whose figures, which take longer than their training, nobody looks at."""
    monkeypatch.setattr(glacier, "draw_confusion", lambda *_: None)
    monkeypatch.setattr(glacier, "draw_tiles", lambda *_: None)


def constant(task):
    """The answers of a method for which all ground is the first class."""
    tiles = task.parts["test"].samples
    counts = np.zeros((len(tiles), 4, 4), np.int64)
    for number, tile in enumerate(tiles):
        counts[number, :, 0] = np.bincount(tile.target[tile.target != IGNORE], minlength=4)
    return {"constant": judging.judged(counts)}


@pytest.fixture
def without_baseline(monkeypatch):
    """Runs whose fitted baseline, which takes longer than their training, nobody looks at."""
    monkeypatch.setattr(find_task("glacier"), "baselines", constant)
