"""Work on many items in batches that become smaller where memory runs out."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from lib.errors import TrainingFailed
from lib.machine import memory

Item, Result = TypeVar("Item"), TypeVar("Result")


def in_batches(work: Callable[[Sequence[Item]], Result], items: Sequence[Item], most: int) -> Iterator[Result]:
    """Yields `work` of each batch of at most `most` items, in their order.

    Where memory runs out, a batch is repeated with half as many items and later ones stay as small. Raises
    TrainingFailed where a single item does not fit.
    """
    done, most = 0, min(most, len(items))
    while done < len(items):
        try:
            result = work(items[done : done + most])
        except Exception as error:
            if not memory.is_oom(error):
                raise
            if most == 1:
                raise TrainingFailed(
                    "Memory ran out with a single sample. Make the samples smaller, vote with fewer models at once, or "
                    "take a card or a machine with more memory."
                ) from error
            result = None
        if result is None:  # outside the except block, where the traceback no longer pins the activations
            memory.clear_memory()
            most //= 2
            print(f"Memory ran out. The work goes on with {most} samples at once; its results stay the same.")
            continue
        yield result
        done += most
