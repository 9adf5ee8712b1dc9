"""The behaviour of a CUDA device on `meta` tensors: kernels of attention, and what autocast casts."""

import pytest
import torch

from lib.planner.card import find_card
from lib.planner.cuda import attention_kernel, simulated_cuda


@pytest.mark.parametrize(
    "dtype, capability, width, masked, kernel",
    [
        (torch.half, (8, 0), 64, False, "flash"),
        (torch.half, (8, 0), 64, True, "efficient"),
        (torch.half, (7, 5), 64, False, "efficient"),
        (torch.half, (7, 5), 60, False, "math"),
        (torch.bfloat16, (7, 5), 64, False, "math"),
        (torch.float32, (8, 0), 4, False, "efficient"),
    ],
)
def test_attention_takes_the_first_kernel_that_can(dtype, capability, width, masked, kernel):
    query = torch.empty(1, 2, 8, width, dtype=dtype, device="meta")
    mask = torch.empty(8, 8, dtype=torch.bool, device="meta") if masked else None
    assert attention_kernel(capability, query, query, mask) == kernel


def test_autocast_casts_products_down_and_losses_up():
    x, targets = torch.empty(4, 8, device="meta"), torch.empty(4, dtype=torch.long, device="meta")
    with simulated_cuda(find_card("t4")), torch.autocast("cuda", torch.float16):
        logits = torch.nn.functional.linear(x, torch.empty(8, 8, device="meta"))
        assert logits.dtype is torch.half and logits.softmax(-1).dtype is torch.float32
        assert torch.nn.functional.cross_entropy(logits, targets).dtype is torch.float32
        assert torch.nn.functional.cross_entropy(logits, targets, reduction="none").shape == (4,)
        assert logits.sum().dtype is torch.float32
