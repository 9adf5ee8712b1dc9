"""Number format and recomputation that fit the card."""



import pytest
import torch
from torch import nn

from lib.errors import BadInput
from lib.training.precision import choose_precision, recompute
from tests.toy import Net


def test_precision_on_a_cpu():
    cpu = torch.device("cpu")
    assert choose_precision("auto", cpu) == "fp32" and choose_precision("bf16", cpu) == "bf16"
    with pytest.raises(BadInput, match="fp16, but there is no GPU"):
        choose_precision("fp16", cpu)


@pytest.mark.parametrize("capability, best", [((7, 5), "fp16"), ((6, 0), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_precision_goes_by_the_hardware_and_not_by_emulation(monkeypatch, capability, best):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *a, **k: True)  # what a T4 says
    cuda = torch.device("cuda", 0)
    assert choose_precision("auto", cuda) == best and choose_precision("fp32", cuda) == "fp32"
    if best == "fp16":
        with pytest.raises(BadInput, match="bf16, which a card lacks"):
            choose_precision("bf16", cuda)


def test_recomputation_needs_blocks():
    with pytest.raises(BadInput, match="no `blocks`"):
        recompute(nn.Linear(2, 2), "all")
    assert recompute(nn.Linear(2, 2), 0) == 0


def test_recomputation_keeps_fewer_activations():
    def saved(layers):
        torch.manual_seed(0)
        model = Net(*[nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 4)) for _ in range(6)])
        recompute(model, layers)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            out = model(torch.randn(32, 4, requires_grad=True))
        out.sum().backward()
        return sum(sizes)

    none, some, everything = saved(0), saved(3), saved("all")
    assert everything < some < none
