"""The optimizer, and the learning rate: a function of the step, and of the validations where it waits for a plateau."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from lib.config import Config

_OPTIMIZERS = {"adamw": torch.optim.AdamW}


def build(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """The optimizer; biases, norms and other vectors are not decayed (GPT-2's and nanoGPT's rule)."""
    options = config.optimizer
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    kind = _OPTIMIZERS[options.name]
    return kind([g for g in groups if g["params"]], lr=options.lr, betas=options.betas, eps=options.eps)


def learning_rate(config: Config, step: int) -> float:
    """Linear warm-up, then a cosine down to `min_lr_ratio` of the peak at `max_steps`, or constant.

    With `plateau` it is constant too, and what `step_plateau` found is multiplied to it.
    """
    options = config.scheduler
    if step < options.warmup_steps:
        factor = (step + 1) / options.warmup_steps
    elif options.name in ("constant", "plateau"):
        factor = 1.0
    else:
        done = (step - options.warmup_steps) / max(1, config.training.max_steps - options.warmup_steps)
        factor = options.min_lr_ratio + (1 - options.min_lr_ratio) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
    return config.optimizer.lr * factor


@dataclass
class Plateau:
    """What a checkpoint keeps of the wait for a better validation."""

    factor: float = 1.0  # what the learning rate is multiplied by
    best: float | None = None
    waited: int = 0  # validations since the best one


def step_plateau(
    plateau: Plateau, config: Config, selection: tuple[str, str], scores: Mapping[str, float], step: int
) -> str:
    """Lowers the learning rate when the selection metric has not improved for more than `patience` validations.

    The rule of torch's ReduceLROnPlateau with its relative threshold. Returns a sentence where the rate fell.
    """
    options = config.scheduler
    metric, direction = selection
    if options.name != "plateau" or step <= options.warmup_steps:
        return ""
    if _is_better(scores[metric], plateau.best, direction, options.threshold):
        plateau.best, plateau.waited = scores[metric], 0
    else:
        plateau.waited += 1
    if plateau.waited <= options.patience:
        return ""
    plateau.waited = 0
    lowest = min(1.0, options.min_lr / config.optimizer.lr)
    before, plateau.factor = plateau.factor, max(plateau.factor * options.factor, lowest)
    if plateau.factor == before:
        return ""
    return (
        f"step {step:,}: {metric} has not improved for {options.patience + 1} validations; the learning rate falls to "
        f"{config.optimizer.lr * plateau.factor:.2e}."
    )


def _is_better(value: float, best: float | None, direction: str, threshold: float) -> bool:
    if not math.isfinite(value):
        return False
    sign = -1 if direction == "max" else 1
    return best is None or sign * value < sign * best - threshold * abs(best)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value
