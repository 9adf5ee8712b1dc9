"""Activation offload: what save_on_cpu takes off the card, beside what torch itself saves on the CPU."""

import re

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from lib.planner.trace import predict

ROWS, WIDTH, DEPTH = 512, 96, 6
MIB = 2**20


def chain() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(DEPTH)))


def batch(device: str) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, device=device)


def offloaded(pin_memory: bool):
    def step(net: nn.Module) -> torch.Tensor:
        with save_on_cpu(pin_memory):
            return net(batch("cuda")).mean()

    return step


def saved_by_torch(round_up=lambda size: size) -> int:
    """Returns the bytes that a real step on the CPU gives to its hooks."""
    sizes = []
    with saved_tensors_hooks(lambda tensor: (sizes.append(round_up(tensor.nbytes)), tensor)[1], lambda tensor: tensor):
        chain()(batch("cpu")).mean()
    return sum(sizes)


def said(prediction) -> int:
    (sentence,) = (one for one in prediction.unseen if "save_on_cpu" in one)
    return int(re.search(r"copies ([\d,]+) MiB", sentence)[1].replace(",", ""))


@pytest.mark.parametrize(
    ("pin_memory", "round_up"), [(False, lambda size: size), (True, lambda size: 1 << (size - 1).bit_length())]
)
def test_the_machine_holds_what_a_real_step_saves_and_the_card_keeps_no_activations(pin_memory, round_up):
    plain = predict(chain, lambda net: net(batch("cuda")).mean())
    moved = predict(chain, offloaded(pin_memory))
    assert said(moved) == round(saved_by_torch(round_up) / MIB)
    one = ROWS * WIDTH * 4
    assert plain.by_category["activations"] >= 2 * DEPTH * one
    kept = plain.moments["after forward"] - moved.moments["after forward"]
    assert kept >= 2 * DEPTH * one  # input of each linear layer, and of each GELU
    assert moved.peak_bytes < plain.peak_bytes - DEPTH * one


def test_nothing_is_said_where_nothing_is_offloaded():
    assert not [one for one in predict(chain, lambda net: net(batch("cuda")).mean()).unseen if "save_on_cpu" in one]


def test_what_a_batch_holds_is_still_known_in_the_backward_pass():
    """Selects by a mask that is saved: with unknown values its upper bound would be taken, and said."""

    def step(net: nn.Module) -> torch.Tensor:
        chosen = torch.arange(ROWS, device="cuda") % 2 == 0
        with save_on_cpu():
            return net(batch("cuda"))[chosen].mean()

    assert not [one for one in predict(chain, step).unseen if "upper bound" in one]
