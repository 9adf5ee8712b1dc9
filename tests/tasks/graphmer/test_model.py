"""The encoder beside its formulas."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lib.tasks.graphmer.model import HGat, distances
from tests.tasks.graphmer.conftest import generator


def test_distances_are_shortest_paths(graphmer):
    roots, leaves = 5, 3
    size = roots * (1 + leaves)
    edges = [(i, i + 1) for i in range(roots - 1)]
    edges += [(root, roots + root * leaves + k) for root in range(roots) for k in range(leaves)]
    want = np.full((size, size), np.inf)
    np.fill_diagonal(want, 0)
    for a, b in edges:
        want[a, b] = want[b, a] = 1
    for middle in range(size):  # Floyd and Warshall
        want = np.minimum(want, want[:, middle : middle + 1] + want[middle : middle + 1])
    assert np.array_equal(distances(roots, leaves).numpy(), want)


def test_hgat_equals_its_formula_written_out():
    torch.manual_seed(0)
    hidden, relations, rank = 6, 3, 2
    gat = HGat(hidden, relations, rank)
    leaves, roots = torch.randn(2, 2, 3, hidden), torch.randn(2, 5, hidden)
    relation = torch.tensor([[0, 2], [1, 1]])
    span = torch.rand(2, 2, 5) < 0.5
    span[..., 0] = True
    got = gat(leaves, relation, roots, span)
    for b, g, k in itertools.product(range(2), range(2), range(3)):
        r = int(relation[b, g])
        W = (gat.down[:, r * rank : (r + 1) * rank] @ gat.up[r * rank : (r + 1) * rank]).T  # (d, d)
        heads = [j for j in range(5) if span[b, g, j]]
        e = [
            F.leaky_relu(gat.attend_leaf[r] @ (W @ leaves[b, g, k]) + gat.attend_head[r] @ (W @ roots[b, j]), 0.2)
            for j in heads
        ]
        alpha = torch.stack(e).softmax(0)
        want = leaves[b, g, k] + sum(a * (W @ roots[b, j]) for a, j in zip(alpha, heads, strict=True))
        assert torch.allclose(got[b, g, k], want, atol=1e-5)


def test_attention_decays_by_the_papers_formula(graphmer):
    task = graphmer()
    model = task.model()
    batch = task.collate([task.datasets()["train"][0]], generator())
    ids = torch.cat([batch["roots"], batch["leaves"].flatten(1)], 1)
    bias = model._bias(ids)
    distance = distances(24, 4)[: ids.shape[1], : ids.shape[1]]
    for head, p in enumerate(model.reach.tolist()):
        for j in range(0, ids.shape[1], 7):
            want = math.log(0.6) * float(F.gelu(distance[3, j].sqrt() - p)) + (-1e4 if ids[0, j] == 0 else 0)
            assert bias[0, head, 3, j].item() == pytest.approx(want, abs=1e-3)


def test_padding_and_unused_roots_change_nothing(graphmer):
    task = graphmer()
    model = task.model().eval()
    windows = list(task.datasets()["train"])
    longest = max(windows, key=lambda w: task.data.corpus.first_triple[w + 1] - task.data.corpus.first_triple[w])
    shortest = min(windows, key=lambda w: task.data.corpus.first_triple[w + 1] - task.data.corpus.first_triple[w])
    alone = task.data.collator._stack([task.data.collator._training_chain(shortest, generator(3))])
    both = task.data.collator._stack(
        [task.data.collator._training_chain(w, generator(3)) for w in (shortest, longest)]
    )
    groups = alone["leaves"].shape[1]
    assert groups < both["leaves"].shape[1]
    used = 24 + groups * 4
    assert torch.allclose(model(alone)[0], model(both)[0, :used], atol=1e-5)
