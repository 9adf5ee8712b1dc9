"""An exponential moving average of the weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lib import sharding


class Ema:
    """Averages the parameters of a model after each step; validation, test and best weights use the average.

    The decay grows to `decay` as (1 + step) / (10 + step), so that a short run is not an average over its first steps.
    Buffers (batch statistics) are averages already and are not averaged again.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self._parameters = dict(model.named_parameters())
        self.average = {name: value.detach().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average towards the weights after the step with this number (from 0)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.average.values()), list(self._parameters.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            kept = parameter.detach().clone()
            parameter.copy_(self.average[name])
            self.average[name].copy_(kept)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts a saved average back."""
        for name, value in self.average.items():
            value.copy_(sharding.like(value, tensors[name]))
