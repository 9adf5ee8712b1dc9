"""What the ranks did apart becomes one step: the sums of their gradients and losses, and the batch statistics."""

import torch
from torch import Tensor, nn

from lib import ranks
from lib.state import State


def over_ranks(state: State, means: dict[str, Tensor], buffers: list[dict[str, Tensor]]) -> None:
    """Turns each rank's gradients and losses into those of the whole effective batch, and batch statistics too."""
    if ranks.world() == 1:
        return
    summed = list(means.values())
    if not state.sharded:  # there the backward pass has added them up already
        used = ranks.highest(*(parameter.grad is not None for parameter in state.parameters))
        for parameter, somewhere in zip(state.parameters, used, strict=True):
            if somewhere and parameter.grad is None:  # -0.0 is what leaves every addend its bits
                parameter.grad = torch.full_like(parameter, -0.0)
        summed += [parameter.grad for parameter in state.parameters if parameter.grad is not None]
    ranks.add_up(summed)
    _chain_statistics(state, buffers)


def _chain_statistics(state: State, before: list[dict[str, Tensor]]) -> None:
    """Batch statistics become what one process has after the slots of all ranks in turn.

    A rank's update is r -> D r + u, where D is the decay over its micro-batches; one after another they are
    D^n r + the sum over the ranks i of D^(n - 1 - i) u_i.
    """
    summed, after = [], []
    for module, old in zip(state.with_buffers, before, strict=True):
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
    ranks.add_up(summed)
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


def about_norms(state: State) -> str:
    """What is to be said of batch norms on several ranks; nothing for a model without."""
    if not any(map(_has_statistics, state.with_buffers)):
        return ""
    return (
        "Batch norms see one micro-batch at a time, as in one process (this is no SyncBatchNorm): where that is few "
        "samples, a group norm does better."
    )
