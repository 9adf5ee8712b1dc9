"""How often each tile is trained on: shares of pixels drawn towards wanted ones, rare classes shown more often."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lib.config import option

_RIDGE = 1e-3  # keeps the tilt finite where the wanted shares cannot be reached
_STEPS = 100


@dataclass(frozen=True)
class Sampling:
    """Which tiles come how often. The order itself is a pure function of seed, epoch and these weights."""

    target_shares: tuple[float, ...] = option(
        (), "Wanted share of each class among the pixels trained on; empty: as the data has them.", minimum=0, maximum=1
    )
    rare_share: float = option(0.0, "A class below this share of the valid pixels is rare.", minimum=0, maximum=1)
    rare_factor: float = option(1.0, "How much more often a tile with a rare class comes.", minimum=1)
    most_often: float = option(20.0, "The most that a tile may come for once of an even draw.", minimum=1)

    def __post_init__(self) -> None:
        if self.target_shares and abs(sum(self.target_shares) - 1) > 1e-6:
            raise ValueError(f"target_shares add up to {sum(self.target_shares):g}. Make them add up to 1.")


def weights(counts: np.ndarray, sampling: Sampling) -> np.ndarray | None:
    """(tiles) weights of mean 1 for tiles with `counts` (tiles, classes) valid pixels; None for an even draw."""
    even = np.ones(len(counts))
    weight = tilt(counts / counts.sum(1, keepdims=True), sampling.target_shares) if sampling.target_shares else even
    shares = counts.sum(0) / counts.sum()
    rare = (shares > 0) & (shares < sampling.rare_share)
    weight = np.where((counts[:, rare] > 0).any(1), sampling.rare_factor, 1.0) * weight
    weight = capped(weight, sampling.most_often)
    return None if np.allclose(weight, 1) else weight


def tilt(shares: np.ndarray, wanted: Sequence[float]) -> np.ndarray:
    """(tiles) weights of mean 1, as even as they can be, whose mean of `shares` (tiles, classes) comes to `wanted`.

    The weights of largest entropy are exponential in the shares; their coefficients minimise a convex function (Jaynes,
    1957), here by Newton's method. Where no weights reach `wanted`, a small ridge gives what comes near.
    """
    goal = np.asarray(wanted, np.float64)
    coefficients = np.zeros(len(goal))
    for _ in range(_STEPS):
        weight, mean, slope = _tilted(shares, goal, coefficients)
        curvature = (shares * weight[:, None]).T @ shares - np.outer(mean, mean) + _RIDGE * np.eye(len(goal))
        step = np.linalg.solve(curvature, slope)
        size = 1.0
        while _dual(shares, goal, coefficients - size * step) > _dual(shares, goal, coefficients) and size > 1e-6:
            size /= 2
        coefficients = coefficients - size * step
        if np.abs(step).max() < 1e-9:
            break
    return _tilted(shares, goal, coefficients)[0] * len(shares)


def _dual(shares: np.ndarray, goal: np.ndarray, coefficients: np.ndarray) -> float:
    scores = shares @ coefficients
    top = scores.max()
    return float(
        top + np.log(np.exp(scores - top).mean()) - goal @ coefficients + _RIDGE / 2 * coefficients @ coefficients
    )


def _tilted(
    shares: np.ndarray, goal: np.ndarray, coefficients: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights that add up to 1, their mean of the shares, and the slope of the function that is minimised."""
    scores = shares @ coefficients
    weight = np.exp(scores - scores.max())
    weight /= weight.sum()
    mean = weight @ shares
    return weight, mean, mean - goal + _RIDGE * coefficients


def capped(weight: np.ndarray, most: float) -> np.ndarray:
    """Weights of mean 1, none above `most`: what is cut off goes to the others in proportion."""
    weight = weight / weight.mean()
    for _ in range(_STEPS):
        over = weight > most * (1 + 1e-9)
        if not over.any():
            break
        fixed = weight >= most
        weight = np.where(fixed, most, weight)
        free = weight[~fixed].sum()
        if not free:
            break
        weight[~fixed] *= (len(weight) - most * fixed.sum()) / free
    return weight / weight.mean()


def reached(counts: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """(classes) shares of the valid pixels under these weights."""
    drawn = counts if weight is None else counts * weight[:, None]
    return drawn.sum(0) / drawn.sum()
