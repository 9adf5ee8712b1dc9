"""The ranker beside its formulas."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tests.workloads.graphmer.conftest import batch_of
from workloads.graphmer.model import HGat, pointed


def test_hgat_equals_its_formula_written_out():
    torch.manual_seed(0)
    hidden = 6
    relations = 3
    rank = 2
    gat = HGat(hidden, relations, rank)
    torch.nn.init.normal_(gat.up)
    leaves = torch.randn(2, 2, hidden)
    roots = torch.randn(2, 5, hidden)
    relation = torch.tensor([[0, 2], [1, 1]])
    span = torch.rand(2, 2, 5) < 0.5
    span[..., 0] = True
    got = gat(leaves, relation, roots, span)
    for b, g in itertools.product(range(2), range(2)):
        r = int(relation[b, g])
        low_rank = gat.down[:, r * rank : (r + 1) * rank] @ gat.up[r * rank : (r + 1) * rank]
        W = torch.eye(hidden) + low_rank.T  # (d, d)
        heads = [j for j in range(5) if span[b, g, j]]
        e = [
            F.leaky_relu(
                gat.attend_leaf[r] @ (W @ leaves[b, g]) + gat.attend_head[r] @ (W @ roots[b, j]),
                0.2,
            )
            for j in heads
        ]
        alpha = torch.stack(e).softmax(0)
        want = leaves[b, g] + sum(a * (W @ roots[b, j]) for a, j in zip(alpha, heads, strict=True))
        assert torch.allclose(got[b, g], want, atol=1e-5)


def test_attention_decays_by_the_papers_formula_with_the_distance_to_the_evidence(shared):
    model = shared.model()
    batch = batch_of(shared, range(12))
    bias = model._bias(batch["roots"], batch["distance"])
    L = batch["roots"].shape[1]
    G = batch["distance"].shape[1]
    for head, p in enumerate(model.reach.tolist()):
        for b, q in itertools.product(range(4), (0, L - 1, L, L + G - 1)):
            for j in range(0, L, 3):
                if q < L:
                    distance = abs(q - j)
                else:
                    distance = int(batch["distance"][b, q - L, j])
                want = math.log(0.6) * float(F.gelu(torch.tensor(distance**0.5 - p)))
                want = want if batch["roots"][b, j] else -1e4
                assert bias[b, head, q, j].item() == pytest.approx(want, abs=1e-3)
    assert (bias[:, :, :L, L:] == -1e4).all()  # roots read no leaf
    of_leaves = bias[:, :, L:, L:]
    assert torch.equal(of_leaves == 0, torch.eye(G, dtype=torch.bool).expand_as(of_leaves))


def test_an_answer_does_not_depend_on_what_else_is_asked_nor_on_padding(shared):
    texts = len(shared.data.samples.windows)
    model = shared.model().eval()
    batch = batch_of(shared, range(texts, texts + 9))  # short: no text
    roots, leaves = model.read(batch)
    assert batch["relation"].shape[1] > 1
    alone = {
        name: value[:, 1:2] if name in ("relation", "condition", "distance") else value
        for name, value in batch.items()
    }
    assert torch.allclose(model.read(alone)[1][:, 0], leaves[:, 1], atol=1e-5)
    longer = {**batch, **{n: F.pad(batch[n], (0, 2)) for n in ("roots", "within")}}
    longer["distance"] = F.pad(batch["distance"], (0, 2), value=9)
    assert torch.allclose(model.read(longer)[0][:, : roots.shape[1]], roots, atol=1e-5)


def test_the_pointer_sums_the_places_of_each_candidates_name():
    torch.manual_seed(0)
    places = torch.randn(2, 3, 5)
    places[0, 0] = -30
    batch = {
        "word": torch.randint(4, (2, 5)), "owner": torch.randint(3, (2, 5)), "is_self": torch.randint(2, (2, 5)),
        "boost": torch.rand(2, 3), "sibling": torch.rand(2, 3, 6),
    }  # fmt: skip
    name = torch.randint(4, (6,))
    owner = torch.randint(3, (6,))
    meant = torch.randn(2, 5, 6)
    got = pointed(places, meant, batch, name, owner)
    for b, g, c in itertools.product(range(2), range(3), range(6)):
        total = 0.0
        for j in range(5):
            if batch["word"][b, j] == name[c]:
                factor = 1 + batch["boost"][b, g] * (batch["owner"][b, j] == owner[c])
                factor = factor + batch["sibling"][b, g, c] * (batch["is_self"][b, j] == 1)
                total += math.exp(places[b, g, j] + meant[b, j, c]) * float(factor)
        assert got[b, g, c].item() == pytest.approx(math.log1p(total), abs=1e-4)


def test_trust_is_learned_as_if_the_own_file_were_unknown_and_likeness_on_top_of_it(shared):
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
    nowhere = {
        **batch,
        "near": batch["near"].index_fill(2, torch.tensor([batch["near"].shape[2] - 1]), 0.0),
    }
    (trusting, _), (without, _) = model(batch), model(nowhere)
    elsewhere = batch["near"][:, None, :, -1].bool().expand_as(trusting)
    assert torch.equal(trusting[~elsewhere], without[~elsewhere])
    assert not torch.allclose(trusting[elsewhere], without[elsewhere])
