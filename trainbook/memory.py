"""Memory helpers for an own loop: what a step will take, what is taken now, a step retried in smaller parts."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from lib.errors import BadInput, TrainingFailed
from lib.machine import memory
from lib.machine.memory import check_memory, clear_memory, is_oom
from lib.planner import Prediction, predict, predict_inference

__all__ = [
    "Prediction", "check_memory", "clear_memory", "is_oom", "predict", "predict_inference", "retry_smaller",
]  # fmt: skip

Result = TypeVar("Result")


def retry_smaller(
    step: Callable[[Any, float], Result],
    batch: Any,
    forget: Callable[[], Any],
    most: int = 0,
) -> tuple[list[Result], int]:
    """Calls step(part, share) for the parts of a batch; if memory runs out, begins again with parts of half the size.

        losses, most = retry_smaller(step, batch, optimizer.zero_grad, most)
        optimizer.step()

    `step` computes a part's mean loss and calls `(share * loss).backward()`: the shares sum to 1, so
    the gradient is that of the whole batch. `forget` drops the gradients of a failed try. `most` is
    the largest part (0: the batch). Returns what `step` returned for each part, and the size that
    fitted, with which the next batch begins. A batch is a tensor, or a dict, list or tuple of such,
    samples first. Dropout draws other numbers in smaller parts, and batch norm sees smaller batches.
    Raises TrainingFailed where one sample is too large, and BadInput under several ranks, which
    would wait for one another.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise BadInput("retry_smaller works in one process alone. Lower the batch of all ranks.")
    count = _samples(batch)
    most = most or count
    size = min(most, count)
    while True:
        results = _tried(step, batch, count, size)
        if results is not None:
            return results, most
        forget()  # outside of the except block, whose traceback holds the activations
        memory.clear_memory()
        if size == 1:
            raise TrainingFailed(
                "Memory ran out with one sample at once. Make the model or its input smaller, compute "
                "activations again (torch.utils.checkpoint), or take a larger card."
            )
        most = size = (size + 1) // 2
        print(f"Memory ran out: the step is repeated with {size} samples at once.", flush=True)


def _tried(
    step: Callable[[Any, float], Result], batch: Any, count: int, size: int
) -> list[Result] | None:
    """Returns the results of all parts, None if memory ran out."""
    results = []
    try:
        for first, last in itertools.pairwise([*range(0, count, size), count]):
            part = batch if size == count else _part(batch, first, last)
            results.append(step(part, (last - first) / count))
    except Exception as error:
        if not memory.is_oom(error):
            raise
        return None
    return results


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        batch = [*batch.values()]
    if isinstance(batch, list | tuple) and batch:
        return [tensor for value in batch for tensor in _tensors(value)]
    raise BadInput(
        f"A batch holds {type(batch).__name__}, which cannot be split. Give tensors, or dicts, lists and "
        "tuples of tensors."
    )


def _samples(batch: Any) -> int:
    """Returns the number of samples of a batch. Raises BadInput where its tensors differ in it, or have none."""
    counts = {len(tensor) if tensor.ndim else 0 for tensor in _tensors(batch)}
    if len(counts) > 1 or 0 in counts:
        found = ", ".join(map(str, sorted(counts)))
        raise BadInput(
            f"The tensors of a batch have {found} samples. Give tensors whose first dimension counts the "
            "same samples, at least one."
        )
    return counts.pop()


def _part(batch: Any, first: int, last: int) -> Any:
    """Returns the samples of a batch from `first` to before `last`."""
    if isinstance(batch, Tensor):
        return batch[first:last]
    if isinstance(batch, Mapping):
        return {name: _part(value, first, last) for name, value in batch.items()}
    parts = [_part(value, first, last) for value in batch]
    return tuple(parts) if isinstance(batch, tuple) else parts
