"""Computes metrics by their names in scikit-learn, by functions of (true, guess), or from sums over draws of groups."""

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lib.errors import BadInput, printable
from trainbook.outputs.summary import is_error

# A function whose attribute `rows` is True judges whole samples: it takes (samples, numbers), NaN where unknown.
Metric = str | Callable[[np.ndarray, np.ndarray], float]

_SCORES = ("f1", "precision", "recall")
_AVERAGES = {
    f"{average}_{short}": (f"{short}_score", {"average": average, "zero_division": 0})
    for average in ("macro", "micro", "weighted")
    for short in _SCORES
}
# Short name -> function of scikit-learn and its arguments. Without zero_division it warns of each class never guessed.
_GUESSES: dict[str, tuple[str, dict[str, Any]]] = {
    "accuracy": ("accuracy_score", {}),
    "balanced_accuracy": ("balanced_accuracy_score", {}),
    **_AVERAGES,
    **{short: (f"{short}_score", {"zero_division": 0}) for short in _SCORES},
    "mean_iou": ("jaccard_score", {"average": "macro", "zero_division": 0}),
    "mean_dice": _AVERAGES["macro_f1"],  # Dice of a class is its F1 over pixels
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
# The mean over samples of the share of a right class by its rank among the k likeliest: 1, 1/2, ... 1/k, or 0
_MEAN_PRECISIONS = ("map_at_3", "map_at_5", "map_at_10")
_CORRELATIONS = ("mcc", "kappa", "quadratic_kappa")  # from -1 to 1
# What needs a probability for each class
PROBABILITIES = (
    "roc_auc",
    "average_precision",
    "log_loss",
    "top_3_accuracy",
    "top_5_accuracy",
    *_MEAN_PRECISIONS,
)
OF_ORDER = ("roc_auc", "average_precision")  # of them: they judge the order alone
# Metrics of masks: the mean over samples of Dice, or IoU, of all classes but the first, which is the ground
_OF_MASKS = ("dice", "iou")
# Their guesses count from 0
_NOT_NEGATIVE = ("rmsle", "root_mean_squared_log_error", "mean_squared_log_error")


class Judged(NamedTuple):
    """Targets and guesses, of (targets,), or (samples, numbers) with NaN where a target is unknown.

    `counts`: how often each pair came, else once. `shares` (targets, classes): probabilities, if a metric needs them.
    `sample` (targets): the number of each target's sample in its part.
    """

    true: np.ndarray
    guess: np.ndarray
    counts: np.ndarray | None = None
    shares: np.ndarray | None = None
    sample: np.ndarray = np.zeros(0, np.int64)

    @property
    def width(self) -> int:
        """The number of classes that are targets or guesses, with those of lower numbers."""
        return int(max(self.true.max(), self.guess.max())) + 1

    def at(self, places: np.ndarray) -> "Judged":
        """Returns the targets at these places, each as often as its place is named."""
        counts = None if self.counts is None else self.counts[places]
        shares = None if self.shares is None else self.shares[places]
        true = self.true[places]
        guess = self.guess[places]
        return Judged(true, guess, counts, shares, self.sample[places])


def name_of(metric: Metric) -> str:
    """Returns the name under which a metric is reported. Raises BadInput for a function without one."""
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "<")
    if name.startswith("<"):
        raise BadInput(
            "A metric is a function without a name. Define it by def, so that its name can be reported."
        )
    return name


def better(metric: Metric) -> str:
    """Returns "min" or "max" by scikit-learn's way of naming; "" for a function that is not named so."""
    name = name_of(metric)
    if is_error(name):
        return "min"
    if isinstance(metric, str) or name in (*_GUESSES, *PROBABILITIES) or name.endswith("_score"):
        return "max"
    return ""


def largest_gain(metric: Metric) -> float:
    """Returns what one answer can have more of a metric than another: 1 of a share, infinity of an error."""
    if metric in _CORRELATIONS:
        return 2.0
    is_known = metric in (*_GUESSES, *PROBABILITIES, *_OF_MASKS)
    if not is_known or metric == "r2" or better(metric) == "min":
        return math.inf
    return 1.0


