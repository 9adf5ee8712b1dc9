"""Logistic regression over sparse numbers, for any number of classes, also where some have no example."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

_UNSEEN = 1.0  # examples that a class without any counts as


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """(..., classes) -> logarithms of probabilities."""
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def centred(scores: np.ndarray) -> np.ndarray:
    return scores - scores.mean(-1, keepdims=True)


@dataclass(frozen=True)
class Fitting:
    """How a regression is fitted: scikit-learn's C and class weight, and the steps of L-BFGS, mostly before its end."""

    strength: float
    steps: int
    class_weight: str | None = "balanced"


@dataclass(frozen=True)
class Linear:
    """Weights (numbers, classes) and biases (classes) in float32, centred over the classes."""

    weights: np.ndarray
    bias: np.ndarray

    def scores(self, matrix: sparse.csr_matrix) -> np.ndarray:
        """Returns (rows, classes) in float64."""
        return np.asarray(matrix @ self.weights, np.float64) + self.bias

    @classmethod
    def mean(cls, models: Sequence["Linear"]) -> "Linear":
        """Returns the one model whose scores are the mean of all models' scores.

        Its numbers are rounded to float16, in which it is kept: read again it gives the very same scores.
        """
        weights = np.mean([model.weights for model in models], 0, dtype=np.float64)
        bias = np.mean([model.bias for model in models], 0, dtype=np.float64)
        return cls(halved(weights), halved(bias))

    @classmethod
    def fit(cls, matrix: sparse.csr_matrix, truth: np.ndarray, classes: int, options: Fitting) -> "Linear":
        """Fits to (rows) class numbers.

        A class without examples gets its bias alone, as rare as one example would be.
        """
        present, counts = np.unique(truth, return_counts=True)
        weights = np.zeros((matrix.shape[1], classes))
        bias = np.full(classes, np.log(_UNSEEN / (len(truth) + classes)))
        if len(present) < 2 or not matrix.shape[1]:
            bias[present] = np.log(counts / (len(truth) + classes))
            return cls(weights.astype(np.float32), centred(bias).astype(np.float32))
        found, intercept = _fitted(matrix, truth, options)
        level = np.log(np.exp(intercept - intercept.max()).sum()) + intercept.max()
        weights[:, present], bias[present] = found.T - found.mean(0)[:, None], intercept - level
        return cls(weights.astype(np.float32), centred(bias).astype(np.float32))


def _fitted(matrix: sparse.csr_matrix, truth: np.ndarray, options: Fitting) -> tuple[np.ndarray, np.ndarray]:
    """Returns scikit-learn's (classes that are there, numbers) and (classes that are there)."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression  # a second that not every process needs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=options.strength, class_weight=options.class_weight, max_iter=options.steps)
        model.fit(matrix, truth)
    if len(model.classes_) > 2:
        return model.coef_, model.intercept_
    half, intercept = model.coef_[0] / 2, model.intercept_[0] / 2  # of two classes it has the second's alone
    return np.stack([-half, half]), np.array([-intercept, intercept])


def halved(values: np.ndarray) -> np.ndarray:
    """Returns values of float32 that float16 holds exactly."""
    return np.asarray(values, np.float16).astype(np.float32)
