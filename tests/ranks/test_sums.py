"""Sums over the ranks: buckets of tensors, counts by name, batch statistics in a chain, and the loss scale."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import ranks
from lib.errors import BadInput
from lib.ranks import sums
from lib.ranks.sums import add_counts, add_up, decays


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([torch.float32, torch.float16]))))
def test_tensors_are_added_once_in_small_buckets_of_one_dtype(kinds):
    tensors = []
    for number, (size, dtype) in enumerate(kinds):
        tensors.append(torch.full((size,), float(number), dtype=dtype))
    buckets = []

    def all_reduce(flat):
        buckets.append(flat.nbytes)
        flat.mul_(2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "BUCKET_BYTES", 16)
        patch.setattr(ranks, "_here", ranks._Place(0, 2))
        patch.setattr(sums.dist, "all_reduce", all_reduce)
        add_up(tensors)
    for number, tensor in enumerate(tensors):
        assert bool((tensor == 2 * number).all())
    sizes = {tensor.nbytes for tensor in tensors}
    assert all(size <= 16 or size in sizes for size in buckets)
    assert [tensor.dtype for tensor in tensors] == [dtype for _, dtype in kinds]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_the_statistics_of_ranks_in_a_chain_are_those_of_one_process(monkeypatch, momentum):
    """Three ranks with two micro-batches each, against a batch norm that sees all six."""
    draw = torch.Generator().manual_seed(0)
    batches = [torch.randn(8, 3, generator=draw) * (n + 1) for n in range(6)]
    alone = torch.nn.BatchNorm1d(3, momentum=momentum)
    alone(batches[0])
    start = {name: value.clone() for name, value in alone.state_dict().items()}
    seen = int(alone.num_batches_tracked)
    names = ("running_mean", "running_var")
    total = {name: torch.zeros(3) for name in names}
    for rank in range(3):
        monkeypatch.setattr(ranks, "_here", ranks._Place(rank, 3))
        mine = torch.nn.BatchNorm1d(3, momentum=momentum)
        mine.load_state_dict(start)
        for batch in batches[2 * rank : 2 * rank + 2]:
            mine(batch)
        decay, whole, share = decays(momentum, 2, seen)
        for name in names:
            total[name] += share * (mine.state_dict()[name] - decay * start[name])
    for batch in batches:
        alone(batch)
    for name in names:
        expected = alone.state_dict()[name]
        torch.testing.assert_close(total[name] + whole * start[name], expected)


def test_counts_keep_their_fraction_and_whole_ones_stay_whole():
    first = {"a": 3, "b": 0.1, "c": torch.tensor(0.5)}
    total = add_counts([first, {"a": 4, "b": 0.2, "c": 1}, {"b": 0.3, "n": np.int64(2)}])
    assert total == {"a": 7, "b": math.fsum([0.1, 0.2, 0.3]), "c": 1.5, "n": 2}
    assert [type(number) for number in total.values()] == [int, float, float, int]


numbers = st.floats(0, 1e12) | st.integers(0, 10**12)
named = st.dictionaries(st.sampled_from("abc"), numbers)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.lists(named, max_size=8), st.integers(0, 8))
def test_counts_have_the_same_sum_on_any_number_of_ranks(counts, cut):
    alone = add_counts(counts)
    with pytest.MonkeyPatch.context() as patch:
        parts = []
        patch.setattr(sums, "gathered", lambda mine: parts.append(mine) or parts)
        add_counts(counts[:cut])
        assert add_counts(counts[cut:]) == alone


@pytest.mark.parametrize("number", [float("nan"), -1, None])
def test_what_is_no_count_is_refused_with_its_term(number):
    with pytest.raises(
        BadInput, match=f"Task.count returned {number} for the loss term 'water'.*0 or more"
    ):
        add_counts([{"land": 3, "water": number}])
