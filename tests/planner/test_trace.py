"""Predictions against hand formulas, PyTorch's profiler and the behaviour of CUDA; and bad input."""

import functools
import re
import sys
import types

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lib.errors import NotTraceable
from lib.planner import predict, tracker
from lib.planner.card import find_card
from lib.planner.log import OUTSIDE
from lib.planner.trace import predict_task
from lib.planner.tracker import Tracker
from lib.task.blocks import find_blocks
from lib.training.recomputation import recompute
from tests.planner.models import Encoder, LanguageModel
from tests.toy import Toy

D = 256
BATCH = 16
LENGTH = 256
TOKENS = BATCH * LENGTH
PER_LAYER = 12 * D * D + 13 * D  # parameters
WIDE = 512


def predicted(layers, recomputed=0, **more):
    def net():
        encoder = Encoder(layers, D)
        recompute(encoder, recomputed, find_blocks(encoder))
        return encoder

    def step(net):
        return net(torch.randn(BATCH, LENGTH, D, device="cuda")).square().mean()

    return predict(net, step, "t4", **more)


@pytest.fixture(scope="module")
def traced():
    return predicted(3)


def test_under_autocast_a_layer_keeps_the_activations_counted_by_hand():
    """Inputs of products are half as wide as in fp32; norms and sums stay fp32."""
    two = predicted(2, precision="fp16").moments["after forward"]
    four = predicted(4, precision="fp16").moments["after forward"]
    copies = 2 * 12 * D * D  # autocast's, of the weights
    activations = (four - two) / 2 - 12 * PER_LAYER - copies  # a step begins without gradients
    assert activations / (TOKENS * D) == pytest.approx(38, rel=0.015)


def wide():
    return nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(4)))


def loss(net):
    return net(torch.randn(2, WIDE, device="cuda")).square().mean()


@pytest.mark.parametrize("fused, each", [(None, 20.2), (True, 16)])
def test_the_optimizers_plateau_is_20_bytes_a_parameter_and_16_in_one_kernel(fused, each):
    """Weights, gradients, two moments and the temporary of foreach AdamW take 4 each."""

    def model():
        return nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))

    def step(net):
        return net(torch.randn(1, 2048, device="cuda")).sum()

    adam = functools.partial(torch.optim.AdamW, fused=fused)
    result = predict(model, step, optimizer=adam)
    held = result.peak_bytes - result.by_category["workspace"]
    assert held / result.parameters == pytest.approx(each, rel=0.015)


def test_recomputation_keeps_one_layers_activations(traced):
    saved = predicted(3, "all")
    rest = traced.by_category["weights"] + traced.by_category["optimizer"]
    inputs_and_a_layer = 3 * 4 * TOKENS * D + 66 * TOKENS * D
    assert saved.by_category["activations"] < 1.2 * inputs_and_a_layer
    assert saved.peak_bytes - rest < 0.5 * (traced.peak_bytes - rest)
    assert saved.pass_flops == pytest.approx(traced.pass_flops * 4 / 3, rel=0.02)
    rows = {row.name: row for row in saved.layers}
    assert rows["blocks.0"].activations < 10 * TOKENS * D, "only its input waits for backward"
    assert rows["blocks.2"].at_peak > 50 * TOKENS * D, "it is computed again there"


# --- the loop that people write ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result_of",
    [
        lambda value: (value, "more"),
        lambda value: {"loss": value},
        lambda value: types.SimpleNamespace(loss=value),
    ],
)
def test_a_step_may_return_more_than_the_loss(result_of):
    assert predict(wide, lambda net: result_of(loss(net))) == predict(wide, loss)


@pytest.mark.parametrize("options", [{"accumulation": 2}, {"zeroes_after_forward": True}])
def test_gradients_are_held_through_forward_if_the_loop_drops_them_later(options):
    plain = predict(wide, loss)
    held = predict(wide, loss, **options).moments["after forward"]
    gradients = held - plain.moments["after forward"]
    assert gradients == pytest.approx(4 * plain.parameters, rel=0.02)


