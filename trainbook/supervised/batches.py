"""Batches: work that becomes smaller where memory runs out, and what of a batch the model gets."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from lib.errors import TrainingFailed
from lib.machine import memory
from lib.task import Batch


def in_batches(
    work: Callable[[Sequence[Any]], Any], items: Sequence[Any], most: int
) -> Iterator[Any]:
    """Yields `work` of batches, halved once memory runs out. Raises TrainingFailed if a single item does not fit."""
    done = 0
    most = min(most, len(items))
    while done < len(items):
        try:
            result = work(items[done : done + most])
        except Exception as error:
            if not memory.is_oom(error):
                raise
            if most == 1:
                raise TrainingFailed(
                    "Memory ran out with a single sample. Make samples smaller."
                ) from error
        else:
            yield result
            done += most
            continue
        memory.clear_memory()  # outside the except block: inside it the traceback pins the activations
        most //= 2
        print(
            f"Memory ran out. The work goes on with {most} samples at once; its results stay the same."
        )


def without_texts(batch: Batch) -> Batch:
    """Returns what of a batch the model gets: texts, and lists of words, are for `features` alone."""
    kept = {}
    for name, value in batch.items():
        if isinstance(value, Tensor) or not _is_text(value):
            kept[name] = value
    return kept


def _is_text(value: Any) -> bool:
    """Returns whether a value is a text, or a list of nothing but texts or such lists."""
    if isinstance(value, list | tuple):
        return all(map(_is_text, value))
    return isinstance(value, str)
