"""Time by a roofline, and the temporaries of kernels."""

import numpy as np
import pytest
import torch

from lib.planner.card import find_card
from lib.planner.kernels import bounds, cost, temporaries

T4 = find_card("t4")
mm, add, view = torch.ops.aten.mm.default, torch.ops.aten.add.Tensor, torch.ops.aten.view.default


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_a_large_product_takes_its_arithmetic_and_a_sum_its_traffic():
    a = meta(4096, 4096)
    gpu_seconds, *_, flops = cost(mm, (a, a), {}, a, T4)
    assert flops == 2 * 4096**3 and gpu_seconds == pytest.approx(flops / (0.7 * T4.flops("fp32")))
    gpu_seconds, *_, flops = cost(add, (a, a), {}, a, T4)
    assert flops == 0 and gpu_seconds == pytest.approx(3 * 4 * 4096**2 / (0.9e9 * T4.card.bandwidth_gb_s))
    row = meta(1, 4096).expand(4096, 4096)  # is read once
    assert cost(add, (a, row), {}, a, T4)[0] < 0.7 * gpu_seconds


def test_a_view_takes_no_time_and_the_longer_of_launch_and_gpu_counts():
    assert not cost(view, (meta(4), [2, 2]), {}, meta(2, 2), T4).any()
    assert bounds(np.array([1.0, 2.0, 3.0, 1.0, 5.0])) == (3, 2)


def test_half_precision_convolutions_copy_a_plain_input():
    x, weight = meta(2, 8, 16, 16, dtype=torch.half), meta(8, 8, 3, 3, dtype=torch.half)
    assert temporaries("convolution", (x, weight), T4) == [x.numel() * 2]
    assert temporaries("convolution", (x.to(memory_format=torch.channels_last), weight), T4) == []
    assert temporaries("convolution", (x.float(), weight.float()), T4) == []
    assert temporaries("convolution", (x, meta(8, 8, 1, 1, dtype=torch.half)), T4) == []
