"""Probabilities that mean what they say: powers fitted on validation, and a line on how they held on the test.

A power above 1 makes answers surer, one below 1 less sure; the likeliest class stays. All labels of a sample have one
power, and so have all positions: words, or pixels.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

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


class Answers(NamedTuple):
    """(answers) Their probabilities, whether each is right, and the number of its sample."""

    promised: np.ndarray
    right: np.ndarray
    sample: np.ndarray


def is_for(task: Any) -> bool:
    """Returns whether the task's answers have probabilities that are its kind's own."""
    kind = task._kind
    return bool(kind.has_powers and not kind.is_generated and not task._has_own_scores)


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
    """Returns the power of (targets, classes) scores under which the true classes, or marks, are most probable.

    They count as if there were one target more, of any class: of a few answers that are all right none is certain
    (Laplace's rule of succession).
    """
    from scipy import optimize  # a second that a process which only loads data does not need

    every = -(-len(true) // _MOST_ROWS)
    some = scores[::every].double()
    truth = torch.from_numpy(true[::every])

    def loss(exponent: float) -> float:
        shares, places = kind.choices(kind.averaged(2**exponent * some), truth)
        logs = shares.clamp(min=_LEAST).log()
        of_true = logs.gather(-1, places[:, None]).sum()
        return -float(of_true + logs.mean())

    ends = (-_MOST_POWER, _MOST_POWER)
    best = optimize.minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-3})
    return float(2**best.x)


def line(judged: Judged, groups: Iterable[Any]) -> str:
    """Returns a sentence on how many answers of about .9 were right on a test; "" where too few have probabilities.

    `groups` has the unit of each sample: those of a unit may be right together. Answers are classes, or given marks.
    """
    if judged.shares is None:
        return ""
    answers = given(judged)
    found = chosen(answers.promised)
    if found is None:
        return ""
    centre, places = found
    names = np.asarray([*groups])[answers.sample]
    low, high = covered(answers.right[places], names[places])
    mean = answers.promised[places].mean()
    return (
        f"Of 100 answers at {centre:g} ({centre - _REACH:.2f} to {centre + _REACH:.2f}), "
        f"{100 * low:.0f} to {100 * high:.0f} were right on the test, by {named(len(places), 'answer')}; "
        f"{100 * mean:.0f} were promised."
    )


def given(judged: Judged) -> Answers:
    """Returns the answers with probabilities: the class of each target, or each mark that is given."""
    assert judged.shares is not None
    if judged.true.ndim == 1:
        shares = judged.shares[np.arange(len(judged.guess)), judged.guess]
        return Answers(shares, judged.true == judged.guess, judged.sample)
    target, mark = judged.guess.nonzero()
    right = judged.true[target, mark] == 1
    return Answers(judged.shares[target, mark], right, judged.sample[target])


def chosen(shares: np.ndarray) -> tuple[float, np.ndarray] | None:
    """Returns the probability that the line is on, and the places of the answers near it; None for too few."""
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
