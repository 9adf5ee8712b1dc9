"""Quantised and adapted layers take the bytes that bitsandbytes and peft lay out."""

import pytest
import torch
from torch import nn

from lib.planner import predict, predict_inference
from trainbook.fits.language import Adam8bit, quantise

D = 1024
WEIGHTS = 4 * D * D


def made():
    return nn.Sequential(*(nn.Linear(D, D, bias=False) for _ in range(4)))


def rows(count, dtype=torch.float16):
    return torch.ones(count, D, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    "kind, each", [("nf4-dq", 0.5 + 1 / 64 + 4 / 64 / 256), ("int8", 1 + 4 / D)]
)
def test_weights_take_the_bytes_of_their_kind_and_one_layer_is_unpacked(kind, each):
    def model():
        return quantise(made(), kind, torch.float16)

    result = predict_inference(model, lambda net: net(rows(4)))
    assert result.moments["after load"] == pytest.approx(WEIGHTS * each, rel=0.01)
    unpacked = result.peak_bytes - result.moments["after load"] - result.by_category["workspace"]
    assert unpacked == pytest.approx(2 * D * D, rel=0.05)


def test_8_bit_adam_keeps_two_bytes_and_two_scales_a_block():
    size = 2048 * 2048

    def step(net):
        return net(torch.randn(1, 2048, device="cuda")).sum()

    result = predict(lambda: nn.Linear(2048, 2048), step, optimizer=Adam8bit)
    scales = 2 * 4 * size // 256
    bias = 2 * 4 * 2048  # below 4096 values it stays fp32
    moments = result.by_category["optimizer"]
    assert moments == pytest.approx(2 * size + scales + bias, abs=4 * 512)
