"""The loop that people write: what a step may return, its optimizers and modes, and sentences for what cannot be."""

import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.errors import BadInput
from lib.planner import predict, predict_inference
from lib.planner.allocator import MIB
from lib.planner.limits import NotTraceable

WIDE = 512


def wide():
    return nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(4)))


def loss(net):
    return net(torch.randn(2, WIDE, device="cuda")).square().mean()


@pytest.mark.parametrize(
    "given, sentence",
    [
        ({"precision": "fp8"}, "There is no precision 'fp8'. Write fp32, fp16, bf16 or auto."),
        ({"precision": None}, "There is no precision None"),
        ({"accumulation": 0}, "accumulation is 0. Give the micro-batches"),
        ({"accumulation": -2}, "accumulation is -2"),
        ({"accumulation": 1.5}, "accumulation is 1.5"),
        ({"clip_norm": -1}, "clip_norm is -1"),
        ({"clip_norm": float("nan")}, "clip_norm is nan"),
        ({"clip_norm": "1"}, "clip_norm is '1'"),
        ({"optimizer": lambda parameters: None}, "optimizer returned None. Let it return an optimizer"),
        ({"optimizer": lambda parameters: []}, "an empty list"),
        ({"optimizer": lambda parameters: "adam"}, "optimizer returned an object of the class str"),
    ],
)
def test_a_value_that_no_loop_can_have_is_a_sentence(given, sentence):
    with pytest.raises(BadInput) as caught:
        predict(wide, loss, **given)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "returned, sentence",
    [
        (lambda value: None, "The step returned None"),
        (lambda value: {"logits": value}, "a dict with 'logits', in which there is no loss"),
        (lambda value: types.SimpleNamespace(loss=None), "an object of the class SimpleNamespace"),
        (lambda value: 1.0, "an object of the class float"),
        (lambda value: value.detach(), "depends on no parameter that is trained"),
        (lambda value: value.expand(3), "a loss of shape (3,)"),
    ],
)
def test_a_step_without_one_loss_is_a_sentence(returned, sentence):
    with pytest.raises(BadInput) as caught:
        predict(wide, lambda net: returned(loss(net)))
    assert sentence in str(caught.value)


def test_a_model_for_its_function_and_a_batch_for_a_step_are_sentences():
    with pytest.raises(BadInput, match="model is an object of the class Sequential. Give a function that makes the"):
        predict(wide(), loss)
    with pytest.raises(BadInput, match="step is an object of the class Tensor. Give a function of the model"):
        predict(wide, torch.ones(1))


def test_the_loss_is_found_in_a_tuple_a_mapping_and_a_models_output():
    plain = predict(wide, loss)
    for returned in (
        lambda value: (value, "more"), lambda value: {"loss": value}, lambda value: types.SimpleNamespace(loss=value),
    ):  # fmt: skip
        assert predict(wide, lambda net, returned=returned: returned(loss(net))) == plain


def test_several_optimizers_have_a_state_each():
    def two(parameters):
        half = len(parameters) // 2
        return [torch.optim.AdamW(parameters[:half]), torch.optim.SGD(parameters[half:], momentum=0.9)]

    several = predict(wide, loss, optimizer=two)
    assert several.by_category["optimizer"] == pytest.approx(4 * several.parameters * (2 + 1) / 2, rel=0.01)


def test_a_fused_optimizer_needs_no_temporary():
    """A foreach AdamW has one of 4 bytes a parameter at the peak; the fused kernel has none."""
    plain, fused = (
        predict(wide, loss, optimizer=lambda parameters, f=f: torch.optim.AdamW(parameters, fused=f or None))
        for f in (False, True)
    )
    assert fused.by_category["optimizer"] == pytest.approx(plain.by_category["optimizer"], abs=8 * 512)
    assert plain.peak_bytes - fused.peak_bytes > 3.5 * plain.parameters
    sgd = predict(wide, loss, optimizer=lambda parameters: torch.optim.SGD(parameters, momentum=0.9, fused=True))
    assert sgd.by_category["optimizer"] == pytest.approx(4 * sgd.parameters, rel=0.01)


