"""Checks a model for layers that a library computes wrongly on this machine."""

import torch

from lib.doctor.findings import Finding
from lib.task import Task
from lib.training.layers import advice, risky_convolutions, watched
from lib.training.state import State


def check_convolutions(task: Task, state: State) -> Finding:
    """Checks for convolutions whose backward pass breaks the process on a CPU; runs the model once if it has any."""
    names, device = risky_convolutions(state.model), state.device
    if device.type != "cpu" or not names:
        return Finding("convolutions", "none of those that oneDNN computes wrongly on a CPU")
    was_training = state.model.training
    state.model.eval()  # one sample is no batch whose statistics count
    try:
        with torch.no_grad(), watched(state.model) as exposed:
            task.loss(state.model, task.example_batch(1, device))
    finally:
        state.model.train(was_training)
    if exposed:
        return Finding("convolutions", f"{', '.join(exposed)} can end the process", "bad", advice(exposed))
    value = f"{', '.join(names)} would be computed wrongly in the memory format channels_last, which is not used"
    return Finding("convolutions", value)