def needs_probabilities(metrics: Sequence[Metric]) -> bool:
    return any(metric in PROBABILITIES for metric in metrics)


def check(metrics: Sequence[Metric], kind: Any) -> None:
    """Raises BadInput for a name that scikit-learn does not have, or one that a `Kind` has no answer to."""
    for metric in metrics:
        if metric in _OF_MASKS and kind.has_positions:
            continue
        if metric not in PROBABILITIES:
            _function(metric)
        elif metric not in kind.probability_metrics:
            raise BadInput(
                f"The metric {metric!r} judges one class a sample, and kind is {kind.name!r}. "
                "Name another one."
            )


def judges_masks(metrics: Sequence[Metric]) -> bool:
    """Returns whether a metric is a mean over the masks of samples."""
    return any(metric in _OF_MASKS for metric in metrics)


def can_weigh(metrics: Sequence[Metric]) -> bool:
    """Returns whether every metric takes truths and guesses with a number beside each pair: how often it came."""
    for metric in metrics:
        if metric in _OF_MASKS:
            continue
        if not isinstance(metric, str) or metric in PROBABILITIES:
            return False
        if "sample_weight" not in inspect.signature(_function(metric)).parameters:
            return False
    return True


def scores(metrics: Sequence[Metric], judged: Judged) -> dict[str, float]:
    """Returns each metric; its mean over columns of numbers if some are unknown. Raises BadInput."""
    values = {}
    for metric in metrics:
        try:
            values[name_of(metric)] = score(metric, judged)
        except (ValueError, TypeError) as error:
            if callable(metric):
                raise
            raise BadInput(
                f"The metric {metric!r} cannot judge these targets "
                f"({printable(error, most=300)}). Name another one in the task's `metrics`, "
                "or write a function there."
            ) from error
    return values


def score(metric: Metric, judged: Judged) -> float:
    """Returns one metric of the targets. Raises what the metric raises."""
    true, guess, counts, shares, _ = judged
    if getattr(metric, "rows", False):
        return float(_function(metric)(_rows(true), _rows(guess)))
    if metric in PROBABILITIES:
        return _of_probabilities(metric, true, shares)  # type: ignore[arg-type]
    if metric in _OF_MASKS:
        return _of_masks(metric, judged)
    if metric in _NOT_NEGATIVE:
        guess = np.maximum(guess, 0)
    function = _function(metric)
    unknown = np.isnan(true) if true.dtype.kind == "f" else np.zeros(0, bool)
    if unknown.any():
        return _mean_of_columns(function, _rows(true), _rows(guess))
    if counts is None or callable(metric):
        return float(function(true, guess))
    return float(function(true, guess, sample_weight=counts))


def _rows(values: np.ndarray) -> np.ndarray:
    """Returns (samples, numbers)."""
    return values.reshape(len(values), -1)


def _mean_of_columns(function: Callable[..., float], true: np.ndarray, guess: np.ndarray) -> float:
    """Returns the mean of a metric over columns (samples) with known numbers, by these alone."""
    scores = []
    for truths, guesses in zip(true.T, guess.T, strict=True):
        known = ~np.isnan(truths)
        if known.any():
            scores.append(function(truths[known], guesses[known]))
    return float(np.mean(scores))


def _function(metric: Metric) -> Callable[..., float]:
    """Returns the function of (true, guess) of a metric. Raises BadInput for a name that nothing has."""
    if callable(metric):
        return metric
    from sklearn import metrics  # a second that a process which only loads data does not need

    name, options = _GUESSES.get(metric, (metric, {}))
    function = getattr(metrics, name, None) or getattr(metrics, f"{name}_score", None)
    if not callable(function) or isinstance(function, type):
        raise BadInput(
            f"There is no metric {metric!r}. Known: {', '.join([*_GUESSES, *PROBABILITIES])}, "
            "every function of sklearn.metrics of truths and guesses, or one of your own of "
            "(true, guess)."
        )
    return partial(function, **options)


