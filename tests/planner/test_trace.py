"""Predictions against hand formulas, against what a CUDA run is known to do, and on bad input."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.planner import predict
from lib.planner.card import find_card
from lib.planner.trace import NotTraceable, predict_task
from lib.training.recomputation import recompute
from tests.planner.models import Encoder, Layer
from tests.toy import Toy

D, BATCH, LENGTH = 256, 16, 256
TOKENS = BATCH * LENGTH


def encoder_step(net):
    return net(torch.randn(BATCH, LENGTH, D, device="cuda")).square().mean()


def predicted(layers, **more):
    return predict(lambda: Encoder(layers, D), encoder_step, "t4", **more)


@pytest.mark.parametrize("precision, bytes_each", [("fp32", 66), ("fp16", 38)])
def test_a_layer_keeps_what_can_be_counted_by_hand(precision, bytes_each):
    """fp32, bytes a token and channel: two norms 4 + 4, q k v 12, attention 4, feed-forward 16 + 16, two residual sums
    4 + 4, two dropout masks 1 + 1. Under fp16 autocast what enters a product is half as wide; the sums stay fp32."""
    two, four = (predicted(layers, precision=precision).moments["after forward"] for layers in (2, 4))
    states = 16 * (12 * D * D + 13 * D)  # of a layer, in the second step
    cast = 2 * 12 * D * D if precision == "fp16" else 0  # autocast's copies of the weights
    measured = (four - two) / 2 - states * 3 / 4 - cast  # gradients are gone when a step begins
    assert measured / (TOKENS * D) == pytest.approx(bytes_each, rel=0.015)


def test_the_optimizers_plateau_is_20_bytes_a_parameter():
    """Weights, gradients, two moments, and the temporary of foreach AdamW: five times 4 bytes."""
    wide = predict(
        lambda: nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))),
        lambda net: net(torch.randn(1, 2048, device="cuda")).sum(),
    )
    assert (wide.peak_bytes - wide.by_category["workspace"]) / wide.parameters == pytest.approx(20.2, rel=0.015)


def test_recomputation_keeps_one_layers_activations():
    def recomputing():
        net = Encoder(8, D)
        recompute(net, "all")
        return net

    plain, saved = predicted(8), predict(recomputing, encoder_step, "t4")
    inputs = 8 * 4 * TOKENS * D
    one_layer = 66 * TOKENS * D
    rest = plain.by_category["weights"] + plain.by_category["optimizer"]
    assert saved.by_category["activations"] < 1.2 * (inputs + one_layer)
    assert saved.peak_bytes - rest < 0.35 * (plain.peak_bytes - rest)
    assert saved.pass_flops == pytest.approx(plain.pass_flops * 4 / 3, rel=0.02)


def test_gradients_accumulate_from_the_second_micro_batch():
    net = nn.Linear(1024, 1024)
    step = lambda net: net(torch.randn(4, 1024, device="cuda")).sum()  # noqa: E731
    one, two = (predict(lambda: nn.Linear(1024, 1024), step, accumulation=n) for n in (1, 2))
    size = sum(4 * p.numel() for p in net.parameters())
    assert two.moments["after forward"] - one.moments["after forward"] == pytest.approx(size, rel=0.01)


def test_plain_attention_costs_what_the_matrix_of_scores_takes():
    def peak(card):
        def step(net):
            q = net(torch.randn(8, 4, 512, 64, device="cuda"))
            return F.scaled_dot_product_attention(q, q, q).sum()

        return predict(lambda: nn.Linear(64, 64), step, card, precision="bf16").peak_bytes

    scores = 2 * 8 * 4 * 512 * 512
    assert peak("t4") - peak("a100-40") > 2 * scores


def test_categories_and_submodules_sum_to_the_peak():
    result = predicted(2, precision="fp16")
    assert sum(result.by_category.values()) == sum(result.by_module.values()) == result.peak_bytes
    assert result.reserved_bytes >= result.peak_bytes
    assert set(result.by_category) <= {"weights", "gradients", "optimizer", "activations", "temporaries", "workspace"}
    assert max(result.by_module, key=result.by_module.get) == "blocks"
    assert "200 MiB are set aside" in " ".join(result.unseen) and "fits" in str(result)


def test_a_loop_that_keeps_its_outputs_is_told_apart():
    def step(net):
        torch.empty(640, 400_000, device="cuda")  # the peak comes in forward, while the last result is still held
        logits = net(torch.randn(640, 256, device="cuda"))
        return logits.logsumexp(1).sum(), logits

    freed, kept = (
        predict(lambda: nn.Linear(256, 50_000), step, optimizer=torch.optim.SGD, keeps_outputs=keeps)
        for keeps in (False, True)
    )
    assert kept.peak_bytes - freed.peak_bytes >= 640 * 50_000 * 4


def test_values_of_the_batch_decide_how_many_positions_a_loss_picks():
    chosen = torch.zeros(64, 128, dtype=torch.bool)
    chosen[:, :13] = True

    def step(mask):
        def inner(net):
            states = torch.randn(64, 128, 256, device="cuda")
            return net(states[mask()]).square().sum()

        return inner

    known = predict(lambda: nn.Linear(256, 4000), step(lambda: chosen.to("cuda")))
    unknown = predict(lambda: nn.Linear(256, 4000), step(lambda: torch.rand(64, 128, device="cuda") < 0.1))
    assert known.peak_bytes < 0.3 * unknown.peak_bytes
    assert not any("upper bound" in sentence for sentence in known.unseen)
    assert any("a mask as index (all 8,192 elements)" in sentence for sentence in unknown.unseen)


def test_values_that_a_mask_picks_stay_known():
    """Seven of eight values, without the largest."""
    chosen = torch.arange(8) != 7

    def step(net):
        picked = torch.arange(0, 80, 10, device="cuda")[chosen.to("cuda")]
        return net(torch.randn(int(picked.max()) + len(picked), 4, device="cuda")).sum()

    result = predict(lambda: nn.Linear(4, 4), step)
    assert not any("value read into Python" in sentence for sentence in result.unseen)
    assert result.pass_flops == 2 * 2 * (60 + 7) * 4 * 4  # forward, and the gradient of the weights


def test_what_a_step_raises_comes_out_and_an_operator_without_shapes_is_named_with_its_line():
    with pytest.raises(RuntimeError, match="must have same reduction dim"):
        predict(lambda: nn.Linear(4, 4), lambda net: net(torch.randn(4, 5, device="cuda")).sum())

    def step(net):
        values = torch.linalg.lstsq(net(torch.randn(4, 4, device="cuda")), torch.randn(4, 1, device="cuda"))
        return values.solution.sum()

    with pytest.raises(NotTraceable, match=r"cannot be traced without values \(.*test_trace.py, line \d+\).*lstsq"):
        predict(lambda: nn.Linear(4, 4), step)


def test_a_loss_that_leaves_autocast_by_its_tensors_device_is_followed():
    def step(leave):
        def inner(net):
            y = net(torch.randn(512, 512, device="cuda"))
            assert torch.is_autocast_enabled(y.device.type) and torch.get_autocast_dtype(y.device.type) is torch.half
            with torch.autocast(y.device.type, enabled=not leave):
                return (y.float() @ y.float().T).sum()

        return inner

    inside, outside = (
        predict(lambda: nn.Linear(512, 512), step(leave), precision="fp16").moments["after forward"]
        for leave in (False, True)
    )
    assert outside != inside  # fp32 operands are kept instead of half ones


def test_nothing_of_the_simulation_stays_behind():
    before = (torch.cuda.is_bf16_supported, torch.get_rng_state())
    predict(lambda: Layer(16), lambda net: net(torch.randn(2, 4, 16, device="cuda")).sum(), precision="fp16")
    assert torch.cuda.is_bf16_supported is before[0] and not torch.is_autocast_enabled("cuda")
    assert torch.ones(1).device.type == "cpu"
    assert torch.equal(torch.get_rng_state(), before[1])


class Tied(nn.Module):
    """An embedding that is also the head, tied as transformers 5.0 does it: not below a default device of meta."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList()
        self.embed, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
        if torch.empty(0).device.type != "meta":
            self.tie_weights()

    def tie_weights(self):
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


