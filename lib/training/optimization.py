"""The optimizer, and the learning rate: a function of the step, or lowered where validation no longer gets better."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lib.config import Config
from lib.ranks import sharding


def build(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Builds the optimizer; biases, norms and other vectors are not decayed (GPT-2's and nanoGPT's rule)."""
    options = config.optimizer
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, eps=options.eps)


def make_moments(optimizer: torch.optim.Optimizer) -> None:
    """Makes the states that AdamW's next step would make itself, so that memory for them runs out before that step.

    They have the bits of torch's own. Each parameter has all of its states or none.
    """
    if len(optimizer.state) == sum(len(group["params"]) for group in optimizer.param_groups):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter not in optimizer.state:
                optimizer.state[parameter] = {
                    "step": torch.tensor(0.0, device="cpu"),  # its value costs no wait there
                    "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                }


class Plateau:
    """torch's ReduceLROnPlateau over a number of its own, which becomes the learning rate after the warm-up.

    It has a history, unlike everything else that decides about a step; so `facts` is in every checkpoint.
    """

    def __init__(self, config: Config, direction: str):
        """`direction` is "max" or "min": what counts as better."""
        options = config.scheduler
        self._rate = torch.optim.SGD([nn.Parameter(torch.empty(0))], lr=config.optimizer.lr)
        self._scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self._rate, direction, options.factor, options.patience, min_lr=options.min_lr
        )

    @property
    def lr(self) -> float:
        return self._rate.param_groups[0]["lr"]

    @property
    def patience(self) -> int:
        return self._scheduler.patience

    def observe(self, value: float) -> bool:
        """Takes an evaluation's value (NaN is not better than anything); returns whether the rate was lowered."""
        before = self.lr
        self._scheduler.step(value)
        return self.lr < before

    def facts(self) -> dict[str, float | int | None]:
        """Returns what a checkpoint keeps: the rate, the best value (None before the first), evaluations since then."""
        best = self._scheduler.best
        waited = self._scheduler.num_bad_epochs
        return {"lr": self.lr, "best": best if math.isfinite(best) else None, "waited": waited}

    def load(self, facts: Mapping[str, Any]) -> None:
        self._rate.param_groups[0]["lr"] = facts["lr"]
        if facts["best"] is not None:
            self._scheduler.best = facts["best"]
        self._scheduler.num_bad_epochs = facts["waited"]


def learning_rate(config: Config, step: int, plateau: Plateau | None = None) -> float:
    """Returns a step's rate: linear warm-up, then cosine decay to `min_lr_ratio`, a constant, or the plateau's rate."""
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
    """Averages the trained parameters of a model after each step; validation, test and best weights use the average.

    The decay grows to `decay` as (1 + step) / (10 + step), so that a short run is not an average over its first steps.
    Buffers (batch statistics) are averages already and are not averaged again.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.average = {name: value.detach().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average towards the weights after the step with this number (from 0)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.average.values()), list(self._parameters.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Gives the model the averaged weights inside the block.

        Parameters point at the average's memory there, and at their own again afterwards: nothing is copied, so memory
        that runs out leaves both whole. FSDP2 keeps addresses of its own, so shards are copied: the weights are
        set aside before the first of them changes.
        """
        own = {name: parameter.data for name, parameter in self._parameters.items()}
        aside = {name: value.clone() for name, value in own.items() if sharding.is_shard(value)}
        try:
            self._put(self.average, aside.keys())
            yield
        finally:
            try:
                self._put({**own, **aside}, aside.keys())
            except BaseException:  # of a signal's handler, which may run between two of them
                self._put({**own, **aside}, aside.keys())
                raise

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor], copied: Collection[str]) -> None:
        """Makes these the values of the parameters: of those in `copied` by a copy, of the others by their memory."""
        for name, parameter in self._parameters.items():
            if name in copied:
                parameter.copy_(values[name])
            else:
                parameter.data = values[name]

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts a saved average back."""
        for name, value in self.average.items():
            value.copy_(sharding.sharded_like(value, tensors[name]))
