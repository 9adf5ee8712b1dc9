"""How many bytes a run's checkpoints have, counted without the memory for them."""

from functools import partial

import torch

from lib.config import Config
from lib.task import Task
from lib.training.optimization import make_moments
from lib.training.state import new_state, state_tensors


def saved_bytes(task: Task, config: Config) -> tuple[int, int]:
    """Returns the bytes of the tensors in a checkpoint of a run, and of those in its best weights.

    They are counted on the `meta` device, so that weights, the optimizer's tensors and the average take no memory, and
    published weights that are not on this machine count with the size that a plan takes for them.
    """
    made = partial(new_state, task, config, torch.device("meta"), "fp32")
    try:
        with torch.device("meta"):
            state = made()
    except Exception:  # a model that reads its own numbers while it is built needs real ones
        state = made()
    for parameter in state.parameters:
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    make_moments(state.optimizer)
    groups = state_tensors(state, config)
    sizes = {
        group: sum(value.numel() * value.element_size() for value in named.values()) for group, named in groups.items()
    }
    return sum(sizes.values()), sizes["model"]
