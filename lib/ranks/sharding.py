"""Divides weights, gradients and optimizer states among the ranks by FSDP2, for states that do not fit one GPU.

A checkpoint holds whole tensors either way, so a run moves freely between one process, several, and sharded ones.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from lib import ranks


def shard(model: nn.Module, device: torch.device, blocks: Iterable[nn.Module] = ()) -> None:
    """Cuts each parameter, of `blocks` first, along its first dimension; gradients are summed, not averaged."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(device.type, (ranks.world(),))
    for block in blocks:
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # what gloo knows, and has no division in it


@contextlib.contextmanager
def gathered_alone(model: nn.Module) -> Iterator[None]:
    """Lets passes inside the block gather the weights as they are in it, and those after it as they are then.

    FSDP2 keeps the model's whole weights outside its blocks after a forward pass without a backward one. After a change
    of the shards they would be out of date.
    """
    from torch.distributed.fsdp import FSDPModule

    divided = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in divided:
        module.reshard()
    try:
        yield
    finally:
        for module in divided:
            module.reshard()


def is_shard(tensor: Tensor) -> bool:
    """Returns whether the tensor is torch's DTensor, of which this rank holds a part."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """Returns this rank's part, a slice along the first dimension, or the tensor itself if it is no shard."""
    return tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """Returns the tensor in its full shape, gathered from all ranks, which must all call this; or itself."""
    return tensor.full_tensor() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def on_first(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors in their full shapes: shards on the first rank's CPU alone, the others unchanged."""
    tensors = {}
    for name, tensor in named.items():
        full = whole(tensor.detach())
        if not is_shard(tensor):
            tensors[name] = tensor
        elif ranks.is_first():
            tensors[name] = full.cpu()
    return tensors


def sharded_like(shard: Tensor, full: Tensor) -> Tensor:
    """Slices `full` the way `shard` is sharded; no communication. Both have the same full shape."""
    if not is_shard(shard):
        return full
    from torch.distributed.tensor import distribute_tensor

    full = full.to(shard.device)
    return distribute_tensor(full, shard.device_mesh, shard.placements, src_data_rank=None)  # type: ignore[attr-defined]


def update_scale(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, finite: bool) -> None:
    """Updates the loss scale by `finite`, which all ranks agreed on: each rank alone sees only its own shard."""
    if ranks.world() > 1 and scaler.is_enabled() and not finite:
        for infinite in scaler._found_inf_per_device(optimizer).values():
            infinite.fill_(1.0)
    scaler.update()
