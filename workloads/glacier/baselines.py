"""Baselines of the network: gradient boosting on pixels, alone or with their surroundings, out of a bounded sample."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from workloads.glacier.judging import tile_counts
from workloads.glacier.model import difference
from workloads.glacier.scores import IGNORE

Tile = tuple[Any, ...]  # begins with bands (C, H, W) floats and mask (H, W) integers or IGNORE
Fitted = dict[str, tuple[int, Any]]  # by method how many features it sees, and its classifier of scikit-learn

SIDES = (5, 15)  # pixels of the squares around a pixel whose means it sees
METHODS = {  # sides of the squares that each sees the means of, and whether every class counts alike, however rare
    "boosting of pixels": ((), False),
    "boosting with surroundings": (SIDES, False),
    "balanced boosting with surroundings": (SIDES, True),
}
_EVERY = 2  # pixel of the sample is learnt from where surroundings are seen too, which are three times the numbers
_MOST_TILES, _MOST_PIXELS = 400, 2_000_000  # that are learnt from or scored, so that the time has a bound


def features(bands: np.ndarray, indices: Sequence[tuple[int, int]] = ()) -> np.ndarray:
    """(C, H, W) -> (H * W, features) float32: bands and indices, and their means over squares of each of SIDES.

    A mean is that of the pixels with data, and NaN where there are none.
    """
    from scipy.ndimage import uniform_filter

    image = torch.from_numpy(np.ascontiguousarray(bands, np.float32))
    planes = torch.cat([image, *(difference(image, *pair) for pair in indices)]).numpy()
    known, parts = ~np.isnan(planes), [planes]
    for side in SIDES:
        square = {"size": (1, side, side), "mode": "constant"}
        total = uniform_filter(np.where(known, planes, 0), **square)
        number = uniform_filter(known.astype(np.float32), **square)
        parts.append(np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0.5 / side**2))
    return np.concatenate(parts).reshape(len(planes) * len(parts), -1).T


def sample(tiles: Sequence[Tile], seed: int, pixels: int, indices: Any = ()) -> tuple[np.ndarray, np.ndarray]:
    """Draws (N, features) float32 and (N) classes of at most `pixels` valid pixels, as many a tile."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(tiles))[:_MOST_TILES]
    quota = -(-pixels // max(1, len(chosen)))
    values, labels = [], []
    for index in sorted(chosen):
        bands, mask = tiles[int(index)][:2]
        valid = np.flatnonzero(mask.reshape(-1) != IGNORE)
        valid = np.sort(rng.permutation(valid)[:quota])
        values.append(features(bands, indices)[valid])
        labels.append(mask.reshape(-1)[valid])
    return np.concatenate(values)[:pixels], np.concatenate(labels)[:pixels]


def fitted(values: np.ndarray, labels: np.ndarray, seed: int, rounds: int, balanced: bool) -> Any:
    """Fits histogram gradient boosting (LightGBM, Ke et al., NeurIPS 2017, as scikit-learn has it)."""
    # Imported here: it takes a second that only a run with a baseline needs
    from sklearn.dummy import DummyClassifier
    from sklearn.ensemble import HistGradientBoostingClassifier

    if labels.min() == labels.max():
        return DummyClassifier().fit(values, labels)
    # No early stopping: it would hold pixels out, and neighbours of theirs would be trained on
    options = {"early_stopping": False, "random_state": seed % 2**32, "class_weight": "balanced" if balanced else None}
    return HistGradientBoostingClassifier(max_iter=rounds, **options).fit(values, labels)


def scored(part: Sequence[Tile]) -> np.ndarray:
    """Returns the numbers of the tiles of a part on which baselines are scored: all, or so many evenly out of them."""
    return np.unique(np.linspace(0, len(part) - 1, min(len(part), _MOST_TILES)).round().astype(np.int64))


def fit(train: Sequence[Tile], seed: int, indices: Any, pixels: int = 200_000, rounds: int = 100) -> Fitted:
    """Fits METHODS to training tiles, to at most `pixels` of them, by `rounds` trees a class.

    A function of tiles, settings and seed.
    """
    values, labels = sample(train, seed, pixels, indices)
    plain = values.shape[1] // (1 + len(SIDES))  # bands and indices, which come first
    methods = {}
    for name, (sides, balanced) in METHODS.items():
        some, width = slice(None, None, _EVERY if sides else 1), plain * (1 + len(sides))
        methods[name] = width, fitted(values[some, :width], labels[some], seed, rounds, balanced)
    return methods


def compared(
    methods: Fitted, part: Sequence[Tile], classes: int, seed: int, indices: Sequence[tuple[int, int]]
) -> dict[str, np.ndarray]:
    """Returns (tiles of `scored`, classes, classes) counts of each of what `fit` returned, by its name."""
    counts: dict[str, list[np.ndarray]] = {name: [] for name in methods}
    numbers, rng = scored(part), np.random.default_rng(seed)
    for index in numbers:
        bands, mask = part[int(index)][:2]
        valid, share = mask.reshape(-1) != IGNORE, _MOST_PIXELS / (len(numbers) * mask.size)
        if share < 1:  # the same in every tile, so that scores over all of them stay what they are, but for chance
            valid &= rng.random(valid.size) < share
        pixels, truth = features(bands, indices)[valid], torch.from_numpy(mask.reshape(-1)[valid])[None]
        for name, (width, model) in methods.items():
            guess = torch.from_numpy(model.predict(pixels[:, :width]).astype(np.uint8))[None]
            counts[name].append(tile_counts(guess, truth, classes).numpy())
    return {name: np.concatenate(tiles) for name, tiles in counts.items()}
