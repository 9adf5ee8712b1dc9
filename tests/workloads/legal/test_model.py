"""The network: whose tokens it reads a role off."""

import pytest
import torch
from transformers import BertConfig, BertModel

from workloads.legal import samples
from workloads.legal.model import Network
from workloads.legal.settings import POSITIONS, Head

SIZES = {"vocab_size": 20, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def network(**head):
    torch.manual_seed(0)
    return Network(BertModel(BertConfig(**SIZES)), POSITIONS, 3, Head(width=4, **head)).eval()


def batch(size=2, length=6):
    return samples.example(size, length, POSITIONS, torch.device("cpu"))


def test_padding_changes_nothing():
    model, short = network(), batch(length=6)
    long = batch(length=9)
    long["mask"][:, 6:] = 0
    long["positions"] = short["positions"]
    assert torch.allclose(model(short), model(long), atol=1e-6)


@pytest.mark.parametrize(("name", "off"), [("positions", {"position": False}), ("category", {"category": False})])
def test_place_and_category_count_unless_they_are_switched_off(name, off):
    given = batch()
    changed = {**given, name: given[name] + 1}
    assert not torch.equal(network()(given), network()(changed))
    assert torch.equal(network(**off)(given), network(**off)(changed))
