"""Weights, gradients and optimizer divided among the ranks by FSDP2, for states that do not fit one card.

A checkpoint holds whole tensors either way, so a run moves freely between one process, several, and sharded ones.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lib import ranks


def shard(model: nn.Module, device: torch.device) -> None:
    """Divides the parameters of each of `model.blocks`, and then what is left, among the ranks; moves them to `device`.

    Gradients are summed, as everywhere here, and not averaged.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(device.type, (ranks.world(),))
    for block in getattr(model, "blocks", ()):
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # what gloo knows, and has no division in it


def is_shard(tensor: Tensor) -> bool:
    """Whether this rank holds a part of the tensor (torch's DTensor) and not the whole."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """This rank's part, or the tensor itself."""
    return tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """The tensor put together from all ranks, or itself. All ranks must call it."""
    return tensor.full_tensor() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def on_first(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The whole tensors, those that were shards on the first rank's CPU; the other ranks hold none of them back."""
    found = {}
    for name, tensor in named.items():
        full = whole(tensor.detach())
        if not is_shard(tensor):
            found[name] = tensor
        elif ranks.is_first():
            found[name] = full.cpu()
    return found


def sharded_like(shard: Tensor, full: Tensor) -> Tensor:
    """`full` divided as `shard` is, without a message: every rank has the whole and keeps its part."""
    if not is_shard(shard):
        return full
    from torch.distributed.tensor import distribute_tensor

    full = full.to(shard.device)
    return distribute_tensor(full, shard.device_mesh, shard.placements, src_data_rank=None)  # type: ignore[attr-defined]


def update_scale(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, finite: bool) -> None:
    """`scaler.update`, after telling it what the ranks found together: each alone sees its own shard."""
    if ranks.world() > 1 and scaler.is_enabled() and not finite:
        for found in scaler._found_inf_per_device(optimizer).values():
            found.fill_(1.0)
    scaler.update()
