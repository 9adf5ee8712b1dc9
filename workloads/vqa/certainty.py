"""How probable each candidate is: a softmax over the candidates and "none of them", fitted on validation.

The product of network and words ranks the candidates of a question and is far too sure of them; the right answer may
not be among them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize
from scipy.special import log_softmax

from trainbook.supervised.scoring import Judged
from trainbook.supervised.text import exact
from workloads.vqa.tokens import Answer

_START = (0.0, 0.0)  # a power of 1, and "none" as probable as a candidate of probability 1
_BOUNDS = ((-5.0, 5.0), (-30.0, 10.0))
_FLOOR = math.log(1e-12)  # of a probability's logarithm
_NOWHERE = -np.inf  # in place of a candidate that is not there


class Certainty(NamedTuple):
    """`power` of a candidate's probability, and the logarithm of what "none of them" weighs."""

    power: float = 1.0
    none: float = 0.0


def fitted(scores: Sequence[Sequence[float]], places: Sequence[int | None]) -> Certainty:
    """Returns what makes the right candidates most probable, of logarithms of weighed probabilities by question.

    `places` has the place of the right one, None where it is not among them. They count as if there were one question
    more, of any answer (Laplace's rule of succession).
    """
    table = _padded(scores)
    width = table.shape[1]
    right = np.array([width if place is None else place for place in places])
    is_there = np.isfinite(_with_none(table, 0.0))

    def loss(values: np.ndarray) -> float:
        logs = np.maximum(_logs(table, Certainty(2.0 ** values[0], values[1])), _FLOOR)
        return -float(logs[np.arange(len(right)), right].sum() + logs[is_there].mean())

    best = optimize.minimize(loss, _START, method="Nelder-Mead", bounds=_BOUNDS)
    return Certainty(float(2.0 ** best.x[0]), float(best.x[1]))


def shares(scores: Sequence[float], certainty: Certainty) -> list[float]:
    """Returns the probability of each candidate; what they lack to 1 is that of another answer."""
    logs = _logs(np.array([scores], float), certainty)
    return np.exp(logs[0, :-1]).tolist()


def scores_of(answer: Answer, weights: tuple[float, float]) -> list[float]:
    return [candidate.score(*weights) for candidate in answer.candidates]


def of_validation(network: Judged, weights: tuple[float, float]) -> Certainty:
    """Returns what is fitted to the answers of a validation."""
    scores = [scores_of(answer, weights) for answer in network.guess]
    places = [*map(_place_of, network.true, network.guess)]
    return fitted(scores, places)


def promised(network: Judged, weights: tuple[float, float], certainty: Certainty) -> Judged:
    """Returns whether each likeliest answer is right, as one of two classes, with its probability."""
    is_right = []
    probable = []
    for right, answer in zip(network.true, network.guess, strict=True):
        each = shares(scores_of(answer, weights), certainty)
        best = int(np.argmax(each))
        probable.append(each[best])
        is_right.append(bool(exact(right, answer.candidates[best])))
    of_right = np.array(probable)
    return Judged(
        np.array(is_right, int),
        np.ones(len(is_right), int),
        shares=np.stack([1 - of_right, of_right], 1),
        sample=network.sample,
    )


def _place_of(right: str, answer: Answer) -> int | None:
    """Returns the place of the right text among an answer's candidates; None if it is not there."""
    places = [place for place, each in enumerate(answer.candidates) if exact(right, each)]
    return places[0] if places else None


def _padded(scores: Sequence[Sequence[float]]) -> np.ndarray:
    table = np.full((len(scores), max(map(len, scores))), _NOWHERE)
    for row, each in zip(table, scores, strict=True):
        row[: len(each)] = each
    return table


def _with_none(table: np.ndarray, none: float) -> np.ndarray:
    """(questions, candidates) -> (questions, candidates + 1), "none of them" last."""
    return np.concatenate([table, np.full((len(table), 1), none)], 1)


def _logs(table: np.ndarray, certainty: Certainty) -> np.ndarray:
    """Returns logarithms of probabilities, those of "none of them" last."""
    return log_softmax(_with_none(certainty.power * table, certainty.none), 1)
