"""The loss in chunks of positions against whole logits: value, gradients, scores, and what a plan counts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from lib.planner import predict
from tests.trainbook.supervised.test_supervised import Loader, batch_of
from trainbook import IGNORED, Supervised
from trainbook.supervised import chunks

D = 8
WORDS = 50


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Embedding(6, D), nn.Linear(D, 6)

    def forward(self, ids):
        return self.head(self.body(ids))


@settings(derandomize=True, max_examples=15, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 400),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
    st.booleans(),
)
def test_chunks_give_the_value_and_the_gradients_of_whole_logits(
    size, length, share, is_module, weighed
):
    torch.manual_seed(size + length)
    head = nn.Linear(D, WORDS, bias=is_module)
    hidden = torch.randn(size, length, D, requires_grad=True)
    labels = torch.where(
        torch.rand(size, length) < share, torch.randint(WORDS, (size, length)), IGNORED
    )
    weights = torch.rand(WORDS) if weighed else None
    parameters = [hidden, *head.parameters()]
    loss = chunks.loss(hidden, head if is_module else head.weight, labels, weights)
    whole = F.cross_entropy(head(hidden).flatten(0, 1), labels.flatten(), weights, reduction="sum")
    assert loss.item() == pytest.approx(whole.item(), rel=1e-6)
    for mine, theirs in zip(
        *(torch.autograd.grad(value, parameters) for value in (loss, whole)), strict=True
    ):
        assert float((mine - theirs).abs().max()) <= 1e-6 * float(theirs.abs().max())
    with torch.no_grad():
        assert torch.equal(chunks.guesses(hidden, head, labels)[labels != IGNORED],
                           head(hidden).argmax(-1)[labels != IGNORED])  # fmt: skip


def test_a_head_is_trained_under_autocast_too():
    torch.manual_seed(0)
    head = nn.Linear(D, WORDS)
    hidden = torch.randn(2, 300, D)
    labels = torch.randint(WORDS, (2, 300))
    grads = []
    for chunked in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            assert chunks.width(hidden, head) == WORDS
            whole = F.cross_entropy(
                head(hidden).float().flatten(0, 1), labels.flatten(), reduction="sum"
            )
            loss = chunks.loss(hidden, head, labels) if chunked else whole
        grads.append(torch.autograd.grad(loss, [*head.parameters()]))
    for mine, theirs in zip(*grads, strict=True):
        assert float((mine - theirs).abs().max()) <= 0.02 * float(theirs.abs().max())


def test_a_task_may_return_a_pair_and_is_trained_and_scored_as_before(task, monkeypatch):
    following = task("Following")
    monkeypatch.setattr(type(following), "metrics", ("accuracy", "macro_f1", "top_3_accuracy"))
    model = Causal()
    batch = batch_of(following)
    losses = []
    scores = []
    for pair in (False, True):
        if pair:
            outputs = lambda self, model, batch: (model.body(batch["ids"]), model.head)  # noqa: E731
            monkeypatch.setattr(type(following), "outputs", outputs)
        each = task("Following")
        losses.append(each.loss(model, batch)[0]["loss"])
        scores.append(each.evaluate(model, Loader(each, "test")))
        assert each._width == 6
        assert each.baseline()["accuracy"] > 0
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
    assert scores[1] == pytest.approx(scores[0], rel=1e-6)
    grads = [torch.autograd.grad(loss, [*model.parameters()]) for loss in losses]
    assert all(torch.allclose(*pair, rtol=1e-5, atol=1e-6) for pair in zip(*grads, strict=True))


class Long(Supervised):
    kind = "next_tokens"


def test_a_plan_counts_a_chunk_and_not_whole_logits():
    """8 x 512 positions over 50,000 words: whole logits are 391 MiB in fp16 and twice that in fp32."""
    words = 50_000

    def ids():
        return torch.zeros(8, 512, dtype=torch.long, device="cuda")

    peaks = {}
    for name in ("whole", "pair"):

        def step(net, name=name):
            hidden = net[0](ids())
            if name == "whole":
                outputs = net[1](hidden)
            else:
                outputs = (hidden, net[1])
            return Long.summed_loss(Long.__new__(Long), outputs, ids())

        made = predict(
            lambda: nn.Sequential(nn.Embedding(10, 64), nn.Linear(64, words)),
            step,
            precision="fp16",
        )
        peaks[name] = made.peak_bytes - made.moments["after load"]
    logits = 8 * 512 * words
    states = 3 * 4 * 64 * words
    assert peaks["whole"] > 10 * logits
    assert peaks["pair"] < states + 20 * 256 * words + 0.05 * logits
