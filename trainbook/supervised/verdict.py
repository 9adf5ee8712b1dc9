"""What a test says of a method beside the strongest baseline, in sentences."""

import math

from trainbook.supervised.intervals import Interval

# Gains are found four times in five with this many standard errors beside the 1.96 of the interval (Cohen, 1988)
_POWER = 0.84
_END = 1.96
_MOST = 1000  # times as many units: more is as good as never


def named(number: int, unit: str) -> str:
    """Returns a number of units, as "1 picture" and "1,200 pictures"."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def concluded(
    name: str, best: str, measure: str, gain: Interval, units: int, unit: str, why: str = ""
) -> str:
    """Returns a sentence on a method beside the strongest baseline: surely above, surely below, or not told apart.

    A gain above 0 is better, of errors too. `why`: the reason for one without interval.
    """
    best = f"the strongest baseline, {best}"
    if units == 1:
        return (
            f"{name} is beside {best}, by {measure}: {gain.signed}. "
            f"There is one {unit} alone, so nothing says how far chance goes."
        )
    if not gain.has_bounds:
        reason = why or f"{measure} has no interval."
        return (
            f"{name} is beside {best}, by {measure}: {gain.signed}. {reason} "
            "Nothing says how far chance goes."
        )
    if gain.side:
        side = "above" if gain.side > 0 else "below"
        return (
            f"{name} is surely {side} {best}, by {measure}: {gain.signed}, "
            f"over draws of {named(units, unit)}, paired."
        )
    return (
        f"This test does not tell {name} and {best}, apart by {measure}: {gain.signed}, "
        f"over draws of {named(units, unit)}, paired.{_more(gain, units, unit)}"
    )


def same(name: str, best: str, units: int, unit: str) -> str:
    """Returns the sentence on an answer that is the simple method's for every unit of the test."""
    return f"{name} is {best} itself: both say the same of each of {named(units, unit)}."


def _more(gain: Interval, units: int, unit: str) -> str:
    """Returns a sentence on how many more units would tell a gain of this size; "" for a gain of 0."""
    if math.isinf(gain.low):
        return f" They differ on one {unit}, and nothing says how far chance goes."
    nearest = gain.low if gain.value > 0 else gain.high
    size = abs(gain.value)
    error = abs(gain.value - nearest) / _END
    if not size:
        return ""
    needed = math.ceil(units * ((_END + _POWER) * error / size) ** 2)
    if needed > _MOST * units:
        return f" A gain that small takes more than {_MOST * units:,} {unit}s to tell."
    more = max(1, needed - units)
    return f" If it stays that large, about {_rounded(more):,} more {unit}s tell it, four times in five."


def _rounded(number: int) -> int:
    """Rounds to two digits."""
    digits = max(0, len(str(number)) - 2)
    return round(number, -digits)


def not_to_use(network: str, best: str, measure: str, gain: Interval) -> str:
    """Returns the sentence on a network that is surely below the strongest baseline."""
    return (
        f"Do not use {network} by itself: it is surely below {best}, by {measure}: {gain.signed}."
    )
