"""Metrics by their names in scikit-learn, or as functions of (true, guess), and which direction of each is better."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lib.errors import BadInput
from lib.task import Batch

Metric = str | Callable[[np.ndarray, np.ndarray], float]

# Short name -> function of scikit-learn and its arguments. Without zero_division it warns of each class never guessed.
_GUESSES: dict[str, tuple[str, dict[str, Any]]] = {
    "accuracy": ("accuracy_score", {}),
    "balanced_accuracy": ("balanced_accuracy_score", {}),
    **{
        f"{average}_{short}": (name, {"average": average, "zero_division": 0})
        for average in ("macro", "micro", "weighted")
        for short, name in (("f1", "f1_score"), ("precision", "precision_score"), ("recall", "recall_score"))
    },
    "f1": ("f1_score", {"zero_division": 0}),
    "precision": ("precision_score", {"zero_division": 0}),
    "recall": ("recall_score", {"zero_division": 0}),
    "mcc": ("matthews_corrcoef", {}),
    "kappa": ("cohen_kappa_score", {}),
    "quadratic_kappa": ("cohen_kappa_score", {"weights": "quadratic"}),
    "mse": ("mean_squared_error", {}),
    "rmse": ("root_mean_squared_error", {}),
    "mae": ("mean_absolute_error", {}),
    "mape": ("mean_absolute_percentage_error", {}),
    "rmsle": ("root_mean_squared_log_error", {}),
    "r2": ("r2_score", {}),
}
# What needs a probability for each class
_PROBABILITIES = ("roc_auc", "average_precision", "log_loss", "top_3_accuracy", "top_5_accuracy")
# "functions ending with _error, _loss, or _deviance return a value to minimize": scikit-learn's guide, section 3.4
_SMALLER = ("_error", "_loss", "_deviance")
_SMALLER_NAMES = ("loss", "mse", "rmse", "mae", "mape", "rmsle")


def name_of(metric: Metric) -> str:
    """Returns the name under which a metric is reported. Raises BadInput for a function without one."""
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "<")
    if name.startswith("<"):
        raise BadInput("A metric is a function without a name. Define it by def, so that its name can be reported.")
    return name


def better(metric: Metric) -> str:
    """Returns "min" or "max": the direction that scikit-learn's way of naming gives."""
    name = name_of(metric)
    return "min" if name in _SMALLER_NAMES or name.endswith(_SMALLER) else "max"


def needs_probabilities(metrics: Sequence[Metric]) -> bool:
    return any(metric in _PROBABILITIES for metric in metrics)


def check(metrics: Sequence[Metric], kind: str) -> None:
    """Raises BadInput for a name that scikit-learn does not have, or one that the targets have no answer to."""
    for metric in metrics:
        if metric in _PROBABILITIES and kind == "numbers":
            raise BadInput(f"The metric {metric!r} judges classes, and kind is 'numbers'. Name rmse, mae or r2.")
        if metric not in _PROBABILITIES:
            _function(metric)


def scores(
    metrics: Sequence[Metric], true: np.ndarray, guess: np.ndarray, shares: np.ndarray | None = None
) -> dict[str, float]:
    """Returns each metric of (targets,) truths and guesses; `shares` (targets, classes) are probabilities, if any."""
    found = {}
    for metric in metrics:
        if metric in _PROBABILITIES:
            found[name_of(metric)] = _of_probabilities(metric, true, shares)  # type: ignore[arg-type]
        else:
            found[name_of(metric)] = float(_function(metric)(true, guess))
    return found


def _function(metric: Metric) -> Callable[[np.ndarray, np.ndarray], float]:
    if callable(metric):
        return metric
    from sklearn import metrics  # a second that a process which only loads data does not need

    name, more = _GUESSES.get(metric, (metric, {}))
    found = getattr(metrics, name, None) or getattr(metrics, f"{name}_score", None)
    if not callable(found) or isinstance(found, type):
        known = [*_GUESSES, *_PROBABILITIES]
        near = difflib.get_close_matches(metric, known, n=1) or ["accuracy"]
        raise BadInput(
            f"There is no metric {metric!r}. Did you mean {near[0]!r}? Known: {', '.join(known)}, every function of "
            "sklearn.metrics that takes truths and guesses, or a function of your own of (true, guess)."
        )
    return partial(found, **more)


def _of_probabilities(metric: Metric, true: np.ndarray, shares: np.ndarray) -> float:
    from sklearn import metrics

    classes = np.arange(shares.shape[1])
    if metric == "log_loss":
        return float(metrics.log_loss(true, shares, labels=classes))
    if metric in ("top_3_accuracy", "top_5_accuracy"):
        most = int(str(metric).split("_")[1])
        return float(np.mean((np.argsort(-shares, 1, kind="stable")[:, :most] == true[:, None]).any(1)))
    score = metrics.roc_auc_score if metric == "roc_auc" else metrics.average_precision_score
    if len(classes) == 2:
        return float(score(true, shares[:, 1])) if 0 < true.sum() < len(true) else float("nan")
    split = [k for k in classes if 0 < (true == k).sum() < len(true)]  # of the others there is nothing to rank
    return float(np.mean([score(true == k, shares[:, k]) for k in split])) if split else float("nan")


def constant(kind: str, train: np.ndarray, number: int, classes: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the guess, `number` times, of whoever knows the training targets alone; of classes their shares too."""
    if kind == "numbers":
        return np.broadcast_to(train.mean(0), (number, *train.shape[1:])), None
    counts = np.bincount(train, minlength=classes)
    shares = np.broadcast_to(counts / counts.sum(), (number, len(counts)))
    return np.full(number, counts.argmax()), shares


def class_weights(targets: np.ndarray, classes: int) -> np.ndarray:
    """Returns a weight for each class with which all weigh as much as each other and a target weighs 1 on average."""
    counts = np.bincount(targets, minlength=classes)
    present = np.count_nonzero(counts)
    return np.where(counts > 0, len(targets) / (present * np.maximum(counts, 1)), 1.0).astype(np.float32)


def mean_loss(mean: Tensor, batch: Batch, count: Callable[[Batch], Mapping[str, float]]) -> dict[str, Tensor]:
    """Returns the sum that a model's mean stands for: `mean_loss(model(**batch).loss, batch, self.count)`.

    `count` counts the targets that the mean was taken over, in one term.
    """
    counted = count(batch)
    if len(counted) != 1:
        raise BadInput(f"mean_loss is for one term, and count() has {len(counted)}: {', '.join(map(repr, counted))}.")
    term, number = next(iter(counted.items()))
    return {term: mean * number if number else torch.zeros((), device=mean.device, requires_grad=True)}  # 0 / 0 is NaN
