"""The optimizer, and the learning rate: a function of the step, or lowered where validation no longer gets better."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lib.config import Config
from lib.ranks import sharding


def build(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """The optimizer; biases, norms and other vectors are not decayed (GPT-2's and nanoGPT's rule)."""
    options = config.optimizer
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, eps=options.eps)


# Those of torch's ReduceLROnPlateau: the share by which a value must be better, and the smallest step downwards.
_THRESHOLD, _SMALLEST = 1e-4, 1e-8


@dataclass
class Plateau:
    """Multiplies the learning rate by `factor` when more than `patience` evaluations in a row brought no better value.

    Step for step torch.optim.lr_scheduler.ReduceLROnPlateau with its defaults. It has a history, unlike everything else
    that decides about a step; so `lr`, `best` and `waited` are in every checkpoint.
    """

    direction: str  # "max" or "min": what is better
    factor: float
    patience: int
    min_lr: float
    lr: float
    best: float | None = None
    waited: int = 0  # evaluations since the best one, or since the last reduction

    def observe(self, value: float) -> bool:
        """Takes an evaluation's value (NaN is not better than anything); whether the learning rate was lowered."""
        if self._is_better(value):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if self.waited <= self.patience:
            return False
        self.waited = 0
        lowered = max(self.lr * self.factor, self.min_lr)
        if self.lr - lowered <= _SMALLEST:
            return False
        self.lr = lowered
        return True

    def _is_better(self, value: float) -> bool:
        if self.best is None:
            return math.isfinite(value)
        if self.direction == "min":
            return value < self.best * (1 - _THRESHOLD)
        return value > self.best * (1 + _THRESHOLD)

    def facts(self) -> dict[str, float | int | None]:
        """What a checkpoint keeps of it."""
        return {"lr": self.lr, "best": self.best, "waited": self.waited}

    def load(self, facts: Mapping[str, Any]) -> None:
        self.lr, self.best, self.waited = facts["lr"], facts["best"], facts["waited"]


def plateau(config: Config, direction: str) -> Plateau | None:
    """The plateau that the configuration asks for, if it does."""
    options = config.scheduler
    if options.name != "plateau":
        return None
    return Plateau(direction, options.factor, options.patience, options.min_lr, config.optimizer.lr)


def learning_rate(config: Config, step: int, plateau: Plateau | None = None) -> float:
    """Linear warm-up, then a cosine from the peak to `min_lr_ratio` of it at `max_steps`, the peak or the plateau's."""
    options = config.scheduler
    if step < options.warmup_steps:
        factor = (step + 1) / options.warmup_steps
    elif options.name != "cosine":
        factor = 1.0
    else:
        done = (step - options.warmup_steps) / max(1, config.training.max_steps - options.warmup_steps)
        factor = options.min_lr_ratio + (1 - options.min_lr_ratio) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
    return (plateau.lr if plateau else config.optimizer.lr) * factor


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value


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
            value.copy_(sharding.sharded_like(value, tensors[name]))
