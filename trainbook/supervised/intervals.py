"""Intervals of scores over draws of groups."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

_SEED = 1  # of the draws: two methods on the same units meet the same ones
_AT_ONCE = 1000  # draws
_BOUNDS = (2.5, 97.5)  # per cent
_SURE = 0.975  # on each side


class Interval(NamedTuple):
    """A score, and the bounds that hold 95 % of its draws; NaN without draws."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_shown(self.value):.3f}{self._bounds('.3f')}"

    @property
    def signed(self) -> str:
        return f"{_shown(self.value):+.3f}{self._bounds('+.3f')}"

    @property
    def has_bounds(self) -> bool:
        return not math.isnan(self.low)

    @property
    def side(self) -> int:
        """The sign of a gain: 0 if its interval holds 0, or if it is printed as 0."""
        if self.has_bounds and self.low <= 0 <= self.high:
            return 0
        value = _shown(self.value)
        return (value > 0) - (value < 0)

    def _bounds(self, form: str) -> str:
        if math.isfinite(self.low) and math.isfinite(self.high):
            return f" [{_shown(self.low):{form}}, {_shown(self.high):{form}}]"
        return ""


def _shown(value: float) -> float:
    """Rounds a score as it is printed; -0.0004 becomes 0 without a sign."""
    return round(value, 3) + 0.0


def weights_of_draws(units: int, draws: int) -> Iterator[np.ndarray]:
    """Yields for each draw (units) how often each unit comes, of as many units drawn with replacement."""
    generator = np.random.default_rng(_SEED)
    shares = np.full(units, 1 / units)
    for _ in range(draws):
        yield generator.multinomial(units, shares)


def resampled(counts: np.ndarray, draws: int) -> np.ndarray:
    """(units, ...) counts -> (draws, ...) sums over as many units, drawn with replacement."""
    flat = counts.reshape(len(counts), -1)
    weights = weights_of_draws(len(counts), draws)
    sums = []
    while some := [*islice(weights, _AT_ONCE)]:
        sums.append(np.array(some, np.float64) @ flat)
    return np.concatenate(sums).reshape(draws, *counts.shape[1:])


def intervals(values: np.ndarray, draws: np.ndarray, units: int) -> list[Interval]:
    """(M) values and (draws, M) the same of each draw -> M intervals; of one unit nothing can be drawn."""
    if units > 1 and len(draws):
        low, high = np.percentile(draws, _BOUNDS, axis=0)
    else:
        low, high = np.full((2, len(values)), math.nan)
    return [Interval(*map(float, ends)) for ends in zip(values, low, high, strict=True)]


def of_gain(
    value: float,
    draws: np.ndarray,
    differing: int,
    sure: float = _SURE,
    largest: float = math.inf,
) -> Interval:
    """Returns the interval of a gain by its draws, `sure` on each side; `differing` units have a share in it.

    No gain is larger than `largest`, nor is an end of its interval.

    Its ends are as much further from the value as Student's quantile is from the normal one: draws of few units are
    too sure (Hesterberg, 2015, What teachers should know about the bootstrap, 3.2). Units in which both methods say
    the same tell nothing of the others: of four that differ, all may be in favour by chance, once in sixteen times.
    """
    from scipy import stats  # a second that a process which only loads data does not need

    value = float(value)
    if not len(draws):
        return Interval(value, math.nan, math.nan)
    if not differing:
        return Interval(value, value, value)
    if differing == 1:
        return Interval(value, -math.inf, math.inf)
    low, high = map(float, np.percentile(draws, (100 * (1 - sure), 100 * sure)))
    wider = float(stats.t.ppf(sure, differing - 1) / stats.norm.ppf(sure))
    wider *= math.sqrt(differing / (differing - 1))
    low = max(value - wider * (value - low), -largest)
    high = min(value + wider * (high - value), largest)
    return Interval(value, low, high)


def least(whole: np.ndarray, others: np.ndarray, sure: float) -> np.ndarray:
    """(...) gains of all units and (units, ...) those without each -> the lower ends, on one side `sure`.

    These are Student's, over pseudo-values (Tukey, 1958): draws of few units are too sure.
    """
    from scipy import stats  # a second that a process which only loads data does not need

    units = len(others)
    pseudo = units * whole - (units - 1) * others
    spread = stats.t.ppf(sure, units - 1) * pseudo.std(0, ddof=1)
    return pseudo.mean(0) - spread / math.sqrt(units)
