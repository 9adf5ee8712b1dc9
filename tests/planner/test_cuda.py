"""The behaviour of a CUDA device on `meta` tensors: attention, autocast, recurrent layers, torch.cuda."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.planner import predict
from lib.planner.allocator import MIB
from lib.planner.cuda import attention_kernel


def linear():
    return nn.Linear(64, 64)


def loss(net, device="cuda"):
    return net(torch.ones(8, 64, device=device)).sum()


def test_attention_takes_the_first_kernel_that_can_or_those_that_sdpa_kernel_names():
    for dtype, capability, width, masked, kernel in (
        (torch.half, (8, 0), 64, False, "flash"), (torch.half, (8, 0), 64, True, "efficient"),
        (torch.half, (7, 5), 64, False, "efficient"), (torch.half, (7, 5), 60, False, "math"),
        (torch.bfloat16, (7, 5), 64, False, "math"), (torch.float32, (8, 0), 4, False, "efficient"),
    ):  # fmt: skip
        query = torch.empty(1, 2, 8, width, dtype=dtype, device="meta")
        mask = torch.empty(8, 8, dtype=torch.bool, device="meta") if masked else None
        assert attention_kernel(capability, query, query, mask) == kernel

    def predicted(backends, card):
        def step(net):
            q = net(torch.randn(2, 4, 64, 64, device="cuda"))
            with torch.nn.attention.sdpa_kernel(backends):
                return F.scaled_dot_product_attention(q, q, q).sum()

        return predict(linear, step, card, precision="fp16")

    kinds = torch.nn.attention.SDPBackend
    assert set(predicted([kinds.MATH, kinds.EFFICIENT_ATTENTION], "t4").attention) == {"efficient"}


# --- torch.cuda -------------------------------------------------------------------------------------------------------


def test_a_script_that_asks_for_a_gpu_gets_one_of_the_predicted_kind():
    answers = []

    def step(net):
        answers.append(
            (
                torch.cuda.get_device_name(),
                torch.cuda.get_device_capability(),
                torch.cuda.device_count(),
            )
        )
        return loss(
            net,
            torch.device(
                "cuda" if torch.cuda.is_available() else "cpu", torch.cuda.current_device()
            ),
        )

    before = torch.cuda.is_available
    predict(linear, step, "a100-40")
    assert answers == [("A100 40 GB", (8, 0), 1)] * 2
    assert torch.cuda.is_available is before


# --- recurrent layers -------------------------------------------------------------------------------------------------

ROWS = 64
STEPS = 512
D = 128


def sequence(net):
    out, _ = net(torch.randn(STEPS, ROWS, D, device="cuda"))
    return out.square().mean()


def test_a_recurrent_layer_is_one_step_with_its_gates():
    rows = ROWS * STEPS
    for kind, gates in ((nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)):
        result = predict(lambda kind=kind: kind(D, D, 2), sequence)
        assert result.pass_flops == pytest.approx(
            3 * 2 * rows * 2 * gates * (D * D + D * D), rel=0.4
        )
        held = (
            4 * rows * D * (1 + 2 * (gates + 3))
        )  # of two layers: what a step reads twice, its gates, its output
        assert result.moments["after forward"] - 12 * result.parameters == pytest.approx(
            held, rel=0.02, abs=MIB
        )
        assert any(
            "reserve space of cuDNN's recurrent layers" in sentence for sentence in result.unseen
        )


def test_shapes_of_recurrent_layers_are_those_of_torch_and_packed_sequences_have_a_row_for_each_element():
    x = torch.randn(4, 6, 5)
    traced = []

    def shapes(out, last):
        return [tuple(t.shape) for t in (out, *(last if isinstance(last, tuple) else (last,)))]

    def inner(net):
        out, last = net(x.to("cuda"))
        traced.append(shapes(out, last))
        return out.sum()

    for net in (
        nn.LSTM(5, 7, 2, bidirectional=True), nn.LSTM(5, 7, batch_first=True), nn.GRU(5, 7, 2, dropout=0.5),
    ):  # fmt: skip
        real = shapes(*net(x))
        predict(lambda net=net: net, inner)
        assert traced == [real, real], net
        traced.clear()

    def packing(net):
        packed = nn.utils.rnn.PackedSequence(
            torch.randn(9, 5, device="cuda"), torch.tensor([4, 3, 2])
        )
        out, (last, _) = net(packed)
        assert out.data.shape == (9, 7)
        assert last.shape == (1, 4, 7)
        return out.data.sum()

    assert predict(lambda: nn.LSTM(5, 7, bias=False), packing).pass_flops == 2 * 2 * 9 * 4 * (
        5 * 7 + 7 * 7
    )
