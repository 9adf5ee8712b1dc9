"""Probabilities that mean what they say: powers fitted on validation, and a line on how they held on the test.

A power above 1 makes answers surer, one below 1 less sure; the likeliest class stays.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.supervised.scoring import Judged
from trainbook.supervised.verdict import named

# A buffer of the model: a power for each of ANSWERS
POWERS = "probability_powers"
ANSWERS = ("answer", "network", "simple")
_MOST_ROWS = 20_000  # that a power is fitted to
_MOST_POWER = 5.0  # and its inverse the least one, as logarithms to base 2
_CENTRES = (
    0.9,
    0.95,
    0.8,
    0.7,
    0.6,
    0.5,
)  # of probabilities that the line is on, the first with enough answers
_REACH = 0.05  # on both sides
_FEWEST = 30  # answers: of fewer the share that is right says little
_Z = 1.96  # 95 % of a normal distribution
_LEAST = 1e-12  # of a probability


def is_for(task: Any) -> bool:
    """Returns whether the task's answers are one class a sample, with probabilities that are its own."""
    kind = task._kind
    is_class = kind.has_classes and not kind.has_positions and not kind.is_generated
    return bool(is_class and kind.has_probabilities and not task._has_own_scores)


def has_powers(model: nn.Module) -> bool:
    return hasattr(model, POWERS)


def power_of(model: nn.Module, answer: str) -> float:
    """Returns the power of "answer", "network" or "simple"; 1 for a model without any."""
    if not has_powers(model):
        return 1.0
    return float(model.get_buffer(POWERS)[ANSWERS.index(answer)])


def keep(model: nn.Module, answer: str, power: float) -> None:
    """Sets the power of an answer."""
    model.get_buffer(POWERS)[ANSWERS.index(answer)] = power


def fitted(kind: Any, scores: Tensor, true: np.ndarray) -> float:
    """Returns the power of (targets, classes) scores under which the true classes are most probable.

    They count as if there were one target more, of any class: of a few answers that are all right none is certain
    (Laplace's rule of succession).
    """
    from scipy import optimize  # a second that a process which only loads data does not need

    every = -(-len(true) // _MOST_ROWS)
    some = scores[::every].double()
    places = torch.from_numpy(true[::every])[:, None]

    def loss(exponent: float) -> float:
        logs = kind.averaged(2**exponent * some).clamp(min=_LEAST).log()
        of_true = logs.gather(-1, places).sum()
        return -float(of_true + logs.mean())

    ends = (-_MOST_POWER, _MOST_POWER)
    best = optimize.minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-3})
    return float(2**best.x)


def line(judged: Judged, groups: Iterable[Any]) -> str:
    """Returns a sentence on how many answers of about .9 were right on a test; "" where too few have probabilities.

    `groups` has the unit of each sample: those of a unit may be right together.
    """
    if judged.shares is None or judged.true.ndim > 1:
        return ""
    found = chosen(judged)
    if found is None:
        return ""
    centre, places = found
    right = judged.true == judged.guess
    names = np.asarray([*groups])[judged.sample]
    low, high = covered(right[places], names[places])
    mean = promised(judged)[places].mean()
    return (
        f"Of 100 answers at {centre:g} ({centre - _REACH:.2f} to {centre + _REACH:.2f}), "
        f"{100 * low:.0f} to {100 * high:.0f} were right on the test, by {named(len(places), 'answer')}; "
        f"{100 * mean:.0f} were promised."
    )


def promised(judged: Judged) -> np.ndarray:
    """Returns (targets) the probability of each answer."""
    assert judged.shares is not None
    return judged.shares[np.arange(len(judged.guess)), judged.guess]


def chosen(judged: Judged) -> tuple[float, np.ndarray] | None:
    """Returns the probability that the line is on, and the places of the answers near it; None for too few."""
    shares = promised(judged)
    for centre in _CENTRES:
        places = np.flatnonzero(np.abs(shares - centre) <= _REACH)
        if len(places) >= _FEWEST:
            return centre, places
    return None


def covered(right: np.ndarray, names: np.ndarray) -> tuple[float, float]:
    """Returns the 95 % interval of the share that is right (Wilson, 1927); those of a unit tell less."""
    _, unit, sizes = np.unique(names, return_inverse=True, return_counts=True)
    number = len(right)
    share = right.mean()
    told = float(number)
    if len(sizes) < number and 0 < share < 1:
        sums = np.bincount(unit, right) - sizes * share
        spread = (sums**2).sum() * len(sizes) / max(1, len(sizes) - 1)
        told = min(number, number**2 * share * (1 - share) / max(spread, 1e-9))
    elif len(sizes) < number:
        told = float(len(sizes))
    middle = (share + _Z**2 / (2 * told)) / (1 + _Z**2 / told)
    reach = _Z * math.sqrt(share * (1 - share) / told + _Z**2 / (4 * told**2)) / (1 + _Z**2 / told)
    return float(middle - reach), float(middle + reach)
