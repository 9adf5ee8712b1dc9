"""Counts the bytes of a run's checkpoints without the memory for them."""

from functools import partial

import torch

from lib.checkpoint import frozen
from lib.config import Config, with_changes
from lib.task import Task
from lib.training.optimization import make_moments
from lib.training.state import new_state, state_tensors


def saved_bytes(task: Task, config: Config) -> tuple[int, int]:
    """Returns the bytes of the tensors in a checkpoint of a run, and of those in its best weights.

    They are counted on `meta`, where they take no memory; published weights that are not on this machine count with the
    size that a plan takes for them. Frozen weights that checkpoints leave out (`checkpoint.frozen`) do not count.
    """
    make = partial(new_state, task, with_changes(config, {"training.fully_shard": False}), torch.device("meta"), "fp32")
    try:
        with torch.device("meta"):
            state = make()
    except Exception:  # a model that reads its own numbers while it is built needs real ones
        state = make()
    if config.checkpoint.frozen != "save":
        state.left_out = dict.fromkeys(frozen.parameters(state.model), "")
    for parameter in state.parameters:
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    make_moments(state.optimizer)
    sizes = {
        group: sum(v.nbytes for v in named.values())
        for group, named in state_tensors(state, config.checkpoint.lightweight).items()
    }
    return sum(sizes.values()), sizes["model"]
