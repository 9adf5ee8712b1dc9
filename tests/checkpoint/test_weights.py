"""Weights by name, weights into another shape, and their moving average."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lib import checkpoint
from lib.checkpoint import weights
from lib.errors import BadInput


def net(inputs=3, width=4):
    torch.manual_seed(inputs)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 1))


def test_weights_of_a_wrapped_model_are_put_back_into_a_plain_one():
    source = net()
    expected = source.state_dict()
    target = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    weights.put_back(target, {f"module._orig_mod.{n}": value for n, value in expected.items()})
    for name, value in target.state_dict().items():
        assert torch.equal(value, expected[name])


def test_tied_tensors_are_saved_once():
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    assert list(weights.of(model)) == ["a.weight"]


def test_weights_are_read_from_a_file_a_checkpoint_and_a_run(tmp_path):
    tensors = weights.of(net())
    save_file(tensors, tmp_path / "w.safetensors")
    saved = checkpoint.save(tmp_path / "run" / "best", 3, {"model": tensors}, {})
    for path in (tmp_path / "w.safetensors", saved, tmp_path / "run" / "best", tmp_path / "run"):
        model = weights.read(path).tensors["model"]
        assert torch.equal(model["0.weight"], tensors["0.weight"])


def test_pickled_weights_are_never_opened(tmp_path):
    torch.save(weights.of(net()), tmp_path / "w.pth")
    with pytest.raises(BadInput, match="never opened here"):
        weights.read(tmp_path / "w.pth")
    (tmp_path / "fake.safetensors").write_bytes((tmp_path / "w.pth").read_bytes())
    with pytest.raises(BadInput, match="cannot be read"):
        weights.read(tmp_path / "fake.safetensors")
