"""Puts a simple method's scores into batches, and mixes them with the network's by a gate, a buffer of the model."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.errors import BadInput
from lib.task import Batch

UNSEEN = -10.0  # the score of a class without an example
KEY = "simple"  # in batches and in learned values
GATE = "simple_gate"  # a buffer of the model


def with_buffers(make: Callable[[Any], nn.Module]) -> Callable[[Any], nn.Module]:
    """Wraps a task's `model`: the gate is a buffer, so that checkpoints, ranks and archives have it."""

    @functools.wraps(make)
    def model(task: Any) -> nn.Module:
        network = make(task)
        if task._starts and isinstance(network, nn.Module):
            network.register_buffer(GATE, torch.zeros(()))
        return network

    return model


def batch(task: Any, batch: Batch) -> Batch:
    if task._starts:
        return {**batch, KEY: task._simple.scores(task, batch)}
    return batch


def shaped(start: Tensor, outputs: Tensor) -> Tensor:
    """Returns the simple method's scores in the shape of outputs: of further classes it has seen no example.

    Raises BadInput for classes that the outputs lack.
    """
    if start.numel() == outputs.numel():
        return start.view(outputs.shape)
    lacking = start.shape[-1] - outputs.shape[-1]
    if lacking > 0:
        raise BadInput(f"The simple method has {lacking} classes more than the model has outputs.")
    return F.pad(start, (0, -lacking), value=UNSEEN)


def gated(model: nn.Module, scores: Tensor, start: Tensor) -> Tensor:
    """Returns the simple method's scores, moved towards the network's by the gate: of classes a product of both."""
    start = shaped(start, scores)
    return start + model.get_buffer(GATE).to(scores.device) * (scores - start)
