"""Layers that are computed again in the backward pass: less memory, the same numbers."""

import pytest
import torch
from torch import nn

from lib.errors import BadInput
from lib.training.recomputation import recompute
from tests.toy import Net
from tests.training.test_loop import same_tensors


def test_recomputation_needs_blocks():
    with pytest.raises(BadInput, match="no `blocks`"):
        recompute(nn.Linear(2, 2), "all")
    assert recompute(nn.Linear(2, 2), 0) == 0
    assert recompute(Net(nn.Linear(2, 2), nn.Tanh()), 9) == 2


@pytest.mark.parametrize("momentum", [0.1, None])
def test_recomputation_updates_batch_statistics_once(momentum):
    def trained(layers):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(8, momentum=momentum)
        model = nn.Module()
        model.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 8), norm, nn.Tanh()), nn.Linear(8, 1)])
        recompute(model, layers)
        for step in range(3):
            out = torch.randn(16, 4, generator=torch.Generator().manual_seed(step), requires_grad=True)
            for block in model.blocks:
                out = block(out)
            out.square().sum().backward()
        return {**dict(model.named_buffers()), **{n: p.grad for n, p in model.named_parameters()}}

    plain, recomputed = trained(0), trained("all")
    assert plain["blocks.0.1.num_batches_tracked"] == 3
    assert same_tensors(plain, recomputed)
