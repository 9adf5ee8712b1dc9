"""Several networks in one: members share weights, each has scales of its own; each learns alone, their mean answers.

After TabM (Gorishniy, Kotelnikov and Babenko, 2024) and BatchEnsemble (Wen, Tran and Ba, 2020).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Shared(nn.Module):
    """A linear layer that all members share; each has scales of its inputs and outputs, and a bias, of its own."""

    def __init__(self, members: int, inputs: int, outputs: int, differ: bool = False):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.before = nn.Parameter(torch.ones(members, inputs))
        self.after = nn.Parameter(torch.ones(members, outputs))
        self.bias = nn.Parameter(torch.zeros(members, outputs))
        if differ:  # from their first layer on, or all would learn the same
            nn.init.normal_(self.before)

    def forward(self, x: Tensor) -> Tensor:
        """(samples, members or 1, inputs) -> (samples, members, outputs)"""
        return self.linear(x * self.before) * self.after + self.bias


class Heads(nn.Module):
    """A linear layer for each member."""

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs))
        nn.init.normal_(self.weight, std=0.3 * inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(samples, members, inputs) -> (samples, members, outputs)"""
        return torch.einsum("nmi,mio->nmo", x, self.weight)


def joined(task: Any, answers: Tensor) -> Tensor:
    """(samples, members, outputs) -> (samples, outputs) the mean: of probabilities, as logarithms, or of numbers."""
    mean = task._kind.averaged(answers).mean(1)
    if task._kind.has_classes:
        return mean.clamp(min=1e-30).log()
    return mean


def loss_of_each(
    of_one: Callable[[Tensor, Tensor], Tensor], answers: Tensor, labels: Tensor
) -> Tensor:
    """Returns () the mean of the members' losses by `of_one`; of answers that are together already theirs."""
    if answers.dim() < 3:
        return of_one(answers, labels)
    members = answers.shape[1]
    return of_one(answers.flatten(0, 1), labels.repeat_interleave(members, 0)) / members
