"""Bootstrap of metrics that do not follow from sums: each draw takes whole units again and scores their rows."""

import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lib.report.progress import working
from trainbook.supervised import scoring
from trainbook.supervised.intervals import weights_of_draws
from trainbook.supervised.scoring import Judged, Metric

# Numbers judged in all draws. With 0.15 microseconds each (rankdata, 2026-11) that is about three seconds; a call of
# scikit-learn takes as long as 4,000 of them.
_MOST_JUDGED = 20_000_000
_CALL = 4000
_MOST_DRAWS = 500
_FEWEST_DRAWS = 50  # 500: a call of scikit-learn takes 1 to 3 ms for each method
_LIMIT_SECONDS = 20.0  # of a metric's draws: a function may take any time


class Draws(NamedTuple):
    """Scores of one metric, (draws, methods), without draws that have none, and a sentence if some are missing."""

    scores: np.ndarray
    about: str = ""


def of_metric(metric: Metric, rows: Sequence[Judged], unit: np.ndarray, units: int) -> Draws:
    """Scores the rows of drawn units for each method, paired; `unit` is each sample's.

    Without enough draws `scores` is empty and `about` gives the reason.
    """
    if units == 1:
        return Draws(np.empty((0, len(rows))))
    name = scoring.name_of(metric)
    number = _affordable(rows)
    units_of_rows = [unit[judged.sample] for judged in rows]
    scores: list[list[float]] = []
    begin = time.monotonic()
    with working(f"Drawing the interval of {name}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of every draw that lacks a class
        for weights in weights_of_draws(units, number):
            pairs = zip(rows, units_of_rows, strict=True)
            scores.append(
                [_scored(metric, judged, weights[own_units]) for judged, own_units in pairs]
            )
            if time.monotonic() - begin > _LIMIT_SECONDS:
                break
    return _described(name, np.array(scores), number)


def _affordable(rows: Sequence[Judged]) -> int:
    """Returns how many draws the size of the test allows."""
    numbers = sum(_CALL + judged.true.size * _width(judged) for judged in rows)
    return max(_FEWEST_DRAWS, min(_MOST_DRAWS, _MOST_JUDGED // numbers))


def _width(judged: Judged) -> int:
    if judged.shares is None:
        return 1
    return judged.shares.shape[1]


def _scored(metric: Metric, judged: Judged, times: np.ndarray) -> float:
    """Scores rows that are repeated `times`; NaN if the metric has no value there, as for one class alone."""
    places = np.repeat(np.arange(len(judged.true)), times)
    try:
        return float(scoring.score(metric, judged.at(places)))
    except (ValueError, ArithmeticError, LookupError):  # it did score the whole test
        return np.nan


def _described(name: str, scores: np.ndarray, wanted: int) -> Draws:
    """Drops draws without a value; says how many, and why there is no interval if too few are left."""
    drawn = len(scores)
    scores = scores[np.isfinite(scores).all(1)]
    undefined = drawn - len(scores)
    nothing = scores[:0]
    if drawn < min(wanted, _FEWEST_DRAWS):
        return Draws(nothing, f"{name} has no interval: {drawn} draws took {_LIMIT_SECONDS:g} s.")
    if undefined > len(scores):
        return Draws(
            nothing, f"{name} has no interval: it has no value in {undefined:,} of {drawn:,} draws."
        )
    if undefined:
        return Draws(scores, f"{name}: {len(scores):,} draws; {undefined:,} more have no value.")
    slow = f", which took {_LIMIT_SECONDS:g} s" if drawn < wanted else ""
    return Draws(scores, f"{name}: {drawn:,} draws{slow}.")
