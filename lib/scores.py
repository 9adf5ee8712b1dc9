"""Intervals of scores over draws of groups."""

import math
from typing import NamedTuple

import numpy as np

_SEED = 1  # of the draws: two methods on the same units meet the same ones
_AT_ONCE = 1000  # draws
_BOUNDS = (2.5, 97.5)  # per cent


class Interval(NamedTuple):
    """A score, and the bounds that 95 % of the draws of what was tested lie in; NaN where there is but one to draw."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f}" + ("" if math.isnan(self.low) else f" [{self.low:.3f}, {self.high:.3f}]")

    @property
    def signed(self) -> str:
        return f"{self.value:+.3f}" + ("" if math.isnan(self.low) else f" [{self.low:+.3f}, {self.high:+.3f}]")


def resampled(counts: np.ndarray, draws: int) -> np.ndarray:
    """(units, ...) counts -> (draws, ...) sums over as many units, drawn with replacement."""
    units, draw = len(counts), np.random.default_rng(_SEED)
    sizes = [_AT_ONCE] * (draws // _AT_ONCE) + [draws % _AT_ONCE] * bool(draws % _AT_ONCE)
    weights = (draw.multinomial(units, np.full(units, 1 / units), size) for size in sizes)
    sums = [each.astype(np.float64) @ counts.reshape(units, -1) for each in weights]
    return np.concatenate(sums).reshape(draws, *counts.shape[1:])


def intervals(values: np.ndarray, draws: np.ndarray, units: int) -> list[Interval]:
    """(M) values and (draws, M) the same of each draw -> M intervals; of one unit nothing can be drawn."""
    low, high = np.percentile(draws, _BOUNDS, axis=0) if units > 1 else np.full((2, len(values)), math.nan)
    return [Interval(*map(float, ends)) for ends in zip(values, low, high, strict=True)]


def least(whole: np.ndarray, others: np.ndarray, sure: float) -> np.ndarray:
    """(...) gains of all units and (units, ...) those without each -> the lower ends, on one side `sure`.

    These are Student's, over pseudo-values (Tukey, 1958): draws of few units are too sure.
    """
    from scipy import stats  # a second that a process which only loads data does not need

    units = len(others)
    pseudo = units * whole - (units - 1) * others
    return pseudo.mean(0) - stats.t.ppf(sure, units - 1) * pseudo.std(0, ddof=1) / math.sqrt(units)


def concluded(name: str, best: str, measure: str, gain: Interval, units: int, unit: str, is_error: bool = False) -> str:
    """Returns a sentence on whether a method is above the strongest baseline, as far as draws of the units can tell.

    Of an error, of which less is better, it says so: "better than".
    """
    sides = ("level with", "worse than", "better than") if is_error else ("level with", "above", "below")
    side = sides[(gain.value > 0) - (gain.value < 0)]
    beside = f"{name} is {side} the strongest baseline by {measure}, {best}: {gain.signed}"
    if math.isnan(gain.low):
        return f"{beside}. There is one {unit} alone, so nothing says how far chance goes."
    if gain.low <= 0 <= gain.high:
        return f"{beside}. The interval, over draws of {units:,} {unit}s, holds 0: this test does not tell them apart."
    return f"{beside}. The interval is over draws of {units:,} {unit}s, paired."
