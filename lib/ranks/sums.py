"""Sums counts, gradients and losses over the ranks, and gives them the batch statistics of a single process."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib import private, ranks
from lib.errors import BadInput
from lib.ranks import gathered

BUCKET_BYTES = 25 * 2**20  # gradients are summed in pieces, to copy little at a time


def add_counts(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums numbers by name over several mappings and over the ranks, exactly. Raises BadInput for other values."""
    mine = [{name: _checked(name, number) for name, number in named.items()} for named in counts]
    numbers: dict[str, list[float]] = {}
    for named in itertools.chain.from_iterable(gathered(mine)):
        for name, number in named.items():
            numbers.setdefault(name, []).append(number)
    return {name: _exact_sum(each) for name, each in numbers.items()}


def _exact_sum(numbers: Sequence[float]) -> float:
    if all(isinstance(number, int) for number in numbers):
        return sum(numbers)
    return math.fsum(numbers)


def _checked(term: str, number: Any) -> float:
    value = number.item() if hasattr(number, "item") else number  # a scalar of torch or NumPy
    if not isinstance(value, Real) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise BadInput(
            f"Task.count returned {value} for the loss term {term!r}. Return how many valid targets the term has in "
            "the batch: a finite number, 0 or more."
        )
    if isinstance(value, Integral):
        return int(value)
    return float(value)


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replaces each tensor by its sum over the ranks, in buckets of one dtype; all ranks have the same shapes."""
    if ranks.world() == 1:
        return
    for bucket in private.buckets(tensors, BUCKET_BYTES):
        flat = private.flattened(bucket)
        dist.all_reduce(flat)
        private.copy_into(bucket, private.unflattened(flat, bucket))


def over_ranks(
    parameters: Sequence[nn.Parameter], means: Mapping[str, Tensor], with_buffers: Sequence[nn.Module],
    buffers: Sequence[Mapping[str, Tensor]],
) -> None:  # fmt: skip
    """Reduces gradients, losses and batch statistics of each rank to the whole effective batch, in place.

    `buffers` has, for each of the modules `with_buffers`, copies of its buffers from before this step.
    """
    if ranks.world() == 1:
        return
    used = ranks.highest(*(parameter.grad is not None for parameter in parameters))
    for parameter, somewhere in zip(parameters, used, strict=True):
        if somewhere and parameter.grad is None:
            parameter.grad = torch.full_like(parameter, -0.0)  # x + -0.0 has the bits of x
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    add_up([*means.values(), *gradients])
    # Batch statistics, each of shape (channels,): a rank's update is r -> D r + u, where D is the decay over its
    # micro-batches; of n ranks in turn it is D^n r + the sum over the ranks i of D^(n - 1 - i) u_i.
    summed: list[Tensor] = []
    after: list[tuple[Tensor, Tensor, float]] = []
    for module, old in zip(with_buffers, buffers, strict=True):
        if not (isinstance(module, private.NORMS) and module.track_running_stats):
            continue
        counter = module.get_buffer("num_batches_tracked")
        seen = int(old["num_batches_tracked"])
        passes = int(counter) - seen
        decay, whole, share = decays(module.momentum, passes, seen)
        counter.fill_(seen + passes * ranks.world())
        for name in ("running_mean", "running_var"):
            statistic = module.get_buffer(name)
            statistic.sub_(old[name], alpha=decay).mul_(share)
            summed.append(statistic)
            after.append((statistic, old[name], whole))
    add_up(summed)
    for statistic, earlier, whole in after:
        statistic.add_(earlier, alpha=whole)


def decays(momentum: float | None, passes: int, seen: int) -> tuple[float, float, float]:
    """Returns (decay of one rank, decay of all ranks, weight of this rank's update) for a batch norm's statistics."""
    world = ranks.world()
    rank = ranks.rank()
    if momentum is None:  # they are the mean over all passes
        here = seen + passes
        everywhere = max(1, seen + passes * world)
        return seen / max(1, here), seen / everywhere, here / everywhere
    decay = (1 - momentum) ** passes
    return decay, decay**world, decay ** (world - 1 - rank)
