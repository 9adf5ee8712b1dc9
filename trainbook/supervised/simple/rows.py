"""Collects rows of training samples, a row a target, until time or memory is used up."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from trainbook.supervised.samples import prepared
from trainbook.supervised.simple.seen import seen

AT_ONCE = 16  # samples of a batch
_MOST_BYTES = 2**29  # of numbers that are seen
_OBJECT_BYTES = 200  # about, for a text or a word
_MOST_PIXELS = 100_000  # pixels of a picture are alike


class Clock:
    """A number of seconds that may be used."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._begin = time.monotonic()

    @property
    def left(self) -> float:
        return self._begin + self.seconds - time.monotonic()


class Rows(NamedTuple):
    """What is seen of training samples: `values` (rows, ...), targets and folds (rows).

    They are in an order by chance, so that the first ones stand for all. `total` is about how many rows there are.
    """

    form: str
    values: np.ndarray
    target: np.ndarray
    fold: np.ndarray
    total: int

    def first(self, number: int) -> "Rows":
        values = self.values[:number]
        return self._replace(values=values, target=self.target[:number], fold=self.fold[:number])


def collected(task: Any, common: np.ndarray, clock: Clock) -> Rows | None:
    """Returns the rows of training samples with a class in `common`; None for an unknown form.

    It ends when a third of the time is used up, or the memory.
    """
    part = task.parts["train"]
    places = np.random.default_rng(0).permutation(len(part)).tolist()
    taken = list[Rows]()
    size = 0
    for first in range(0, len(places), AT_ONCE):
        some = places[first : first + AT_ONCE]
        rows = _batch_rows(task, some, common, len(places))
        if rows is None:
            return None
        taken.append(rows)
        size += _size(rows.values)
        if size > _MOST_BYTES or clock.left < clock.seconds * 2 / 3:
            break
    if not taken:
        return None
    values, target, fold = (
        np.concatenate([getattr(rows, name) for rows in taken])
        for name in ("values", "target", "fold")
    )
    seen_samples = min(len(places), AT_ONCE * len(taken))
    total = round(sum(rows.total for rows in taken) * len(places) / seen_samples)
    return Rows(taken[0].form, values, target, fold, total)


def _size(values: np.ndarray) -> int:
    return values.size * _OBJECT_BYTES if values.dtype == object else values.nbytes


def _batch_rows(task: Any, places: Sequence[int], common: np.ndarray, samples: int) -> Rows | None:
    """Returns the rows of some training samples of `samples`; of pixels not more than `_MOST_PIXELS` of all."""
    kind = task._kind
    part = task.parts["train"]
    batch = task.labelled([prepared(task, part.samples[place]) for place in places])
    found = seen(task, batch)
    if found is None:
        return None
    form, values = found
    target = kind.rows_seen(kind.placed(batch["labels"])).numpy()
    a_sample = len(target) // len(places)
    fold = np.repeat([part.fold(place) for place in places], a_sample)
    chosen = np.flatnonzero(kind.learnable(target, common))
    total = len(chosen)
    if form == "surroundings":
        chosen = chosen[:: max(1, samples * a_sample // _MOST_PIXELS)]
    return Rows(form, values[chosen], target[chosen], fold[chosen], total)
