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


@pytest.mark.parametrize(
    "dtype, capability, width, kernel",
    [
        (torch.half, (8, 0), 64, "flash"),
        (torch.half, (7, 5), 64, "efficient"),
        (torch.half, (7, 5), 60, "math"),
        (torch.bfloat16, (7, 5), 64, "math"),
        (torch.float32, (8, 0), 4, "efficient"),
    ],
)
def test_attention_takes_the_first_kernel_that_can(dtype, capability, width, kernel):
    query = torch.empty(1, 2, 8, width, dtype=dtype, device="meta")
    assert attention_kernel(capability, query, query, None) == kernel


def test_attention_with_a_mask_is_not_by_flash():
    query = torch.empty(1, 2, 8, 64, dtype=torch.half, device="meta")
    mask = torch.empty(8, 8, dtype=torch.bool, device="meta")
    assert attention_kernel((8, 0), query, query, mask) == "efficient"


def test_attention_takes_a_kernel_that_sdpa_kernel_names():
    kinds = torch.nn.attention.SDPBackend

    def step(net):
        q = net(torch.randn(2, 4, 64, 64, device="cuda"))
        with torch.nn.attention.sdpa_kernel([kinds.MATH, kinds.EFFICIENT_ATTENTION]):
            return F.scaled_dot_product_attention(q, q, q).sum()

    prediction = predict(linear, step, "t4", precision="fp16")
    assert set(prediction.attention) == {"efficient"}


# --- torch.cuda -------------------------------------------------------------------------------------------------------


def test_a_script_that_asks_for_a_gpu_gets_one_of_the_predicted_kind():
    answers = []

    def step(net):
        name = torch.cuda.get_device_name()
        capability = torch.cuda.get_device_capability()
        answers.append((name, capability, torch.cuda.device_count()))
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        return loss(net, torch.device(kind, torch.cuda.current_device()))

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


@pytest.mark.parametrize("kind, gates", [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_is_one_step_with_its_gates(kind, gates):
    rows = ROWS * STEPS
    result = predict(lambda: kind(D, D, 2), sequence)
    layer_flops = 2 * rows * gates * (D * D + D * D)
    assert result.pass_flops == pytest.approx(3 * 2 * layer_flops, rel=0.4)
    # both layers keep gates, cell, output and input
    held = 4 * rows * D * (1 + 2 * (gates + 3))
    activations = result.moments["after forward"] - 12 * result.parameters
    assert activations == pytest.approx(held, rel=0.02, abs=MIB)
    assert "reserve space of cuDNN's recurrent layers" in " ".join(result.unseen)


@pytest.mark.parametrize(
    "net",
    [
        nn.LSTM(5, 7, 2, bidirectional=True),
        nn.LSTM(5, 7, batch_first=True),
        nn.GRU(5, 7, 2, dropout=0.5),
    ],
)
def test_shapes_of_recurrent_layers_are_those_of_torch(net):
    x = torch.randn(4, 6, 5)
    traced = []

    def shapes(out, last):
        states = last if isinstance(last, tuple) else (last,)
        return [tuple(tensor.shape) for tensor in (out, *states)]

    def step(net):
        out, last = net(x.to("cuda"))
        traced.append(shapes(out, last))
        return out.sum()

    expected = shapes(*net(x))
    predict(lambda: net, step)
    assert traced == [expected, expected]


def test_a_packed_sequence_has_a_row_for_each_element():
    def step(net):
        rows = torch.randn(9, 5, device="cuda")
        packed = nn.utils.rnn.PackedSequence(rows, torch.tensor([4, 3, 2]))
        out, (last, _) = net(packed)
        assert out.data.shape == (9, 7)
        assert last.shape == (1, 4, 7)
        return out.data.sum()

    prediction = predict(lambda: nn.LSTM(5, 7, bias=False), step)
    assert prediction.pass_flops == 2 * 2 * 9 * 4 * (5 * 7 + 7 * 7)
