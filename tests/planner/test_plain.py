"""The loop that people write: what a step may return, its optimizers and modes, and refusals of what cannot be."""

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
        ({"precision": "fp8"}, "no precision 'fp8'"), ({"precision": None}, "no precision None"),
        ({"accumulation": 0}, "accumulation is 0"), ({"accumulation": 1.5}, "accumulation is 1.5"),
        ({"cards": 0}, "cards is 0"), ({"clip_norm": -1}, "clip_norm is -1"), ({"clip_norm": "1"}, "clip_norm is '1'"),
        ({"clip_norm": float("nan")}, "clip_norm is nan"),
        ({"optimizer": lambda parameters: None}, "optimizer returned None"),
        ({"optimizer": lambda parameters: []}, "optimizer returned None"),
        ({"optimizer": lambda parameters: "adam"}, "optimizer returned an object of the class str"),
        ({"model": wide()}, "model is an object of the class Sequential. Give a function"),
        ({"step": torch.ones(1)}, "step is an object of the class Tensor. Give a function"),
        ({"step": lambda net: None}, "The step returned None"),
        ({"step": lambda net: {"logits": loss(net)}}, "a dict with 'logits', in which there is no loss"),
        ({"step": lambda net: types.SimpleNamespace(loss=None)}, "an object of the class SimpleNamespace"),
        ({"step": lambda net: loss(net).detach()}, "depends on no trained parameter"),
        ({"step": lambda net: loss(net).expand(3)}, "the shape (3,)"),
    ],
)  # fmt: skip
def test_what_no_loop_can_have_is_a_sentence(given, sentence):
    with pytest.raises(BadInput) as caught:
        predict(**{"model": wide, "step": loss, **given})
    assert sentence in str(caught.value)


def test_the_loss_is_found_in_a_tuple_a_mapping_and_a_models_output_and_a_prediction_is_the_same_every_time():
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
    assert ["made in eval()" in " ".join(result.unseen) for result in (trained, fixed)] == [False, True]


def test_gradients_that_are_dropped_after_the_forward_pass_stand_beside_its_activations():
    first, later = (predict(wide, loss, zeroes_after_forward=after) for after in (False, True))
    more = later.moments["after forward"] - first.moments["after forward"]
    assert more == pytest.approx(4 * first.parameters, rel=0.02)
    assert later.moments["after backward"] == first.moments["after backward"]


def test_bf16_on_a_card_without_units_is_said_and_auto_takes_what_the_card_has():
    assert any("T4 has no units for it" in s for s in predict(wide, loss, "t4", precision="bf16").unseen)
    for card, precision in (("t4", "fp16"), ("l4", "bf16")):
        chosen = predict(wide, loss, card, precision="auto")
        assert chosen == predict(wide, loss, card, precision=precision) and "no units" not in " ".join(chosen.unseen)


def test_a_forward_pass_alone_holds_weights_and_one_layer():
    result = predict_inference(wide, lambda net: net(torch.randn(4096, WIDE, device="cuda")))
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
    assert together.peak_bytes - alone.peak_bytes == pytest.approx(4 * alone.parameters, rel=0.01, abs=512)
    assert alone.usable_bytes - together.usable_bytes == 200 * 2**20
    assert any(group.what == "DDP's buckets" for group in together.alive)
    assert any("sum their gradients" in sentence for sentence in together.unseen)
