"""The optimizer, and the learning rate: a function of the step, or lowered where validation no longer gets better."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lib.config import Config
from lib.ranks import sharding
from lib.training.groups import Group

_FUSED_ON = ("cuda", "meta")  # meta: in a plan for CUDA


def build(groups: Iterable[Group], config: Config) -> torch.optim.Optimizer:
    """Builds the optimizer. Vectors such as biases and norms are not decayed, as in GPT-2, unless their group is."""
    options, parts = config.optimizer, list[dict[str, Any]]()
    for group in groups:
        parameters, decay = list(group.parameters.values()), group.weight_decay
        split = [(parameters, decay)]
        if decay is None:
            matrices = [p for p in parameters if p.dim() >= 2]
            split = [(matrices, options.weight_decay), ([p for p in parameters if p.dim() < 2], 0.0)]
        parts += [{"params": params, "weight_decay": decay, "scale": group.lr} for params, decay in split if params]
    if options.name == "sgd":
        return torch.optim.SGD(parts, lr=options.lr, momentum=options.momentum, nesterov=options.nesterov)
    every = [parameter for part in parts for parameter in part["params"]]
    is_fused = all(p.device.type in _FUSED_ON and not sharding.is_shard(p) for p in every)
    return torch.optim.AdamW(parts, lr=options.lr, betas=options.betas, eps=options.eps, fused=is_fused or None)


def state_names(group: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the states that an optimizer of torch keeps for the parameters of one of its groups."""
    if "momentum" in group:  # SGD
        return ("momentum_buffer",) if group["momentum"] else ()
    return ("step", "exp_avg", "exp_avg_sq")


def make_moments(optimizer: torch.optim.Optimizer) -> None:
    """Makes the states that the optimizer's next step would make, with their bits: memory runs out before that step."""
    if len(optimizer.state) == sum([len(group["params"]) for group in optimizer.param_groups]):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter not in optimizer.state:
                # torch's momentum begins with the gradient itself, and -0.0 plus that has its bits
                first = -0.0 if "momentum" in group else 0.0
                optimizer.state[parameter] = {
                    name: torch.tensor(0.0, device=step_device(group, parameter))
                    if name == "step"
                    else torch.full_like(parameter, first, memory_format=torch.preserve_format)
                    for name in state_names(group)
                }


def step_device(group: Mapping[str, Any], parameter: Tensor) -> torch.device:
    """Returns where an optimizer counts a parameter's steps: in its one kernel, or where the value costs no wait."""
    return parameter.device if group.get("fused") else torch.device("cpu")


def copies(config: Config) -> int:
    """Returns how many numbers a parameter takes in a step: weight, gradient and moments."""
    return 4 if config.optimizer.name == "adamw" else 2 + int(config.optimizer.momentum > 0)


class Plateau:
    """torch's ReduceLROnPlateau over a rate of its own. It has a history, so `facts` is in every checkpoint."""

    def __init__(self, config: Config, direction: str):
        options = config.scheduler
        self._rate = torch.optim.SGD([nn.Parameter(torch.empty(0))], lr=config.optimizer.lr)
        self._scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self._rate, direction, options.factor, options.patience, min_lr=options.min_lr
        )

    @property
    def lr(self) -> float:
        return self._rate.param_groups[0]["lr"]

    def observe(self, value: float) -> bool:
        """Takes an evaluation's value (NaN is not better than anything); returns whether the rate was lowered."""
        before = self.lr
        self._scheduler.step(value)
        return self.lr < before

    def facts(self) -> dict[str, float | int | None]:
        """Returns what a checkpoint keeps: the rate, the best value (None before the first), evaluations since then."""
        best, waited = self._scheduler.best, self._scheduler.num_bad_epochs
        return {"lr": self.lr, "best": best if math.isfinite(best) else None, "waited": waited}

    def load(self, facts: Mapping[str, Any]) -> None:
        self._rate.param_groups[0]["lr"] = facts["lr"]
        if facts["best"] is not None:
            self._scheduler.best = facts["best"]
        self._scheduler.num_bad_epochs = facts["waited"]


@dataclass
class Stopping:
    """Counts validations since the best one. Like a plateau it has a history, so `facts` is in every checkpoint."""

    after: int  # training.stop_after_evaluations
    metric: str
    direction: str  # "max" or "min": what counts as better
    best: float | None = None
    best_step: int = 0
    waited: int = 0

    @property
    def is_over(self) -> bool:
        return self.waited >= self.after

    def observe(self, value: float, step: int) -> None:
        """Takes a validation's value; one that is not finite is not better than anything."""
        sign = -1 if self.direction == "max" else 1
        self.waited += 1
        if math.isfinite(value) and (self.best is None or sign * value < sign * self.best):
            self.best, self.best_step, self.waited = value, step, 0

    def facts(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def sentence(self, step: int, total: int) -> str:
        """Returns at which step the run stopped, and why."""
        than = f"{self.best:.6g} of step {self.best_step:,}" if self.best is not None else "no number"
        return (
            f"It stopped early, at step {step:,} of {total:,}: in {self.waited} validations in a row {self.metric} was "
            f"not better than {than} (training.stop_after_evaluations)."
        )


def learning_rate(config: Config, step: int, plateau: Plateau | None = None) -> float:
    """Returns a step's rate by the configuration: linear warm-up, then what `scheduler.name` says."""
    options, factor = config.scheduler, 1.0
    if step < options.warmup_steps:
        factor = (step + 1) / options.warmup_steps
    elif options.name in ("cosine", "linear"):
        done = min((step - options.warmup_steps) / max(1, config.training.max_steps - options.warmup_steps), 1.0)
        left = (1 + math.cos(math.pi * done)) / 2 if options.name == "cosine" else 1 - done
        factor = options.min_lr_ratio + (1 - options.min_lr_ratio) * left
    return (plateau.lr if plateau else config.optimizer.lr) * factor


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Gives each group of the optimizer a rate, times its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("scale", 1.0)


class Ema:
    """Averages trained parameters after each step; validation, test and best weights use the average.

    The decay grows to `decay` as (1 + step) / (10 + step): a short run is no average over its first steps.
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
        """Gives the model the averaged weights in the block: parameters point at the average, and nothing is copied.

        FSDP2 keeps addresses of its own, so shards are copied; the weights are set aside before one of them changes.
        """
        weights = {name: parameter.data for name, parameter in self._parameters.items()}
        aside = {name: value.clone() for name, value in weights.items() if sharding.is_shard(value)}
        try:
            self._put(self.average, aside.keys())
            yield
        finally:
            try:
                self._put({**weights, **aside}, aside.keys())
            except BaseException:  # of a signal's handler, which may run between two of them
                self._put({**weights, **aside}, aside.keys())
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
        for name, value in self.average.items():
            value.copy_(sharding.sharded_like(value, tensors[name]))
