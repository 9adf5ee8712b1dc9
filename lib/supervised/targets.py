"""The targets of a part, for whoever counts them: as the batches have them, and cheaply where the samples say it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lib.report.progress import working
from lib.supervised.samples import Part, target_of

_AT_ONCE = 64  # samples that are batched to look at their targets
_PROBED = 16  # samples on which a target is compared with its label


def known(task: Any, part: Part) -> np.ndarray:
    """Returns the known targets of a part of a `Supervised` task: (targets,), or (samples, numbers).

    Where a sample's target is its label, which is tried on some, nothing is decoded for it.
    """
    chosen = sorted({round(index) for index in np.linspace(0, len(part) - 1, _PROBED)})
    plain = _plain(task, [part[index].sample for index in chosen])
    if plain is not None and np.array_equal(plain, _batched(task, part, chosen)):
        return _plain(task, [part[index].sample for index in range(len(part))])  # type: ignore[return-value]
    with working(f"Looking at the targets of {part.name}"):
        return _batched(task, part, range(len(part)))


def _plain(task: Any, samples: list[Any]) -> np.ndarray | None:
    """Returns the targets as they stand in the samples; None where they are not one number each."""
    found = [target_of(sample) for sample in samples]
    is_number = all(isinstance(target, int | float | np.number) for target in found)
    if task.kind not in ("classes", "numbers") or not is_number:
        return None
    return np.array(found, dtype=np.float32 if task.kind == "numbers" else np.int64)


def _batched(task: Any, part: Part, chosen: Sequence[int]) -> np.ndarray:
    found = []
    for first in range(0, len(chosen), _AT_ONCE):
        labels = task.labelled([part[index].sample for index in chosen[first : first + _AT_ONCE]])["labels"]
        found.append(task.judged(task.placed(labels)))
    return torch.cat(found).numpy()
