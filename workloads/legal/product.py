"""How much a network counts beside the counts, and what it knows, whatever it takes for common."""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax

WEIGHTS = tuple(np.arange(0, 1.01, 0.125).tolist())  # of the network beside the counts
# Of an encoder with published weights: what ten documents of the sample corpus chose. One from scratch only ties.
PUBLISHED_WEIGHT = 0.5
POWERS = tuple(
    (2.0 ** np.arange(-2, 1.1, 0.25)).tolist()
)  # of the product: how sure it is, and not of what
_ROUNDS = 10
_ROUNDING = 1e-12  # of losses that are the same


def chosen_weight(
    counts: np.ndarray, network: np.ndarray, truth: np.ndarray, lengths: Sequence[int], usual: float
) -> tuple[float, float]:
    """Returns a weight for (sentences, classes) scores, and the probability of the right roles under the best one.

    The weight is that nearest to the usual one, out of those as good as the best as far as the documents can tell.
    As good: the right roles are as probable but for one standard error (Breiman et al., 1984). Probabilities change
    little by little with a weight, where the F1 of a few documents jumps.
    """
    logs = {weight: fitted_logs(counts + weight * network, truth) for weight in WEIGHTS}
    most = max(logs.values(), key=np.mean)
    alike = []
    for weight, values in logs.items():
        behind = most - values
        if behind.mean() <= standard_error(behind, lengths) + _ROUNDING:
            alike.append(weight)
    nearest = min(alike, key=lambda weight: (abs(weight - usual), weight))
    return nearest, float(np.exp(most.mean()))


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


def standard_error(values: np.ndarray, lengths: Sequence[int]) -> float:
    """Returns that of the mean of (sentences) values, of which those of a document belong together.

    Documents are drawn, and not sentences, which are alike within one (Cochran, Sampling Techniques, 1977, 9A.1). A
    single document tells nothing: infinity.
    """
    if len(lengths) < 2:
        return float("inf")
    count = len(lengths)
    sums = np.add.reduceat(values, np.cumsum([0, *lengths[:-1]]))
    squares = (sums - np.asarray(lengths) * values.mean()) ** 2
    spread = squares.sum() * count / (count - 1)
    return float(np.sqrt(spread) / len(values))


def _logs(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return log_softmax(scores, -1)[np.arange(len(truth)), truth]
