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
LAST = torch.channels_last


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_a_product_takes_its_arithmetic_in_the_cards_format():
    a = meta(4096, 4096)
    gpu_seconds, *_, flops = cost(mm, (a, a), {}, a, T4)
    assert flops == 2 * 4096**3
    assert gpu_seconds == pytest.approx(flops / T4.flops("fp32"))


def test_a_sum_takes_its_traffic():
    a = meta(4096, 4096)
    traffic = 3 * 4 * 4096**2
    gpu_seconds, *_, flops = cost(add, (a, a), {}, a, T4)
    assert flops == 0
    assert gpu_seconds == pytest.approx(traffic / (0.9e9 * T4.card.bandwidth_gb_s))
    row = meta(1, 4096).expand(4096, 4096)  # is read once
    assert cost(add, (a, row), {}, a, T4)[0] < 0.7 * gpu_seconds


def test_a_view_takes_no_time():
    assert not cost(view, (meta(4), [2, 2]), {}, meta(2, 2), T4).any()


def test_the_longer_of_gpu_and_launches_counts():
    assert bounds(np.array([1.0, 2.0, 3.0, 1.0, 5.0])) == (3, 2)


def test_a_convolution_copies_a_plain_input():
    x = meta(2, 8, 16, 16, dtype=torch.half)
    weight = meta(8, 8, 3, 3, dtype=torch.half)
    assert temporaries("convolution", (x, weight), T4) == [x.numel() * 2]
    assert temporaries("convolution", (x.to(memory_format=LAST), weight), T4) == []
    point = meta(8, 8, 1, 1, dtype=torch.half)
    assert temporaries("convolution", (x, point), T4) == []


def test_convolutions_keep_their_pixels_channels_last():
    """On `meta` PyTorch forgets it; on the card later layers copy nothing."""

    def net():
        layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)]
        return nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(8, 1, 3)).to(memory_format=LAST)

    def step_on(layout):
        def step(net):
            x = torch.randn(4, 8, 64, 64, device="cuda").contiguous(memory_format=layout)
            return net(x).sum()

        return step

    prediction = predict(net, step_on(LAST), precision="fp16")
    assert prediction.by_category.get("workspace", 0) == 0
    assert prediction.most_peak_bytes == 0
    plain = predict(net, step_on(torch.contiguous_format))
    assert plain.most_peak_bytes > 0, "the input is copied, and no more"


PIXELS = 8 * 64 * 32 * 32


def convolved(groups=1, kernel=3, stride=1, layout=torch.contiguous_format, tries=False):
    """Returns workspaces in values of a convolution of 64 channels, 32 x 32, and its backward."""
    x = meta(8, 64, 32, 32).contiguous(memory_format=layout)
    weight = meta(64, 64 // groups, kernel, kernel)
    padding = [kernel // 2] * 2
    options = [[stride, stride], padding, [1, 1], False, [0, 0], groups]
    out = torch.ops.aten.convolution(x, weight, None, *options)
    forward = workspace("convolution", (x, weight, None, *options), out, tries)
    arguments = torch.empty_like(out), x, weight, None, *options, [True, True, False]
    backward = workspace("convolution_backward", arguments, None, tries)
    return forward // 4, backward // 4


@pytest.mark.parametrize("options", [{}, {"kernel": 1}, {"kernel": 1, "tries": True}])
def test_a_convolution_may_copy_its_input_and_output(options):
    assert convolved(**options) == (2 * PIXELS, 3 * PIXELS)


def test_a_convolution_with_a_stride_writes_fewer_pixels():
    assert convolved(stride=2) == (PIXELS + PIXELS // 4, 2 * PIXELS + PIXELS // 4)


def test_a_convolution_copies_nothing_that_is_channels_last_or_depthwise():
    assert convolved(layout=LAST) == (0, 0)
    assert convolved(groups=64) == (0, 0)


def test_a_convolution_may_take_winograds_tiles():
    tiles = 4 * 64 * 64 * 9 + 9 * 2 * PIXELS // 4
    assert convolved(tries=True) == (tiles, 2 * tiles)
    assert convolved(tries=True, layout=LAST) == (tiles, 2 * tiles)


def test_the_peak_of_a_convolution_net_is_an_interval():
    def deep():
        layers = [nn.Conv2d(inside, 64, 3, padding=1) for inside in (3, 64, 64, 64)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def images(net):
        return net(torch.randn(16, 3, 128, 128, device="cuda")).sum()

    prediction = predict(deep, images)
    layer = 4 * 16 * 64 * 128 * 128  # bytes of a layer's input, and of its output
    assert prediction.most_peak_bytes - prediction.peak_bytes == pytest.approx(3 * layer, rel=0.35)
    least, most = prediction.driver_bytes
    assert least == prediction.reserved_bytes + 200 * 2**20
    assert most == prediction.most_reserved_bytes + 200 * 2**20
    assert least < most
    interval = f"{least / 2**30:.2f} to {most / 2**30:.2f} GiB"
    assert f"{interval}, by the workspaces" in str(prediction)
