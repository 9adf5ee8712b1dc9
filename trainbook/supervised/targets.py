"""Looks at the targets of a whole part: their values, how often each class comes, their variance."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from lib.report.progress import working
from trainbook.supervised.samples import Part, target_of

_AT_ONCE = 64  # samples that are batched
_TRIED = 16  # samples whose target is compared with its label
_MEASURED = 1024  # samples by which the variance is known to 5 %


def class_counts(task: Any, part: str) -> np.ndarray:
    """Returns (classes) how often each class is a target of a part; no more targets than a batch's are held."""
    key = f"classes of {part}"
    if key not in task._seen:
        counts = np.zeros(0, np.int64)
        for labels in targets(task, task.parts[part]):
            more = np.bincount(labels, minlength=len(counts))
            more[: len(counts)] += counts
            counts = more
        task._seen[key] = counts
    return task._seen[key]


def variance(task: Any) -> float:
    """Returns the mean variance of the training targets over their columns, by 1,024 samples; 1 if they are alike."""
    rows = task.parts["train"].samples
    places = sorted(random.Random(0).sample(range(len(rows)), min(len(rows), _MEASURED)))
    some = Part(task, "train", [rows[place] for place in places])
    values = np.concatenate([*targets(task, some)])
    columns = np.ma.masked_invalid(values.astype(np.float64).reshape(len(values), -1))
    variance = float(columns.var(0).mean())
    if variance > 1e-12 * float((columns**2).mean()):
        return variance
    return 1.0


def targets(task: Any, part: Part) -> Iterator[np.ndarray]:
    """Yields the known targets of a part. If samples have them as numbers, tried on some, nothing is decoded."""
    tried = sorted({round(index) for index in np.linspace(0, len(part) - 1, _TRIED)})
    some = _plain_targets(task, part, tried)
    if some is not None and np.array_equal(some, _batched_targets(task, part, tried)):
        values = _plain_targets(task, part, range(len(part)))
        if values is not None:
            yield values
            return
    with working(f"Looking at the targets of {part.name}"):
        for first in range(0, len(part), _AT_ONCE):
            yield _batched_targets(task, part, range(first, min(first + _AT_ONCE, len(part))))


def _plain_targets(task: Any, part: Part, places: Sequence[int]) -> np.ndarray | None:
    """Returns the known targets as samples have them; None if they are no numbers."""
    kind = task._kind
    if kind.plain is None:
        return None
    numbers = [target_of(part[place].sample) for place in places]
    if not all(isinstance(number, int | float | np.number) for number in numbers):
        return None
    values = torch.tensor(numbers, dtype=kind.plain)
    return values[kind.known(values)].numpy()


def _batched_targets(task: Any, part: Part, places: Sequence[int]) -> np.ndarray:
    """Returns the known targets as batches have them."""
    kind = task._kind
    batch = task.labelled([part[place].sample for place in places])
    labels = kind.placed(batch["labels"])
    return kind.judged(labels, labels).numpy()