def test_values_of_the_batch_decide_how_many_positions_a_loss_picks():
    chosen = torch.zeros(64, 128, dtype=torch.bool)
    chosen[:, :13] = True

    def step_with(mask):
        def step(net):
            return net(torch.randn(64, 128, 256, device="cuda")[mask()]).square().sum()

        return step

    def model():
        return nn.Linear(256, 4000)

    def drawn():
        return torch.rand(64, 128, device="cuda") < 0.1

    fixed = predict(model, step_with(lambda: chosen.to("cuda")))
    unknown = predict(model, step_with(drawn))
    assert fixed.peak_bytes < 0.3 * unknown.peak_bytes
    assert not any("upper bound" in sentence for sentence in fixed.unseen)
    assert any("a mask as index (all 8,192 elements)" in sentence for sentence in unknown.unseen)


def small():
    return nn.Linear(4, 4)


def test_an_error_of_a_step_is_raised_and_torch_is_as_before():
    function = torch.cuda.is_bf16_supported
    state = torch.get_rng_state()

    def step(net):
        return net(torch.randn(4, 5, device="cuda")).sum()

    with pytest.raises(RuntimeError, match="must have same reduction dim"):
        predict(small, step, precision="fp16")
    assert torch.cuda.is_bf16_supported is function
    assert not torch.is_autocast_enabled("cuda")
    assert torch.ones(1).device.type == "cpu"
    assert torch.equal(torch.get_rng_state(), state)


def test_an_operator_without_shapes_is_named_with_its_line():
    def step(net):
        y = net(torch.randn(4, 4, device="cuda"))
        values = torch.linalg.lstsq(y, torch.randn(4, 1, device="cuda"))
        return values.solution.sum()

    message = r"cannot be traced without values \(.*test_trace.py, line \d+\).*lstsq"
    with pytest.raises(NotTraceable, match=message):
        predict(small, step)


@pytest.mark.parametrize(("clock", "operators"), [("monotonic", 15_401), ("thread_time", 401)])
def test_an_endless_loop_is_refused_with_its_line_after_forty_seconds(
    clock, operators, monkeypatch
):
    """Each look at the clock is a tenth of a second later; wall time counts with many operators."""
    looks = iter(range(10**6))
    clocks = types.SimpleNamespace(monotonic=lambda: 0.0, thread_time=lambda: 0.0)
    setattr(clocks, clock, lambda: next(looks) / 10)
    monkeypatch.setattr(tracker, "time", clocks)
    lines = []

    def waiting(net):
        error = net(torch.ones(2, 4, device="cuda")).sum()
        lines.append(sys._getframe().f_lineno)
        while error.item() > 1e-3:
            error = error * 0.5
        return error

    with pytest.raises(NotTraceable, match="a fixed number of turns") as refusal:
        predict(small, waiting)
    line = rf"line ({lines[0] + 1}|{lines[0] + 2})\)"
    words = rf"took 40 s for {operators:,} operators and goes on \(.*test_trace.py, {line}"
    assert re.search(words, str(refusal.value))


def test_the_followed_branch_is_named_with_its_line():
    lines = []

    def step(net):
        y = net(torch.ones(2, 4, device="cuda"))
        lines.append(sys._getframe().f_lineno)
        if y.sum() > 0:
            return (y.repeat(100_000, 1) ** 2).mean()
        return y.mean() * y.max().item()

    text = "\n".join(predict(small, step).unseen)
    for offset, value in ((1, "False"), (3, "1.0")):
        assert f"({__file__}, line {lines[0] + offset}) was taken as {value} (2 times)" in text
    assert "another may need more memory" in text
    assert "upper bound" not in text