def _of_probabilities(metric: Metric, true: np.ndarray, shares: np.ndarray) -> float:
    """Returns a metric of PROBABILITIES of (targets) classes or (targets, classes) marks."""
    from sklearn import metrics

    classes = np.arange(shares.shape[1])
    if metric == "log_loss" and true.ndim > 1:
        columns = zip(true.T, shares.T.astype(np.float64), strict=True)
        return float(np.mean([metrics.log_loss(*column, labels=[0, 1]) for column in columns]))
    if metric == "log_loss":
        return float(metrics.log_loss(true, shares, labels=classes))
    if metric in _MEAN_PRECISIONS:
        return _mean_precision(true, shares, int(str(metric).rpartition("_")[2]))
    if metric in ("top_3_accuracy", "top_5_accuracy"):
        most = int(str(metric).split("_")[1])
        likeliest = np.argsort(-shares, 1, kind="stable")[:, :most]
        return float(np.mean((likeliest == true[:, None]).any(1)))
    if true.ndim == 1 and len(classes) == 2:
        true = true[:, None] == 1
        shares = shares[:, 1:]
    elif true.ndim == 1:
        true = true[:, None] == classes
    # A class that is never or always there ranks nothing.
    number = true.sum(0)
    ranked = np.flatnonzero((number > 0) & (number < len(true)))
    if not len(ranked):
        return float("nan")
    true = true[:, ranked]
    shares = shares[:, ranked]
    if metric == "roc_auc":
        return float(_areas(true, shares).mean())
    pairs = zip(true.T, shares.T, strict=True)
    return float(np.mean([metrics.average_precision_score(*pair) for pair in pairs]))


def _mean_precision(true: np.ndarray, shares: np.ndarray, most: int) -> float:
    """(targets) classes and (targets, classes) probabilities -> the mean of 1 / rank, 0 below the first `most`."""
    likeliest = np.argsort(-shares, 1, kind="stable")[:, :most]
    hits = likeliest == true[:, None]
    ranks = np.arange(1, likeliest.shape[1] + 1)
    return float((hits / ranks).sum(1).mean())


def _of_masks(metric: str, judged: Judged) -> float:
    """Returns the mean over samples of Dice or IoU; 1 where truth and guess are both empty.

    Samples weigh by their known pixels: all masks of a task have one size.
    """
    true, guess, counts, _, sample = judged
    if not len(sample):
        sample = np.zeros(len(true), np.int64)
    number = np.ones(len(true)) if counts is None else counts
    _, place = np.unique(sample, return_inverse=True)
    right = np.bincount(place, number * ((true > 0) & (true == guess)))
    marked = np.bincount(place, number * (true > 0)) + np.bincount(place, number * (guess > 0))
    if metric == "dice":
        scores = np.where(marked > 0, 2 * right / np.maximum(marked, 1), 1.0)
    else:
        scores = np.where(marked > 0, right / np.maximum(marked - right, 1), 1.0)
    return float(np.average(scores, weights=np.bincount(place, number)))


