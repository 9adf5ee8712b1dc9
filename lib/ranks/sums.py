"""Sums over the ranks: counts, gradients and losses, and the batch statistics of one process."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib import ranks
from lib.ranks import gathered

BUCKET_BYTES = 25 * 2**20  # gradients are summed in pieces of this size; each takes as much memory for a moment


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums numbers by name over several mappings and over the ranks; a name that one lacks counts 0 there."""
    mine: Counter[str] = Counter()
    for names in counts:
        mine.update({name: int(number) for name, number in names.items()})
    if ranks.world() == 1:
        return dict(mine)
    total: Counter[str] = Counter()
    for numbers in gathered(mine):
        total.update(numbers)
    return dict(total)


def add_up(tensors: Sequence[Tensor]) -> None:
    """Puts the sum over the ranks into each of these tensors, which must be alike on all of them."""
    if ranks.world() == 1:
        return
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in bucket])
        torch._foreach_copy_(bucket, [part.view(t.shape) for part, t in zip(parts, bucket, strict=True)])


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one kind of number, BUCKET_BYTES at most together; a larger one alone."""
    bucket: list[Tensor] = []
    held = 0
    for tensor in tensors:
        if bucket and (held + tensor.nbytes > BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, held = [], 0
        bucket.append(tensor)
        held += tensor.nbytes
    if bucket:
        yield bucket


def over_ranks(
    parameters: Sequence[nn.Parameter],
    means: Mapping[str, Tensor],
    with_buffers: Sequence[nn.Module],
    buffers: Sequence[Mapping[str, Tensor]],
    sharded: bool,
) -> None:
    """Turns each rank's gradients and losses into those of the whole effective batch, and batch statistics too."""
    if ranks.world() == 1:
        return
    summed = list(means.values())
    if not sharded:  # there the backward pass has added them up already
        used = ranks.highest(*(parameter.grad is not None for parameter in parameters))
        for parameter, somewhere in zip(parameters, used, strict=True):
            if somewhere and parameter.grad is None:  # -0.0 is what leaves every addend its bits
                parameter.grad = torch.full_like(parameter, -0.0)
        summed += [parameter.grad for parameter in parameters if parameter.grad is not None]
    add_up(summed)
    _chain_statistics(with_buffers, buffers)


def _chain_statistics(modules: Sequence[nn.Module], before: Sequence[Mapping[str, Tensor]]) -> None:
    """Batch statistics become what one process has after the slots of all ranks in turn.

    A rank's update is r -> D r + u, where D is the decay over its micro-batches; one after another they are
    D^n r + the sum over the ranks i of D^(n - 1 - i) u_i.
    """
    summed, after = [], []
    for module, old in zip(modules, before, strict=True):
        if not _has_statistics(module):
            continue
        counter, counted = module.num_batches_tracked, old["num_batches_tracked"]
        passes, seen = int(counter - counted), int(counted)
        decay, whole, share = decays(module.momentum, passes, seen)
        counter.fill_(seen + passes * ranks.world())
        for name in ("running_mean", "running_var"):
            statistic = module._buffers[name]
            statistic.sub_(old[name], alpha=decay).mul_(share)
            summed.append(statistic)
            after.append((statistic, old[name], whole))
    add_up(summed)
    for statistic, earlier, whole in after:
        statistic.add_(earlier, alpha=whole)


def decays(momentum: float | None, passes: int, seen: int) -> tuple[float, float, float]:
    """Of a batch norm's statistics: the decay over a rank's passes, over those of all, and the factor of its update.

    Without a momentum they are the mean over all passes so far.
    """
    world, rank = ranks.world(), ranks.rank()
    if momentum is None:
        alone, all_of_them = seen + passes, max(1, seen + passes * world)
        return seen / max(1, alone), seen / all_of_them, alone / all_of_them
    decay = (1 - momentum) ** passes
    return decay, decay**world, decay ** (world - 1 - rank)


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats


def about_norms(modules: Sequence[nn.Module]) -> str:
    """What is to be said of batch norms on several ranks; nothing for a model without."""
    if not any(map(_has_statistics, modules)):
        return ""
    return (
        "Batch norms see one micro-batch at a time, as in one process (this is no SyncBatchNorm): where that is few "
        "samples, a group norm does better."
    )
