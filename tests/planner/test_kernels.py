"""Time by a roofline, and the temporaries of kernels."""

import numpy as np
import pytest
import torch
from torch import nn

from lib.planner import predict
from lib.planner.card import find_card
from lib.planner.kernels import bounds, cost, temporaries, workspace

T4 = find_card("t4")
mm = torch.ops.aten.mm.default
add = torch.ops.aten.add.Tensor
view = torch.ops.aten.view.default


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_a_product_takes_its_arithmetic_in_the_cards_format_a_sum_its_traffic_and_a_view_nothing():
    a = meta(4096, 4096)
    gpu_seconds, *_, flops = cost(mm, (a, a), {}, a, T4)
    assert flops == 2 * 4096**3
    assert gpu_seconds == pytest.approx(flops / T4.flops("fp32"))
    gpu_seconds, *_, flops = cost(add, (a, a), {}, a, T4)
    assert flops == 0
    assert gpu_seconds == pytest.approx(3 * 4 * 4096**2 / (0.9e9 * T4.card.bandwidth_gb_s))
    row = meta(1, 4096).expand(4096, 4096)  # is read once
    assert cost(add, (a, row), {}, a, T4)[0] < 0.7 * gpu_seconds
    assert not cost(view, (meta(4), [2, 2]), {}, meta(2, 2), T4).any()
    assert bounds(np.array([1.0, 2.0, 3.0, 1.0, 5.0])) == (3, 2)


def test_convolutions_copy_a_plain_input_alone_and_keep_their_pixels_channels_last():
    """On `meta` PyTorch forgets it; on the card each later layer would not be copied."""
    x = meta(2, 8, 16, 16, dtype=torch.half)
    weight = meta(8, 8, 3, 3, dtype=torch.half)
    last = torch.channels_last
    assert temporaries("convolution", (x, weight), T4) == [x.numel() * 2]
    assert temporaries("convolution", (x.to(memory_format=last), weight), T4) == []
    assert temporaries("convolution", (x, meta(8, 8, 1, 1, dtype=torch.half)), T4) == []

    def net():
        layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)]
        return nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(8, 1, 3)).to(memory_format=last)

    def step(layout):
        return lambda net: net(
            torch.randn(4, 8, 64, 64, device="cuda").contiguous(memory_format=layout)
        ).sum()

    prediction = predict(net, step(last), precision="fp16")
    assert prediction.by_category.get("workspace", 0) == 0
    assert prediction.most_peak_bytes == 0
    assert predict(net, step(torch.contiguous_format)).most_peak_bytes > 0, (
        "the input is copied, and no more"
    )


def test_a_convolution_may_copy_what_it_reads_and_writes_or_take_winograds_tiles():
    def convolved(groups=1, kernel=3, stride=1, layout=torch.contiguous_format, tries=False):
        """The workspaces of a convolution of 64 channels of 32 x 32 pixels and of its backward pass, in values."""
        x = meta(8, 64, 32, 32).contiguous(memory_format=layout)
        weight = meta(64, 64 // groups, kernel, kernel)
        shape = [[stride, stride], [kernel // 2] * 2, [1, 1], False, [0, 0], groups]
        out = torch.ops.aten.convolution(x, weight, None, *shape)
        grads = torch.empty_like(out), x, weight, None, *shape, [True, True, False]
        forward = workspace("convolution", (x, weight, None, *shape), out, tries)
        return forward // 4, workspace("convolution_backward", grads, None, tries) // 4

    last = torch.channels_last
    pixels = 8 * 64 * 32 * 32
    assert (
        convolved()
        == convolved(kernel=1)
        == convolved(tries=True, kernel=1)
        == (2 * pixels, 3 * pixels)
    )
    assert convolved(stride=2) == (pixels + pixels // 4, 2 * pixels + pixels // 4)
    assert convolved(layout=last) == (0, 0), "it has the order that the kernels want"
    assert convolved(groups=64) == (0, 0), "depthwise ones are PyTorch's own"
    tiles = 4 * 64 * 64 * 9 + 9 * 2 * pixels // 4
    assert convolved(tries=True) == convolved(tries=True, layout=last) == (tiles, 2 * tiles)


def test_the_peak_of_a_convolution_net_is_an_interval():
    def deep():
        layers = [nn.Conv2d(inside, 64, 3, padding=1) for inside in (3, 64, 64, 64)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def images(net):
        return net(torch.randn(16, 3, 128, 128, device="cuda")).sum()

    prediction = predict(deep, images)
    layer = 4 * 16 * 64 * 128 * 128  # what a layer reads, and what it writes
    assert prediction.most_peak_bytes - prediction.peak_bytes == pytest.approx(3 * layer, rel=0.35)
    shown, most = prediction.driver_bytes
    assert (
        shown
        == prediction.reserved_bytes + 200 * 2**20
        < most
        == prediction.most_reserved_bytes + 200 * 2**20
    )
    assert f"{shown / 2**30:.2f} to {most / 2**30:.2f} GiB, by the workspaces" in str(prediction)