def test_an_optimizer_that_calls_the_step_again_is_refused():
    with pytest.raises(NotTraceable, match="LBFGS calls the step again"):
        predict(wide, loss, optimizer=lambda parameters: torch.optim.LBFGS(parameters))


def test_a_model_in_eval_stays_so_and_it_is_said():
    def made():
        return nn.Sequential(nn.Linear(WIDE, WIDE), nn.Dropout(0.5), nn.BatchNorm1d(WIDE))

    def step(net):
        return net(torch.randn(2048, WIDE, device="cuda")).sum()

    trained, fixed = predict(made, step), predict(lambda: made().eval(), step)
    assert trained.moments["after forward"] - fixed.moments["after forward"] >= 2048 * WIDE  # the mask, at least
    assert any("made in eval()" in sentence for sentence in fixed.unseen)
    assert not any("eval()" in sentence for sentence in trained.unseen)


def test_gradients_that_are_dropped_after_the_forward_pass_stand_beside_its_activations():
    first, later = (predict(wide, loss, zeroes_after_forward=after) for after in (False, True))
    more = later.moments["after forward"] - first.moments["after forward"]
    assert more == pytest.approx(4 * first.parameters, rel=0.02)
    assert later.moments["after backward"] == first.moments["after backward"]


def test_bf16_on_a_card_without_units_is_said_and_auto_takes_what_the_card_has():
    assert any("T4 has no units for it" in s for s in predict(wide, loss, "t4", precision="bf16").unseen)
    assert not any("no units" in s for s in predict(wide, loss, "l4", precision="bf16").unseen)
    pairs = (("t4", "fp16"), ("l4", "bf16"))
    for card, precision in pairs:
        assert predict(wide, loss, card, precision="auto") == predict(wide, loss, card, precision=precision)


def test_six_equal_calls_give_equal_predictions():
    """Whatever the step draws its sizes from."""

    def step(net):
        import random

        import numpy as np

        rows = int(torch.randint(1, 4000, ())) + np.random.randint(1, 4000) + random.randrange(1, 4000)
        return net(torch.randn(rows, WIDE, device="cuda")).square().mean()

    first, *others = (predict(wide, step) for _ in range(6))
    assert all(other == first for other in others) and first.reserved_bytes > 2000 * WIDE


def test_a_forward_pass_alone_holds_weights_and_one_layer():
    def step(net):
        return net(torch.randn(4096, WIDE, device="cuda"))

    result = predict_inference(wide, step)
    activations = 3 * 4 * 4096 * WIDE  # the step's input, and the input and output of a layer
    assert result.peak_bytes - 4 * result.parameters == pytest.approx(activations, abs=9 * MIB)
    assert list(result.moments) == ["after load", "after forward"] and not result.by_category.get("gradients")
    assert result.pass_flops == 4 * 2 * 4096 * WIDE * WIDE


def test_a_cache_that_a_step_returns_is_held():
    def step(keep):
        def inner(net):
            x = torch.randn(4096, WIDE, device="cuda")
            cache = []
            for layer in net:
                x = F.relu(layer(x))
                cache += [x] if keep else []
            return x, cache

        return inner

    held, freed = (predict_inference(wide, step(keep)).moments["after forward"] for keep in (True, False))
    assert held - freed == 3 * 4 * 4096 * WIDE


def test_several_cards_hold_a_copy_of_the_gradients_and_set_nccls_buffers_aside():
    alone, together = (predict(wide, loss, cards=cards) for cards in (1, 2))
    trained = 4 * alone.parameters
    assert together.peak_bytes - alone.peak_bytes == pytest.approx(trained, rel=0.01, abs=512)
    assert alone.usable_bytes - together.usable_bytes == 200 * 2**20
    assert any(group.what == "DDP's buckets" for group in together.alive)
    assert any("sum their gradients" in sentence for sentence in together.unseen)
    with pytest.raises(BadInput, match="cards is 0. Give how many"):
        predict(wide, loss, cards=0)
