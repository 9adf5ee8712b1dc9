"""What a trace says of layers and of the peak."""

import dataclasses
from pathlib import Path

import pytest
import torch

from lib.planner import of_layers, predict
from lib.planner.log import OUTSIDE, Layer, folded
from tests.planner import models
from tests.planner.models import Encoder

D, TOKENS = 64, 8 * 128
LAYER = 12 * D * D + 13 * D  # parameters


def step(net):
    return net(torch.randn(8, 128, D, device="cuda")).square().mean()


@pytest.fixture(scope="module")
def traced():
    return predict(lambda: Encoder(3, D), step, "t4")


def test_a_layer_has_what_can_be_counted_by_hand(traced):
    rows = {row.name: row for row in traced.layers}
    assert list(rows) == ["blocks.0", "blocks.1", "blocks.2", "head", OUTSIDE]
    for name in ("blocks.0", "blocks.1", "blocks.2"):
        row = rows[name]
        assert row.weights == row.gradients == pytest.approx(4 * LAYER, rel=0.01)
        assert row.optimizer == pytest.approx(8 * LAYER, rel=0.05)  # and a count of steps in 512 bytes for each
        assert row.activations == pytest.approx(66 * TOKENS * D, rel=0.07)  # see test_trace
    assert rows[OUTSIDE].weights == rows[OUTSIDE].optimizer == 0


def test_layers_and_groups_sum_to_the_peak(traced):
    assert sum(row.at_peak for row in traced.layers) == traced.peak_bytes
    sizes = [group.size for group in traced.alive]
    assert 0.9 * traced.peak_bytes < sum(sizes) <= traced.peak_bytes
    assert sizes == sorted(sizes, reverse=True)


def test_the_peak_names_module_line_operator_and_shape(traced):
    wide = next(group for group in traced.alive if group.what == "gelu")
    assert (wide.module, wide.count, wide.shape) == ("blocks.*", 3, (8, 128, 4 * D))
    assert wide.line.startswith("planner/models.py:") and wide.size == 3 * 4 * 4 * TOKENS * D
    lines = Path(models.__file__).read_text().splitlines()
    assert "F.gelu" in lines[int(wide.line.partition(":")[2]) - 1]


def test_what_backward_makes_is_its_layers(traced):
    """The peak is where the last layer goes back, which holds gradients of its widest activations."""
    made = [group for group in traced.alive if group.category == "temporaries" and group.module.startswith("blocks")]
    assert made and all(group.line.startswith("planner/models.py") for group in made)


def test_a_recomputed_layer_is_named():
    def made():
        net = Encoder(2, D)
        for block in net.blocks:
            run = block.forward
            block.forward = lambda x, run=run: torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)
        return net

    saved = predict(made, step, "t4")
    rows = {row.name: row for row in saved.layers}
    assert rows["blocks.0"].activations < 10 * TOKENS * D, "its input alone waits for the backward pass"
    assert rows["blocks.1"].at_peak > 50 * TOKENS * D, "and is computed again there"


def test_the_table_shows_alike_layers_as_one_row(traced):
    text = of_layers(traced)
    row = next(line for line in text.splitlines() if line.startswith("blocks.0 ... blocks.2 (3)"))
    whole = 3 * 4 * LAYER / 2**20
    assert row.split()[4:6] == [f"{whole:,.1f}", f"{whole:,.1f}"]
    assert "gelu (activations)" in text and "8 x 128 x 256" in text
    mixed = [Layer(f"a.{n}", 1, n // 2, 0, 0, 0, 1) for n in range(4)]
    assert [row.name for row in folded(mixed)] == ["a.0 ... a.1", "a.2 ... a.3"]


def test_small_layers_are_one_row(traced):
    small = [Layer(f"small_{name}", 1, 8, 8, 16, 8, 0) for name in "abcde"]
    layers = (*small, *(layer for layer in traced.layers if layer.name != "head"))
    text = of_layers(dataclasses.replace(traced, layers=layers))
    assert "smaller ones (5)" in text and "small_a" not in text and text.index("smaller") < text.index(OUTSIDE)
