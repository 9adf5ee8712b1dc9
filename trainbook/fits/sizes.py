"""The largest batch, the longest sequence, or any other size of a step that fits a card, for any model."""

from collections.abc import Callable
from dataclasses import dataclass

from lib.errors import BadInput
from lib.machine.memory import GIB
from lib.planner import Prediction


@dataclass(frozen=True)
class Largest:
    """The largest size that fits, 0 for none, with its prediction; where none fits, that of the smallest size."""

    size: int
    prediction: Prediction
    traced: tuple[int, ...]  # every size that was predicted

    def __str__(self) -> str:
        if self.size:
            return f"{self.size:,} is the largest size that fits.\n{self.prediction}"
        needed = self.prediction.peak_bytes / GIB
        return f"No size fits: {min(self.traced):,} alone takes {needed:.2f} GiB.\n{self.prediction}"


def largest(predicted: Callable[[int], Prediction], *, most: int = 2**17, multiple: int = 1) -> Largest:
    """Returns the largest size up to `most` whose prediction fits, and of which `multiple` is a factor.

        largest(lambda size: predict(Net, lambda net: loss(net, size), "t4"), multiple=8)

    Memory grows with the size on a line or faster, so a few predictions are enough; the answer is always traced. Raises
    BadInput for bounds that leave no size, and what a prediction raises.
    """
    if type(most) is not int or type(multiple) is not int or not 1 <= multiple <= most:
        raise BadInput(f"There is no size from multiple {multiple!r} to most {most!r}. Give whole numbers from 1.")
    traced: dict[int, Prediction] = {}  # by multiples
    fails = end = most // multiple + 1
    while (trial := _next({n: p for n, p in traced.items() if p.fits}, fails, end)) < fails:
        traced[trial] = predicted(trial * multiple)
        if not traced[trial].fits:
            fails = trial
    size = fails - 1
    return Largest(size * multiple, traced[size or 1], tuple(n * multiple for n in traced))


def _next(fitting: dict[int, Prediction], fails: int, end: int) -> int:
    """Returns the next number to try, above all that fit: on the line through the largest two, else by halves.

    `fails` is the smallest known to fail, `end` what it was before anything failed.
    """
    *_, before, best = [0, 0, *sorted(fitting)]
    if not before:
        return min(2 * best or 1, max(fails - 1, best + 1))
    slope = (fitting[best].peak_bytes - fitting[before].peak_bytes) / (best - before)
    guess = best + int((fitting[best].limit_bytes - fitting[best].peak_bytes) / max(1.0, slope))
    if guess >= fails:
        guess = fails - 1 if fails == end else (best + fails) // 2
    return max(guess, best + 1)
