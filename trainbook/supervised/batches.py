"""Processes many items in batches; halves the batch when memory runs out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lib.errors import TrainingFailed
from lib.machine import memory


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
