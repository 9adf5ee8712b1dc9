"""Crops out of training tiles: some anywhere, and some around a pixel of a rare class, which whole tiles hardly show.

Which tile a crop comes from follows from the weights of the order, and where it lies from the generator of its batch:
both are functions of seed, epoch and index.
"""

from collections.abc import Mapping

import numpy as np
import torch

from workloads.glacier.augment import ANYWHERE, corner
from workloads.glacier.data.tiles import Store

_DRAWN = 2_000  # crops by which the shares of classes are estimated


class Draws:
    """What an epoch draws from: each tile for a crop anywhere, and once more for each rare class that it shows.

    All of these stand there as many times as it takes for an epoch to show about as many pixels as its tiles have.
    """

    def __init__(self, counts: np.ndarray, weights: np.ndarray | None, centred: Mapping[int, float], size: int):
        """`counts` (tiles, classes) are pixels, `weights` (tiles) of crops anywhere; `centred` are shares by class.

        `size` is that of a crop's side in pixels.
        """
        around = [(tile, k) for k in sorted(centred) for tile in np.flatnonzero(counts[:, k])]
        self.tiles = np.array([*range(len(counts)), *(tile for tile, _ in around)])
        self.classes = np.array([ANYWHERE] * len(counts) + [k for _, k in around])
        even = np.ones(len(counts)) if weights is None else weights
        shown = {k: share for k, share in centred.items() if counts[:, k].any()}
        parts = [even / even.sum() * (1 - sum(shown.values()))]
        # of a class every pixel is as likely, so a tile comes as often as it has pixels of it
        parts += [shown[k] * counts[counts[:, k] > 0, k] / counts[:, k].sum() for k in sorted(shown)]
        self.weights = np.concatenate(parts) * len(self.tiles)
        times = max(1, round(float(counts.sum()) / size**2 / len(self.tiles)))
        self.tiles, self.classes, self.weights = (
            np.tile(own, times) for own in (self.tiles, self.classes, self.weights)
        )


def shares(store: Store, chosen: np.ndarray, draws: Draws, size: int) -> np.ndarray:
    """Estimates (classes) the shares of the pixels that crops show, by some that are drawn as training draws them."""
    generator = torch.Generator().manual_seed(0)
    order = np.random.default_rng(0).choice(len(draws.tiles), _DRAWN, p=draws.weights / draws.weights.sum())
    counts = np.zeros(store.table.counts.shape[1])
    tile = -1
    for index in order[np.argsort(draws.tiles[order], kind="stable")]:
        if draws.tiles[index] != tile:
            tile = draws.tiles[index]
            target = torch.from_numpy(store.target(int(chosen[tile])))
        top, left = corner(target, size, int(draws.classes[index]), generator)
        crop = target[top : top + size, left : left + size].flatten()
        counts += torch.bincount(crop, minlength=256)[: len(counts)].numpy()
    return counts / max(1, counts.sum())
