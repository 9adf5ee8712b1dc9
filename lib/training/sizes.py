"""How many bytes a run's states and checkpoints have, counted without the memory for them."""

from functools import partial

import torch

from lib.config import Config, with_changes
from lib.task import Task, checked_blocks
from lib.training.optimization import make_moments
from lib.training.state import State, new_state, state_tensors


def saved_bytes(task: Task, config: Config) -> tuple[int, int]:
    """Returns the bytes of the tensors in a checkpoint of a run, and of those in its best weights.

    They are counted on the `meta` device, so that weights, the optimizer's tensors and the average take no memory, and
    published weights that are not on this machine count with the size that a plan takes for them.
    """
    groups = state_tensors(_on_meta(task, config), config.checkpoint.lightweight)
    sizes = {group: sum(value.nbytes for value in named.values()) for group, named in groups.items()}
    return sum(sizes.values()), sizes["model"]


def sharded_bytes(task: Task, config: Config, count: int) -> tuple[int, int]:
    """Returns the bytes of states on the first of `count` ranks under FSDP2, and of the weights that are whole at once.

    States are weights, gradients, the optimizer's tensors and the average, each cut along its first dimension. Whole
    are the weights of one layer, here the largest, and those outside the layers (Zhao et al., PyTorch FSDP, VLDB 2023).
    """
    state = _on_meta(task, config)
    held = [*state.model.parameters(), *(p.grad for p in state.parameters if p.grad is not None)]
    held += [value for states in state.optimizer.state.values() for value in states.values()]
    held += list(state.ema.average.values()) if state.ema else []
    rows = [len(value) if value.dim() else 1 for value in held]
    layers = [sum(p.nbytes for p in block.parameters()) for block in checked_blocks(task, state.model)]
    outside = sum(p.nbytes for p in state.model.parameters()) - sum(layers)
    sharded = sum(value.nbytes // max(1, n) * -(-n // count) for value, n in zip(held, rows, strict=True))
    return sharded, outside + max(layers, default=0)


def _on_meta(task: Task, config: Config) -> State:
    """Returns all states of a run, whole and with gradients, without memory."""
    undivided = with_changes(config, {"training.fully_shard": False})
    make = partial(new_state, task, undivided, torch.device("meta"), "fp32")
    try:
        with torch.device("meta"):
            state = make()
    except Exception:  # a model that reads its own numbers while it is built needs real ones
        state = make()
    for parameter in state.parameters:
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    make_moments(state.optimizer)
    return state
