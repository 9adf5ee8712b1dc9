"""A conditional random field along a document: a matrix for the scores of a sentence, one for the step to the next. Of
seven roles it has 105 numbers: 7 x 7 scales and 7 biases of the scores, 7 x 7 steps. It learns that roles come in runs,
and in which order (in the sample corpus the role changes at 10.9 % of the steps)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_STEPS = 60  # of L-BFGS
_PENALTY = 1.0  # of the squared numbers, as the inverse of a variance
_LEAST = 1e-9  # probability


class Ordered:
    """The sentences of documents of different lengths, first all first ones, then all second ones, and so on. Within a
    step the longest document comes first, so that the documents that go on are the first ones of the step."""

    def __init__(self, lengths: Sequence[int]):
        lengths = np.asarray(lengths)
        begin = (np.cumsum(lengths) - lengths)[np.argsort(-lengths, kind="stable")]
        steps = np.arange(lengths.max())
        self.active = (lengths[:, None] > steps).sum(0)  # (steps) documents that have this step
        self.start = np.concatenate([[0], np.cumsum(self.active)])
        self.rows = np.concatenate([begin[:count] + step for step, count in zip(steps, self.active, strict=True)])
        going_on = [np.arange(self.start[t], self.start[t] + count) for t, count in enumerate(self.active[1:])]
        self.before = np.concatenate([np.zeros(0, np.int64), *going_on])  # of all but the first ones
        self.after = np.arange(self.active[0], len(self.rows))

    def step(self, number: int) -> slice:
        return slice(self.start[number], self.start[number + 1])


def forward_backward(emission: np.ndarray, transition: np.ndarray,
                     order: Ordered) -> tuple[float, np.ndarray, np.ndarray]:  # fmt: skip
    """(sentences in order, classes), (classes, classes) -> log partition, marginals, expected numbers of each step."""
    most = emission.max(1, keepdims=True)
    local, step = np.exp(emission - most), np.exp(transition)
    alpha, beta, scale = np.empty_like(local), np.ones_like(local), np.empty(len(local))
    for t, count in enumerate(order.active):
        here = order.step(t)
        alpha[here] = local[here] if t == 0 else local[here] * (alpha[order.step(t - 1)][:count] @ step)
        scale[here] = alpha[here].sum(1)
        alpha[here] /= scale[here][:, None]
    ahead = np.zeros_like(local)  # what a sentence says to the one before it
    for t in range(len(order.active) - 1, 0, -1):
        here, count = order.step(t), order.active[t]
        ahead[here] = local[here] * beta[here] / scale[here][:, None]
        beta[order.step(t - 1)][:count] = ahead[here] @ step.T
    marginal = alpha * beta
    expected = (alpha[order.before].T @ ahead[order.after]) * step
    return float(np.log(scale).sum() + most.sum()), marginal / marginal.sum(1, keepdims=True), expected


@dataclass(frozen=True)
class Chain:
    """`scale` (classes + 1, classes), of which the last row is the bias, and `transition` (classes, classes)."""

    scale: np.ndarray
    transition: np.ndarray

    def log_marginals(self, scores: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """(sentences, classes) -> logarithms of the probability of each role, given the whole document."""
        if not len(scores):
            return scores
        order = Ordered(lengths)
        emission = _with_one(scores) @ self.scale
        marginals = np.empty_like(emission)
        marginals[order.rows] = forward_backward(emission[order.rows], self.transition, order)[1]
        return np.log(marginals + _LEAST)

    @classmethod
    def fit(cls, scores: np.ndarray, truth: np.ndarray, lengths: Sequence[int]) -> "Chain":
        """Fits to (sentences, classes) scores of documents that were not in the fit of these scores."""
        from scipy.optimize import minimize
        order = Ordered(lengths)
        classes = scores.shape[1]
        inputs, wanted = _with_one(scores)[order.rows], np.eye(classes)[truth[order.rows]]
        followed = wanted[order.before].T @ wanted[order.after]
        cut = inputs.shape[1] * classes

        def loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
            scale, transition = numbers[:cut].reshape(-1, classes), numbers[cut:].reshape(classes, classes)
            emission = inputs @ scale
            partition, marginal, expected = forward_backward(emission, transition, order)
            value = partition - (emission * wanted).sum() - (followed * transition).sum()
            slope = np.concatenate([(inputs.T @ (marginal - wanted)).ravel(), (expected - followed).ravel()])
            return value + _PENALTY / 2 * numbers @ numbers, slope + _PENALTY * numbers

        best = minimize(loss, np.zeros(cut + classes**2), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
        best = best.astype(np.float32).astype(np.float64)
        return cls(best[:cut].reshape(-1, classes), best[cut:].reshape(classes, classes))


def _with_one(scores: np.ndarray) -> np.ndarray:
    return np.concatenate([scores, np.ones((len(scores), 1))], 1)
