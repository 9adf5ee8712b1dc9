"""What an epoch trains on: tiles towards wanted shares of classes, or crops; functions of seed, epoch and index."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from workloads.glacier.augment import ANYWHERE, corner
from workloads.glacier.data.tiles import Store
from workloads.glacier.settings import Sampling

_DRAWN = 2_000  # crops by which the shares of classes are estimated
# From a tilt that is hardly one (at 100 no weight is off by more than 1 %) to one that reaches what can be reached.
_RIDGES = [10 ** (-k / 8) for k in range(-16, 73)]


def tile_weights(counts: np.ndarray, sampling: Sampling) -> np.ndarray | None:
    """Returns (tiles) weights of mean 1, or None for an even draw; `counts` (tiles, classes) are valid pixels."""
    if not sampling.target_shares:
        return None
    weight = tilt(counts / counts.sum(1, keepdims=True), sampling.target_shares, sampling.most_often)
    return None if np.allclose(weight, 1) else weight / weight.mean()


def tilt(shares: np.ndarray, goal: Sequence[float], most: float) -> np.ndarray:
    """Returns (tiles) weights of mean 1, as even as can be, whose mean of `shares` (tiles, classes) comes to `goal`.

    The weights of largest entropy are exponential in the shares (Jaynes, 1957); a ridge on their coefficients bounds
    them. The smallest ridge is taken under which no weight is above `most`: shares that can be reached are reached, and
    the others are approached.
    """
    from scipy.optimize import minimize
    from scipy.special import logsumexp, softmax

    # The convex dual: log of the mean of exp(shares c), minus goal c, plus the ridge; c (classes) are the coefficients
    def dual(c: np.ndarray, ridge: float) -> tuple[float, np.ndarray]:
        value = logsumexp(shares @ c) - goal @ c + ridge / 2 * c @ c
        return value, softmax(shares @ c) @ shares - goal + ridge * c

    def curvature(c: np.ndarray, ridge: float) -> np.ndarray:
        weight = softmax(shares @ c)
        centred = shares - weight @ shares
        return (centred * weight[:, None]).T @ centred + ridge * np.eye(len(c))

    present = shares.any(0)  # no weight moves the share of a class that no tile has
    shares, goal = shares[:, present], np.asarray(goal, np.float64)[present]
    coefficients, best = np.zeros(len(goal)), np.ones(len(shares))
    for ridge in _RIDGES:
        # Out of reach coefficients grow as 1 / ridge, and steps are bounded by the radius, 1,000 unless it is given.
        how = {"method": "trust-exact", "options": {"gtol": 1e-10, "max_trust_radius": 1e12}}
        coefficients = minimize(dual, coefficients, (ridge,), jac=True, hess=curvature, **how).x
        weight = softmax(shares @ coefficients) * len(shares)
        if weight.max() > most:
            break
        best = weight
    return best


def reached(counts: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Returns (classes) shares of the valid pixels, drawn with these (tiles) weights; None is an even draw."""
    drawn = counts if weight is None else counts * weight[:, None]
    return drawn.sum(0) / drawn.sum()


class Draws(NamedTuple):
    """What an epoch draws from: each tile for a crop anywhere, and once more for each rare class that it shows.

    All of these stand there as many times as it takes for an epoch to show about as many pixels as its tiles have.
    """

    tiles: np.ndarray
    classes: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, weights: np.ndarray | None, centred: Mapping[int, float], size: int) -> "Draws":
        """`counts` (tiles, classes) are pixels, `weights` (tiles) of crops anywhere, `centred` shares by class."""
        around = [(tile, k) for k in sorted(centred) for tile in np.flatnonzero(counts[:, k])]
        tiles = np.array([*range(len(counts)), *(tile for tile, _ in around)])
        classes = np.array([ANYWHERE] * len(counts) + [k for _, k in around])
        even = np.ones(len(counts)) if weights is None else weights
        shown = {k: share for k, share in centred.items() if counts[:, k].any()}
        parts = [even / even.sum() * (1 - sum(shown.values()))]
        # of a class every pixel is as likely, so a tile comes as often as it has pixels of it
        parts += [shown[k] * counts[counts[:, k] > 0, k] / counts[:, k].sum() for k in sorted(shown)]
        times = max(1, round(float(counts.sum()) / size**2 / len(tiles)))
        return cls(*(np.tile(own, times) for own in (tiles, classes, np.concatenate(parts) * len(tiles))))


def shares(store: Store, chosen: np.ndarray, draws: Draws, size: int) -> np.ndarray:
    """Estimates (classes) the shares of the pixels that crops show, by some that are drawn as training draws them."""
    generator = torch.Generator().manual_seed(0)
    order = np.random.default_rng(0).choice(len(draws.tiles), _DRAWN, p=draws.weights / draws.weights.sum())
    counts, tile = np.zeros(store.table.counts.shape[1]), -1
    for index in order[np.argsort(draws.tiles[order], kind="stable")]:
        if draws.tiles[index] != tile:
            tile = draws.tiles[index]
            target = torch.from_numpy(store.target(int(chosen[tile])))
        top, left = corner(target, size, int(draws.classes[index]), generator)
        crop = target[top : top + size, left : left + size].flatten()
        counts += torch.bincount(crop, minlength=256)[: len(counts)].numpy()
    return counts / max(1, counts.sum())