class Tied(nn.Module):
    """An embedding that is also the head, tied as in transformers 5.0: not on a default device of meta."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.head = nn.Linear(64, 1000, bias=False)
        if torch.empty(0).device.type != "meta":
            self.tie_weights()

    def tie_weights(self):
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids.long().abs() % 1000)).sum(-1)


def prediction_of_task(make_model, config):
    task = type("Other", (Toy,), {"model": lambda self: make_model()})(config)
    return predict_task(task, config, find_card("t4"), 2, 1, 1)


def test_tied_weights_are_counted_once(toy):
    def step(net):
        return net(torch.randint(1000, (4, 8), device="cuda")).float().mean()

    assert predict(Tied, step, "t4").parameters == 64_000
    assert prediction_of_task(Tied, toy()).parameters == 64_000


FROZEN = 1024 * 1024
TRAINED = 4 * 1024 + 1024 + 1


def frozen_base():
    frozen = nn.Linear(1024, 1024).requires_grad_(False)
    return nn.Sequential(nn.Linear(3, 1024), frozen, nn.Linear(1024, 1))


@pytest.mark.parametrize("precision", ["", "fp16"])
def test_a_frozen_base_has_neither_gradients_nor_moments(toy, precision):
    plan = prediction_of_task(frozen_base, toy({"training.frozen_precision": precision}))
    assert plan.parameters == FROZEN + 1024 + TRAINED
    assert 8 * TRAINED <= plan.by_category["optimizer"] < 8 * TRAINED + 10_000
    assert plan.by_category.get("gradients", 0) < 8 * TRAINED + 10_000


def test_a_frozen_base_in_fp16_needs_no_copy_by_autocast(toy):
    plain = prediction_of_task(frozen_base, toy({"training.frozen_precision": ""}))
    halves = prediction_of_task(frozen_base, toy({"training.frozen_precision": "fp16"}))
    assert plain.moments["after load"] - halves.moments["after load"] == 2 * FROZEN
    assert plain.peak_bytes - halves.peak_bytes == pytest.approx(4 * FROZEN, rel=0.01)


# --- layers and the peak ----------------------------------------------------------------------------------------------


def test_a_layer_has_the_bytes_counted_by_hand(traced):
    rows = {row.name: row for row in traced.layers}
    assert list(rows) == ["blocks.0", "blocks.1", "blocks.2", "head", OUTSIDE]
    for name in ("blocks.0", "blocks.1", "blocks.2"):
        layer = rows[name]
        assert layer.weights == layer.gradients == pytest.approx(4 * PER_LAYER, rel=0.01)
        assert layer.optimizer == pytest.approx(8 * PER_LAYER, rel=0.05)
        assert layer.activations == pytest.approx(66 * TOKENS * D, rel=0.07)
    assert rows[OUTSIDE].weights == rows[OUTSIDE].optimizer == 0


def test_layers_and_categories_sum_to_the_peak(traced):
    assert sum(row.at_peak for row in traced.layers) == traced.peak_bytes <= traced.reserved_bytes
    assert sum(traced.by_category.values()) == traced.peak_bytes
    assert "200 MiB are set aside" in " ".join(traced.unseen)
    assert "fits" in str(traced)


# --- against PyTorch's profiler ---------------------------------------------------------------------------------------


def test_the_tracked_peak_of_a_real_step_is_the_profilers():
    torch.manual_seed(0)
    model = LanguageModel()

    def steps():
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.arange(4 * 128).view(4, 128)).backward()
            optimizer.step()

    weights = [*model.parameters(), *model.buffers()]
    held = peak = sum(tensor.nbytes for tensor in weights)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        steps()
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    for _, change in sorted(changes):
        held += change
        peak = max(peak, held)
    model.zero_grad()
    tracker = Tracker(find_card("t4"), device="cpu")
    tracker.allocator = Exact()
    tracker.adopt(model)
    with tracker:
        steps()
    assert tracker.allocator.peak == pytest.approx(peak, rel=1e-3)


class Exact:
    """An allocator without rounding, as the CPU's."""

    allocated = peak = reserved = 0

    def allocate(self, size):
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return types.SimpleNamespace(size=size, address=0)

    def release(self, block):
        self.allocated -= block.size
