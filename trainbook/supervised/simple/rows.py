"""Collects rows of training samples, a row a target, until time or memory is used up."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lib.report.progress import counted
from lib.task import Batch
from trainbook.supervised.samples import prepared
from trainbook.supervised.simple import encoded
from trainbook.supervised.simple.columns import VIEWS
from trainbook.supervised.simple.seen import seen

AT_ONCE = 16  # samples of a batch
_MOST_BYTES = 2**29  # of numbers that are seen
_OBJECT_BYTES = 200  # about, for a text or a word
_ENCODED = {view.form for view in VIEWS.values() if view.is_encoded}
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
    `vectors` (some, D) are the encoder's of the first ones, and `probe` (D) is its vector of the task's example.
    """

    form: str
    values: np.ndarray
    target: np.ndarray
    fold: np.ndarray
    total: int
    vectors: np.ndarray
    probe: np.ndarray | None

    def first(self, number: int) -> "Rows":
        return self._replace(
            values=self.values[:number],
            target=self.target[:number],
            fold=self.fold[:number],
            vectors=self.vectors[:number],
        )


def collected(task: Any, common: np.ndarray, clock: Clock) -> Rows | None:
    """Returns the rows of training samples with a class in `common`; None for an unknown form.

    It ends when a third of the time is used up, or the memory. Encoding may take half of the time beside that.
    """
    part = task.parts["train"]
    places = np.random.default_rng(0).permutation(len(part)).tolist()
    taken = list[Rows]()
    size = 0
    encoding = _Encoding(task, clock.seconds / 2)
    for first in encoding.shown(range(0, len(places), AT_ONCE)):
        some = places[first : first + AT_ONCE]
        rows = _batch_rows(task, some, common, len(places), encoding)
        if rows is None:
            return None
        taken.append(rows)
        size += _size(rows.values) + rows.vectors.nbytes
        used = clock.seconds - clock.left - encoding.used
        if size > _MOST_BYTES or used > clock.seconds / 3:
            break
    if not taken:
        return None
    values, target, fold, vectors = (
        np.concatenate([getattr(rows, name) for rows in taken])
        for name in ("values", "target", "fold", "vectors")
    )
    seen_samples = min(len(places), AT_ONCE * len(taken))
    total = round(sum(rows.total for rows in taken) * len(places) / seen_samples)
    return Rows(taken[0].form, values, target, fold, total, vectors, encoding.probe)


class _Encoding:
    """Encodes batches of a task with an encoder, until the time for it is used up."""

    def __init__(self, task: Any, seconds: float):
        self.task = task
        self.seconds = seconds
        self.used = 0.0
        self.probe = vars(task).get("_probe")  # known since `is_at_hand`

    def shown(self, places: range) -> Iterable[int]:
        """Returns places, with a line of their progress if they are encoded."""
        if self.probe is None:
            return places
        return counted(places, "Encoding training samples")

    def vectors(self, batch: Batch, form: str) -> np.ndarray:
        """Returns (rows, D), or (0, D) without an encoder, a form that it reads, or time."""
        if self.probe is None:
            return np.zeros((0, 0), np.float32)
        if form not in _ENCODED or self.used > self.seconds:
            return np.zeros((0, len(self.probe)), np.float32)
        begin = time.monotonic()
        vectors = encoded.vectors(self.task, batch)
        self.used += time.monotonic() - begin
        return vectors


def _size(values: np.ndarray) -> int:
    return values.size * _OBJECT_BYTES if values.dtype == object else values.nbytes


def _batch_rows(
    task: Any, places: Sequence[int], common: np.ndarray, samples: int, encoding: _Encoding
) -> Rows | None:
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
    vectors = encoding.vectors(batch, form)
    if len(vectors):
        vectors = vectors[chosen]
    return Rows(form, values[chosen], target[chosen], fold[chosen], total, vectors, encoding.probe)
