"""How often each tile is trained on: shares of classes are drawn towards wanted ones, rare classes more often."""

from collections.abc import Sequence

import numpy as np

from workloads.glacier.settings import Sampling

_ROUNDS = 100  # of capping
# From a tilt that is hardly one (at 100 no weight is off by more than 1 %) to one that reaches what can be reached.
_RIDGES = [10 ** (-k / 8) for k in range(-16, 73)]


def tile_weights(counts: np.ndarray, sampling: Sampling) -> np.ndarray | None:
    """Returns (tiles) weights of mean 1, or None for an even draw; `counts` (tiles, classes) are valid pixels."""
    if not sampling.target_shares:
        return None
    weight = tilt(counts / counts.sum(1, keepdims=True), sampling.target_shares, sampling.most_often)
    weight = capped(weight, sampling.most_often)
    return None if np.allclose(weight, 1) else weight


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


def capped(weight: np.ndarray, most: float) -> np.ndarray:
    """Returns (tiles) weights of mean 1, none above `most`: what is cut off goes to the others in proportion."""
    weight = weight / weight.mean()
    for _ in range(_ROUNDS):
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
    """Returns (classes) shares of the valid pixels, drawn with these (tiles) weights; None is an even draw."""
    drawn = counts if weight is None else counts * weight[:, None]
    return drawn.sum(0) / drawn.sum()
