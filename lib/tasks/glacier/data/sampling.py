"""How often each tile is trained on: shares of pixels drawn towards wanted ones, rare classes shown more often."""

from collections.abc import Sequence

import numpy as np

from lib.tasks.glacier.settings import Sampling

_STEPS = 100
# From a tilt that is hardly one (at 100 no weight is off by more than 1 %) to one that reaches what can be reached.
_RIDGES = [10 ** (-k / 8) for k in range(-16, 73)]


def tile_weights(counts: np.ndarray, sampling: Sampling) -> np.ndarray | None:
    """(tiles) weights of mean 1 for tiles with `counts` (tiles, classes) valid pixels; None for an even draw."""
    even = np.ones(len(counts))
    weight = even
    if sampling.target_shares:
        weight = tilt(counts / counts.sum(1, keepdims=True), sampling.target_shares, sampling.most_often)
    shares = counts.sum(0) / counts.sum()
    rare = (shares > 0) & (shares < sampling.rare_share)
    weight = np.where((counts[:, rare] > 0).any(1), sampling.rare_factor, 1.0) * weight
    weight = capped(weight, sampling.most_often)
    return None if np.allclose(weight, 1) else weight


def tilt(shares: np.ndarray, wanted: Sequence[float], most: float) -> np.ndarray:
    """(tiles) weights of mean 1, as even as they can be, whose mean of `shares` (tiles, classes) comes to `wanted`.

    The weights of largest entropy are exponential in the shares (Jaynes, 1957); a ridge on their coefficients bounds
    them. The smallest ridge is taken under which no weight is above `most`: wanted shares that can be reached so are,
    the others are approached.
    """
    goal = np.asarray(wanted, np.float64)
    coefficients, best = np.zeros(len(goal)), np.ones(len(shares))
    for ridge in _RIDGES:
        coefficients = _fitted(shares, goal, ridge, coefficients)
        weight = _tilted(shares, coefficients) * len(shares)
        if weight.max() > most:
            break
        best = weight
    return best


def _fitted(shares: np.ndarray, goal: np.ndarray, ridge: float, start: np.ndarray) -> np.ndarray:
    """The coefficients for one ridge: the minimum of a convex function, by Newton's method with halved steps."""

    def value(coefficients: np.ndarray) -> float:
        scores = shares @ coefficients
        top = scores.max()
        return float(
            top + np.log(np.exp(scores - top).mean()) - goal @ coefficients + ridge / 2 * coefficients @ coefficients
        )

    coefficients = start
    for _ in range(_STEPS):
        weight = _tilted(shares, coefficients)
        mean = weight @ shares
        slope = mean - goal + ridge * coefficients
        curvature = (shares * weight[:, None]).T @ shares - np.outer(mean, mean) + ridge * np.eye(len(goal))
        step = np.linalg.solve(curvature, slope)
        size, before = 1.0, value(coefficients)
        while value(coefficients - size * step) > before and size > 1e-6:
            size /= 2
        coefficients = coefficients - size * step
        if np.abs(step).max() < 1e-9 * (1 + np.abs(coefficients).max()):
            break
    return coefficients


def _tilted(shares: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Weights that add up to 1."""
    scores = shares @ coefficients
    weight = np.exp(scores - scores.max())
    return weight / weight.sum()


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
