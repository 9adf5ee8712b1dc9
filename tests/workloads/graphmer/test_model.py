"""The ranker beside its formulas."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tests.workloads.graphmer.conftest import batch_of
from workloads.graphmer.model import HGat, pointed
from workloads.graphmer.settings import PAD


def test_hgat_equals_its_formula_written_out():
    torch.manual_seed(0)
    hidden = 6
    rank = 2
    gat = HGat(hidden, 3, rank)
    torch.nn.init.normal_(gat.up)
    leaves = torch.randn(2, 2, hidden)
    roots = torch.randn(2, 5, hidden)
    relation = torch.tensor([[0, 2], [1, 1]])
    span = torch.rand(2, 2, 5) < 0.5
    span[..., 0] = True
    got = gat(leaves, relation, roots, span)
    for b, g in itertools.product(range(2), range(2)):
        r = int(relation[b, g])
        part = slice(r * rank, (r + 1) * rank)
        W = torch.eye(hidden) + (gat.down[:, part] @ gat.up[part]).T  # (d, d)
        mapped = roots[b][span[b, g]] @ W.T  # (heads, d)
        of_leaf = gat.attend_leaf[r] @ (W @ leaves[b, g])
        alpha = F.leaky_relu(of_leaf + mapped @ gat.attend_head[r], 0.2).softmax(0)
        want = leaves[b, g] + alpha @ mapped
        assert torch.allclose(got[b, g], want, atol=1e-5)


def test_attention_decays_by_the_papers_formula_with_the_distance_to_the_evidence(shared):
    model = shared.model()
    batch = batch_of(shared, range(12))
    roots = batch["roots"]
    bias = model._bias(roots, batch["distance"])
    L = roots.shape[1]
    G = batch["distance"].shape[1]
    place = torch.arange(L)
    chain = (place[:, None] - place).abs().expand(len(roots), L, L)
    distance = torch.cat([chain, batch["distance"]], 1)[:, None]  # (B, 1, P, L)
    undimmed = distance.sqrt() - model.reach[:, None, None]
    want = math.log(0.6) * F.gelu(undimmed)
    want = torch.where(roots[:, None, None] == PAD, -1e4, want)
    assert torch.allclose(bias[..., :L], want, atol=1e-3)
    assert (bias[:, :, :L, L:] == -1e4).all()  # roots read no leaf
    of_leaves = bias[:, :, L:, L:]
    assert torch.equal(of_leaves == 0, torch.eye(G, dtype=torch.bool).expand_as(of_leaves))


@pytest.fixture
def short(shared):
    """A model and a batch of samples without text."""
    texts = len(shared.data.samples.windows)
    batch = batch_of(shared, range(texts, texts + 9))
    assert batch["relation"].shape[1] > 1
    return shared.model().eval(), batch


def test_an_answer_does_not_depend_on_other_questions(short):
    model, batch = short
    _, leaves = model.read(batch)
    one = {name: batch[name][:, 1:2] for name in ("relation", "condition", "distance")}
    _, alone = model.read({**batch, **one})
    assert torch.allclose(alone[:, 0], leaves[:, 1], atol=1e-5)


def test_an_answer_does_not_depend_on_padding(short):
    model, batch = short
    roots, _ = model.read(batch)
    longer = {name: F.pad(batch[name], (0, 2)) for name in ("roots", "within")}
    longer["distance"] = F.pad(batch["distance"], (0, 2), value=9)
    padded, _ = model.read({**batch, **longer})
    assert torch.allclose(padded[:, : roots.shape[1]], roots, atol=1e-5)


def test_the_pointer_sums_the_places_of_each_candidates_name():
    torch.manual_seed(0)
    places = torch.randn(2, 3, 5)
    places[0, 0] = -30
    batch = {"word": torch.randint(4, (2, 5)), "owner": torch.randint(3, (2, 5))}
    batch["is_self"] = torch.randint(2, (2, 5))
    batch["boost"] = torch.rand(2, 3)
    batch["sibling"] = torch.rand(2, 3, 6)
    name = torch.randint(4, (6,))
    owner = torch.randint(3, (6,))
    meant = torch.randn(2, 5, 6)
    got = pointed(places, meant, batch, name, owner)
    for b, g, c in itertools.product(range(2), range(3), range(6)):
        total = 0.0
        for j in torch.nonzero(batch["word"][b] == name[c]).flatten():
            factor = 1 + batch["boost"][b, g] * (batch["owner"][b, j] == owner[c])
            factor = factor + batch["sibling"][b, g, c] * (batch["is_self"][b, j] == 1)
            total += math.exp(places[b, g, j] + meant[b, j, c]) * float(factor)
        assert got[b, g, c].item() == pytest.approx(math.log1p(total), abs=1e-4)


def test_trust_does_not_know_the_own_file_and_likeness_is_learned_on_top(shared):
    model = shared.model().eval()
    batch = batch_of(shared, range(12))
    torch.nn.init.normal_(model.trust.weight, std=0.1)
    torch.nn.init.constant_(model.strength, 1.0)
    torch.nn.init.constant_(model.strength_of_meaning, 1.0)
    trusting, alike = model(batch)
    other, _ = model({**batch, "own": batch["own"] + 5})
    assert torch.equal(trusting, other)
    assert batch["own"].max() > 0
    asked = batch["gold"] >= 0
    alike[asked].log_softmax(-1)[:, 0].sum().backward()
    assert model.trust.weight.grad is None
    assert model.query.weight.grad.abs().max() > 0
    assert model.own_file.grad.abs().max() > 0


def test_the_origin_of_an_entity_that_its_file_alone_has_says_nothing(shared):
    """Training would learn by heart where it stands, and asking for another file's would find no such thing."""
    model = shared.model().eval()
    batch = batch_of(shared, range(12))
    torch.nn.init.constant_(model.strength_of_meaning, 5.0)
    torch.nn.init.normal_(model.vector.weight)
    near = batch["near"].clone()
    near[..., -1] = 0
    trusting, _ = model(batch)
    without, _ = model({**batch, "near": near})
    elsewhere = batch["near"][:, None, :, -1].bool().expand_as(trusting)
    assert torch.equal(trusting[~elsewhere], without[~elsewhere])
    assert not torch.allclose(trusting[elsewhere], without[elsewhere])
