"""Recurrent layers as one kernel of cuDNN: shapes, memory and arithmetic."""

import pytest
import torch
from torch import nn

from lib.planner import predict
from lib.planner.allocator import MIB

ROWS, STEPS, D = 64, 512, 128


def step(net):
    out, _ = net(torch.randn(STEPS, ROWS, D, device="cuda"))
    return out.square().mean()


@pytest.mark.parametrize("kind, gates, reserved", [(nn.LSTM, 4, 6), (nn.GRU, 3, 4), (nn.RNN, 1, 1)])
def test_a_recurrent_layer_is_one_kernel_with_its_reserve(kind, gates, reserved):
    result = predict(lambda: kind(D, D, 2), step)
    rows = ROWS * STEPS
    products = 2 * rows * 2 * gates * (D * D + D * D)
    assert result.pass_flops == pytest.approx(3 * products, rel=0.01)
    held = 4 * rows * D * (2 + 2 * reserved)  # input, output, and the reserve of two layers
    states = 12 * result.parameters
    assert result.moments["after forward"] - states == pytest.approx(held, rel=0.02, abs=MIB)
    assert any("reserve space of cuDNN's recurrent layers" in sentence for sentence in result.unseen)


def shapes(out, last):
    return [tuple(t.shape) for t in (out, *(last if isinstance(last, tuple) else (last,)))]


@pytest.mark.parametrize(
    "net",
    [
        nn.LSTM(5, 7, 2, bidirectional=True), nn.LSTM(5, 7, batch_first=True), nn.LSTM(5, 7, proj_size=3),
        nn.GRU(5, 7, 2, dropout=0.5), nn.GRU(5, 7, bidirectional=True, batch_first=True), nn.RNN(5, 7, 3),
        nn.RNN(5, 7, nonlinearity="relu", bias=False),
    ],
    ids=repr,
)  # fmt: skip
def test_shapes_are_those_of_torch(net):
    x, traced = torch.randn(4, 6, 5), []
    real = shapes(*net(x))

    def inner(net):
        out, last = net(x.to("cuda"))
        traced.append(shapes(out, last))
        return out.sum()

    predict(lambda: net, inner)
    assert traced == [real, real]


def test_packed_sequences_have_a_row_for_each_element():
    def inner(net):
        packed = nn.utils.rnn.PackedSequence(torch.randn(9, 5, device="cuda"), torch.tensor([4, 3, 2]))
        out, (last, _) = net(packed)
        assert out.data.shape == (9, 7) and last.shape == (1, 4, 7)
        return out.data.sum()

    result = predict(lambda: nn.LSTM(5, 7), inner)
    assert result.pass_flops == pytest.approx(3 * 2 * 9 * 4 * (5 * 7 + 7 * 7))


def test_half_precision_keeps_less():
    full, half = (predict(lambda: nn.LSTM(D, D), step, precision=p).moments["after forward"] for p in ("fp32", "fp16"))
    assert half < 0.75 * full
