"""How much a network counts beside the counts, and what it knows, whatever it takes for common."""

from typing import Any

import numpy as np
from scipy.special import log_softmax

from trainbook.supervised import gate
from trainbook.supervised.intervals import least
from trainbook.supervised.scoring import Judged

PRODUCT = "product"
SHIFTED = "product with offsets"
METHODS = ("sentence", "context", "crf", PRODUCT, SHIFTED)  # of counting a document
WEIGHTS = tuple(np.arange(0, 1.01, 0.125).tolist())  # of the network beside the counts
# Of an encoder with published weights: what ten documents of the sample corpus chose. One from scratch only ties.
PUBLISHED_WEIGHT = 0.5
POWERS = tuple(
    (2.0 ** np.arange(-2, 1.1, 0.25)).tolist()
)  # of the product: how sure it is, and not of what
_ROUNDS = 10
_LIKELY = 0.95  # on one side


def chosen_weight(
    task: Any, counts: np.ndarray, network: np.ndarray, truth: np.ndarray, usual: float
) -> tuple[float, float]:
    """Returns a weight for (sentences, classes) scores, and the probability of the right roles under the best one.

    The sentences are in the order of the validation's samples. The weight is the best by macro F1 of those that are
    surely better than none over draws of documents; where none is, the usual one, if its macro F1 is no lower and
    the right roles are surely more probable under it: a few documents tell probabilities, which change little by
    little with a weight, long before they tell macro F1. Else 0.
    """
    rows = []
    for weight in WEIGHTS:
        guess = (counts + weight * network).argmax(1)
        rows.append(Judged(truth, guess, sample=np.arange(len(truth))))
    unit, units = gate.units_of(task, rows[0])
    shown = [fitted_logs(counts + weight * network, truth) for weight in WEIGHTS]
    best = float(np.exp(max(map(np.mean, shown))))
    if units < 2:
        return 0.0, best
    gains = gate.Gains(task, rows, unit, units)
    over_counts = [gains.of(place, 0) for place in range(len(WEIGHTS))]
    place = gate.surest(over_counts)
    if place is not None:
        return WEIGHTS[place], best
    usually = WEIGHTS.index(usual)
    is_lower = over_counts[usually].value < 0
    if is_lower or not is_sure(shown[usually] - shown[0], unit, units):
        return 0.0, best
    return usual, best


def is_sure(gains: np.ndarray, unit: np.ndarray, units: int) -> bool:
    """Returns whether the mean of (sentences) gains is above 0, as far as draws of documents can tell."""
    sums = np.bincount(unit, gains, units)
    sizes = np.bincount(unit, minlength=units)
    without_each = (sums.sum() - sums) / (sizes.sum() - sizes)
    return bool(least(gains.mean(), without_each, _LIKELY) > 0)


def chosen_power(scores: np.ndarray, truth: np.ndarray) -> float:
    """Returns the power under which the right roles are most probable."""
    return max(POWERS, key=lambda power: _logs(power * scores, truth).mean())


def probability(scores: np.ndarray, truth: np.ndarray) -> float:
    """Returns the geometric mean of the probabilities of the right roles, of (sentences, classes) scores.

    They are those under the power and the offsets of roles that fit these sentences best.
    """
    return float(np.exp(fitted_logs(scores, truth).mean()))


def fitted_logs(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Returns (sentences) the logarithms of these probabilities."""
    there = np.bincount(truth, minlength=scores.shape[1]) + 0.5
    logs = []
    for power in POWERS:
        offsets = np.zeros(scores.shape[1])
        for _ in range(_ROUNDS):  # of iterative scaling: as many of each role as there are
            expected = np.exp(log_softmax(power * scores + offsets, -1)).sum(0)
            offsets += np.log(there / (expected + 0.5))
        logs.append(_logs(power * scores + offsets, truth))
    return max(logs, key=np.mean)


def _logs(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return log_softmax(scores, -1)[np.arange(len(truth)), truth]
