"""The targets of a part, for whoever counts them: as the batches have them, and cheaply where the samples say it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lib.report.progress import working
from lib.supervised.parts import Part
from lib.supervised.samples import IGNORED, target_of

_AT_ONCE = 64  # samples that are batched to look at their targets
_PROBED = 16  # samples on which a target is compared with its label


def known(task: Any, part: Part) -> np.ndarray:
    """Returns the known targets of a part of a `Supervised` task: (targets,), or (samples, numbers).

    Where a sample's target is its label, which is tried on some, nothing is decoded for it.
    """
    if (plain := _as_they_stand(task, part)) is not None:
        return plain
    with working(f"Looking at the targets of {part.name}"):
        return torch.cat([*_batched(task, part, range(len(part)))]).numpy()


def class_counts(task: Any, part: Part) -> np.ndarray:
    """Returns how often each class is a target, (classes); of the targets no more than a batch is held at once."""
    if (plain := _as_they_stand(task, part)) is not None:
        return np.bincount(plain)
    counts = np.zeros(0, np.int64)
    with working(f"Looking at the targets of {part.name}"):
        for labels in _batched(task, part, range(len(part))):
            more = np.bincount(labels.numpy(), minlength=len(counts))
            more[: len(counts)] += counts
            counts = more
    return counts


def _as_they_stand(task: Any, part: Part) -> np.ndarray | None:
    """Returns the targets that the samples have; None where some are no numbers, or other ones than the labels."""
    chosen = sorted({round(index) for index in np.linspace(0, len(part) - 1, _PROBED)})
    plain = _plain(task, [part[index].sample for index in chosen])
    if plain is None or not np.array_equal(plain, torch.cat([*_batched(task, part, chosen)]).numpy()):
        return None
    return _plain(task, [part[index].sample for index in range(len(part))])


def _plain(task: Any, samples: list[Any]) -> np.ndarray | None:
    """Returns the targets as they stand in the samples; None where they are not one number each."""
    found = [target_of(sample) for sample in samples]
    is_number = all(isinstance(target, int | float | np.number) for target in found)
    if task.kind not in ("classes", "numbers") or not is_number:
        return None
    values = np.array(found, dtype=np.float32 if task.kind == "numbers" else np.int64)
    return values[~np.isnan(values) if task.kind == "numbers" else values != IGNORED]


def _batched(task: Any, part: Part, chosen: Sequence[int]) -> Iterator[Tensor]:
    for first in range(0, len(chosen), _AT_ONCE):
        labels = task.labelled([part[index].sample for index in chosen[first : first + _AT_ONCE]])["labels"]
        yield task.judged(task.placed(labels))