class TiedToy(Toy):
    def model(self):
        return Tied()

    def example_batch(self, size, device):
        return {"ids": torch.zeros(size, 8, dtype=torch.long, device=device)}

    def count(self, batch):
        return {"mean": len(batch["ids"])}

    def loss(self, model, batch):
        return {"mean": model(batch["ids"]).sum()}, {}


def test_tied_weights_are_counted_once(toy):
    alone = predict(Tied, lambda net: net(torch.randint(1000, (4, 8), device="cuda")).float().mean(), "t4")
    assert alone.parameters == predict_task(TiedToy(toy()), toy(), find_card("t4"), 4, 1, 1).parameters == 64_000


def test_a_frozen_base_has_neither_gradients_nor_moments_and_takes_half_in_fp16(toy):
    class Adapted(Toy):
        def model(self):
            wide = nn.Linear(1024, 1024)
            return nn.Sequential(nn.Linear(3, 1024), wide.requires_grad_(False), nn.Linear(1024, 1))

    def planned(precision):
        config = toy({"training.frozen_precision": precision})
        return predict_task(Adapted(config), config, find_card("t4"), 2, 1, 1)

    plain, halves = planned(""), planned("fp16")
    frozen, trained = 1024 * 1024, 4 * 1024 + 1024 + 1
    assert plain.parameters == halves.parameters == frozen + 1024 + trained
    # the fp16 copy that autocast makes of an fp32 base is not needed for one in fp16
    assert plain.moments["after load"] - halves.moments["after load"] == 2 * frozen
    assert plain.peak_bytes - halves.peak_bytes == pytest.approx(4 * frozen, rel=0.01)
    for plan in (plain, halves):
        assert 8 * trained <= plan.by_category["optimizer"] < 8 * trained + 10_000
        assert plan.by_category.get("gradients", 0) < 8 * trained + 10_000
