"""Layers in nf4: the bytes, products and gradients of bitsandbytes, and a base that no checkpoint has."""

import pytest
import torch
from torch import nn

from lib import checkpoint
from lib.planner import make, predict
from lib.planner.card import find_card
from lib.task import quantised
from lib.task.quantised import Linear4, quantise
from tests.conftest import ROOT
from trainbook import launch


@pytest.mark.parametrize("shape", [(256, 512), (128, 640)])
def test_bytes_and_values_are_those_of_bitsandbytes(shape):
    bnb = pytest.importorskip("bitsandbytes").functional
    torch.manual_seed(0)
    weight = torch.randn(shape) * 0.02
    packed, scales = quantised.pack(weight)
    theirs, state = bnb.quantize_4bit(
        weight, quant_type="nf4", compress_statistics=False, blocksize=64
    )
    assert torch.equal(packed, theirs)
    assert torch.equal(scales, state.absmax)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        mine = quantised.unpack(packed, scales, dtype)
        size = torch.Size([weight.numel()])
        state = bnb.QuantState(
            scales, size, blocksize=64, quant_type="nf4", dtype=dtype
        )  # as `unpack` does on a GPU
        assert torch.equal(mine, bnb.dequantize_4bit(packed, state).view(-1))


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_computes_as_a_linear_one_with_its_unpacked_weights(bias, monkeypatch):
    monkeypatch.setattr(quantised, "_AT_ONCE", 7)
    torch.manual_seed(0)
    plain = nn.Linear(96, 64, bias=bias)
    layer = quantise(nn.Sequential(plain, nn.ReLU()))[0]
    assert isinstance(layer, Linear4)
    assert not any(value.requires_grad for value in layer.parameters())
    with torch.no_grad():
        plain.weight.copy_(layer.unpacked(torch.float32))
    for autocast in (False, True):
        results = []
        for each in (plain, layer):
            x = torch.linspace(-1, 1, 5 * 96).view(5, 96).requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = each(x)
            y.float().square().sum().backward()
            results.append((y, x.grad))
        for one, other in zip(*results, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


def test_a_plan_counts_the_packed_bytes_of_each_layer_and_unpacks_one_at_a_time():
    rows = 512
    width = 1024

    def model(layers):
        linears = [nn.Linear(width, width, bias=False) for _ in range(layers)]
        base = quantise(nn.Sequential(*linears))
        return nn.Sequential(nn.Linear(width, width), base)

    def step(net):
        return net(torch.ones(rows, width, device="cuda")).float().sum()

    sgd = lambda parameters: torch.optim.SGD([p for p in parameters if p.requires_grad])  # noqa: E731
    few = predict(lambda: model(4), step, precision="fp16", optimizer=sgd)
    many = predict(lambda: model(12), step, precision="fp16", optimizer=sgd)
    weights = width * width
    packed = sum(value.nbytes for layer in model(8)[1] for value in layer.parameters())
    assert packed == 8 * (weights // 2 + 4 * weights // 64)
    assert many.moments["after load"] - few.moments["after load"] == packed
    assert many.parameters == 13 * width * width + width
    assert many.trained == width * width + width
    assert many.peak_bytes - few.peak_bytes == pytest.approx(
        packed, abs=2 * rows * width
    )  # nothing else is kept


def test_a_published_base_in_nf4_is_in_no_checkpoint_and_resumes_in_the_same_bytes(
    toy, tmp_path, cut, quick
):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    sizes = {"vocab_size": 11, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=64, max_position_embeddings=8)
    transformers.BertModel(config).save_pretrained(tmp_path / "model")

    def configured(name):
        steps = {
            "training.max_steps": 4,
            "checkpoint.every_steps": 2,
            "training.evaluate_every_steps": 2,
        }
        task = {
            "task": f"{ROOT / 'tests'}/bert.py:Packed",
            "workload.published": str(tmp_path / "model"),
        }
        return toy({**task, **steps, "run.name": name})

    assert make(configured("planned"), find_card("t4")).chosen.prediction.fits
    cut(None)
    launch.train(configured("whole"))
    cut(3)
    launch.train(configured("cut"))
    cut(None)
    launch.train(configured("cut"))
    whole, _ = checkpoint.load_newest(tmp_path / "runs" / "whole" / "checkpoints")
    resumed, _ = checkpoint.load_newest(tmp_path / "runs" / "cut" / "checkpoints")
    assert whole.tensors["model"].keys() == {"classifier.weight", "classifier.bias"}
    for name, value in whole.tensors["model"].items():
        assert torch.equal(value, resumed.tensors["model"][name])
    left_out = whole.state["frozen"]
    assert left_out["bert.encoder.layer.0.output.dense.weight"].startswith("uint8 (2048, 1) ")
    assert left_out["bert.encoder.layer.0.output.dense.scales"].startswith("float32 (64,) ")
    assert not (tmp_path / "runs" / "cut" / "frozen").exists(), "it follows from the published file"
