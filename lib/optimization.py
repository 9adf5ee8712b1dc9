"""The optimizer, and the learning rate as a function of the step."""

import math

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
    """Linear warm-up, then a cosine down to `min_lr_ratio` of the peak at `max_steps` (or constant)."""
    options = config.scheduler
    if step < options.warmup_steps:
        factor = (step + 1) / options.warmup_steps
    elif options.name == "constant":
        factor = 1.0
    else:
        done = (step - options.warmup_steps) / max(1, config.training.max_steps - options.warmup_steps)
        factor = options.min_lr_ratio + (1 - options.min_lr_ratio) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
    return config.optimizer.lr * factor


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value