def _areas(true: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """(targets, classes) marks and scores -> (classes) areas under the ROC curve, by ranks (Mann and Whitney, 1947).

    scikit-learn takes 2 ms a class, which 1,000 draws of ten classes turn into a minute.
    """
    from scipy import stats

    if not np.isfinite(shares).all():
        raise ValueError("there are probabilities of NaN or infinity")
    marks = true.astype(bool)
    positive = marks.sum(0)
    ranks = np.where(marks, stats.rankdata(shares, axis=0), 0).sum(0)
    least = positive * (positive + 1) / 2  # the sum of their ranks if all are the lowest
    pairs = positive * (len(marks) - positive)
    return (ranks - least) / pairs


def tallied_numbers(judged: Judged, unit: np.ndarray, units: int) -> np.ndarray:
    """Returns (units, 5, columns) sums of powers: number, truth, its square, distance, squared error.

    `unit` is each target's. Truths count from their mean, so that no square loses its digits.
    """
    true = _rows(judged.true).astype(np.float64)
    guess = _rows(judged.guess).astype(np.float64)
    known = ~np.isnan(true)
    centred = np.where(known, true - np.nanmean(true, 0), 0.0)
    error = np.where(known, true - guess, 0.0)
    number = known.astype(float)
    powers = np.stack([number, centred, centred**2, np.abs(error), error**2], 1)
    sums = np.zeros((units, *powers.shape[1:]))
    np.add.at(sums, unit, powers)
    return sums


def tallied_classes(judged: Judged, unit: np.ndarray, units: int, classes: int) -> np.ndarray:
    """Returns (units, 3, classes) the number of right, true and guessed targets; `unit` is each target's."""
    true, guess, counts, *_ = judged
    number = np.ones(len(true)) if counts is None else counts
    right = np.flatnonzero(true == guess)
    sums = np.zeros((units, 3, classes))
    of_right = (unit[right], true[right])
    np.add.at(sums[:, 0], of_right, number[right])
    np.add.at(sums[:, 1], (unit, true), number)
    np.add.at(sums[:, 2], (unit, guess), number)
    return sums


def by_class(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(..., 3, classes) right, true and guessed targets -> (..., classes) F1 and IoU; 0 of a class that is nowhere."""
    right, true, guessed = np.moveaxis(np.asarray(sums, np.float64), -2, 0)
    both = true + guessed
    return 2 * right / np.maximum(both, 1), right / np.maximum(both - right, 1)


def of_classes(sums: np.ndarray, reference: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """(..., 3, classes) right, true and guessed targets -> (...) each metric, as scikit-learn has it."""
    right, true, guessed = np.moveaxis(np.asarray(sums, np.float64), -2, 0)
    both = sums if reference is None else sums + reference
    known = both[..., 1:, :].sum(-2) > 0
    classes = np.maximum(known.sum(-1), 1)
    total = np.maximum(true.sum(-1), 1)
    f1, iou = by_class(sums)
    macro_f1 = f1.sum(-1) / classes
    covariance = right.sum(-1) * total - (true * guessed).sum(-1)
    of_true = total**2 - (true**2).sum(-1)
    of_guessed = total**2 - (guessed**2).sum(-1)
    spread = of_true * of_guessed
    mcc = np.divide(covariance, np.sqrt(spread), out=np.zeros_like(total), where=spread > 0)
    accuracy = right.sum(-1) / total
    mean_iou = iou.sum(-1) / classes
    weighted_f1 = (f1 * true).sum(-1) / total
    return {
        "accuracy": accuracy,
        "macro_f1": macro_f1,
        "mean_iou": mean_iou,
        "mean_dice": macro_f1,
        "weighted_f1": weighted_f1,
        "mcc": mcc,
    }


def of_numbers(sums: np.ndarray) -> dict[str, np.ndarray]:
    """(..., 5, columns) sums of powers -> (...) each metric, the mean over columns."""
    number, centred, squared, distance, error = np.moveaxis(sums, -2, 0)
    number = np.maximum(number, 1)
    spread = squared - centred**2 / number
    share = np.divide(error, spread, out=np.ones_like(error), where=spread > 1e-12 * squared)
    mse = error / number
    columns = {"rmse": np.sqrt(mse), "mse": mse, "mae": distance / number, "r2": 1 - share}
    return {name: values.mean(-1) for name, values in columns.items()}


def balanced(counts: np.ndarray, classes: int) -> np.ndarray:
    """Returns a weight for each class by how often it is a target: all classes weigh alike, a target 1 on average."""
    counts = np.pad(counts, (0, max(0, classes - len(counts))))
    weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return np.where(counts > 0, weights, 1.0).astype(np.float32)
