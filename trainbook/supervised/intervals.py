"""Intervals of scores over draws of groups."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

_SEED = 1  # of the draws: two methods on the same units meet the same ones
_AT_ONCE = 1000  # draws
_BOUNDS = (2.5, 97.5)  # per cent


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
        if self.has_bounds:
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


def least(whole: np.ndarray, others: np.ndarray, sure: float) -> np.ndarray:
    """(...) gains of all units and (units, ...) those without each -> the lower ends, on one side `sure`.

    These are Student's, over pseudo-values (Tukey, 1958): draws of few units are too sure.
    """
    from scipy import stats  # a second that a process which only loads data does not need

    units = len(others)
    pseudo = units * whole - (units - 1) * others
    spread = stats.t.ppf(sure, units - 1) * pseudo.std(0, ddof=1)
    return pseudo.mean(0) - spread / math.sqrt(units)


def concluded(
    name: str,
    best: str,
    measure: str,
    gain: Interval,
    units: int,
    unit: str,
    is_error: bool = False,
    why: str = "",
) -> str:
    """Returns a sentence on whether a method is above the strongest baseline, as far as draws of the units can tell.

    Of an error, of which less is better, it says "better than". `why`: the reason for a gain without interval.
    """
    sides = ("level with", "above", "below")
    if is_error:
        sides = ("level with", "worse than", "better than")
    side = sides[gain.side]
    beside = f"{name} is {side} the strongest baseline by {measure}, {best}: {gain.signed}"
    if units == 1:
        return f"{beside}. There is one {unit} alone, so nothing says how far chance goes."
    if not gain.has_bounds:
        return f"{beside}. {why or f'{measure} has no interval.'} Nothing says how far chance goes."
    if gain.low <= 0 <= gain.high:
        return (
            f"{beside}. The interval, over draws of {units:,} {unit}s, holds 0: "
            "this test does not tell them apart."
        )
    return f"{beside}. The interval is over draws of {units:,} {unit}s, paired."
