"""Layers that oneDNN computes wrongly on a CPU are named before their first backward pass, and no others."""

import pytest
import torch
from torch import nn

from lib.task import load_task
from lib.training import layers
from lib.training.state import first_state

LAST = torch.channels_last


def shortcut(**changes):
    return nn.Conv2d(**{"in_channels": 4, "out_channels": 6, "kernel_size": 1, "stride": 2, **changes})


@pytest.mark.parametrize(
    "layer, is_risky",
    [
        (shortcut(), True),
        (shortcut(in_channels=15), True),
        (shortcut(stride=(1, 2)), True),
        (shortcut(in_channels=16), False),
        (shortcut(stride=1), False),
        (shortcut(kernel_size=3), False),
        (shortcut(groups=2), False),
        (nn.Conv3d(4, 6, 1, 2), False),
    ],
)
def test_narrow_convolutions_of_one_pixel_with_a_stride_are_risky(layer, is_risky):
    model = nn.Sequential(nn.ReLU(), nn.Sequential(layer))
    assert layers.risky_convolutions(model) == (["1.0"] if is_risky else [])


IMAGE = torch.zeros(2, 4, 8, 8)


@pytest.mark.parametrize(
    "image, layer, is_exposed",
    [
        (IMAGE, shortcut(), False),
        (IMAGE.to(memory_format=LAST), shortcut(), True),
        (IMAGE.to(memory_format=LAST)[..., ::2, ::2], shortcut(), True),
        (IMAGE, shortcut().to(memory_format=LAST), True),
        (IMAGE[:, :1], shortcut(in_channels=1), False),
        (IMAGE[:, :1].clone(memory_format=LAST), shortcut(in_channels=1), True),
        (IMAGE[0], shortcut(), False),
    ],
)
def test_they_are_exposed_where_input_or_weight_has_its_channels_last(image, layer, is_exposed):
    """Each combination was run with torch 2.13 and two threads: those that are exposed ended the process."""
    model = nn.Sequential(layer)
    with torch.no_grad(), layers.watched(model) as exposed:
        model(image)
        layer(input=image)
    assert exposed == (["0"] if is_exposed else []) and not layer._forward_pre_hooks


def test_a_session_says_once_at_its_start_what_may_end_it(toy, monkeypatch):
    config = toy()
    task = load_task(config)
    monkeypatch.setattr(task, "model", lambda: nn.Sequential(shortcut(), nn.Sequential(shortcut(in_channels=6))))
    said = []
    model = first_state(task, config, None, said.append).model
    assert said == []
    for _ in range(2):
        model(IMAGE.to(memory_format=LAST))
    assert len(said) == 1
    assert all(words in said[0] for words in ("(0, 1.0)", "oneDNN, issue 6035", "x[..., ::2, ::2]"))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_session_without_channels_last_says_nothing(toy, monkeypatch):
    config = toy()
    task = load_task(config)
    monkeypatch.setattr(task, "model", lambda: nn.Sequential(shortcut()))
    said = []
    model = first_state(task, config, None, said.append).model
    model(IMAGE)
    assert said == []
