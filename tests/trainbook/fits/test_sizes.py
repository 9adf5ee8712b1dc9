"""The largest size that fits, against a search of every size and on real traces."""

import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lib.errors import BadInput
from lib.planner import predict
from trainbook.fits.language import largest


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.integers(0, 10**7), st.sampled_from([1, 1.5, 2]), st.sampled_from([1, 8]))
def test_the_largest_size_is_that_of_a_search_of_every_size(limit, power, multiple):
    sizes = []

    def peaks(size):
        sizes.append(size)
        peak = int(7 + size**power)
        return types.SimpleNamespace(fits=peak <= limit, peak_bytes=peak, limit_bytes=limit)

    answer = largest(peaks, most=5000, multiple=multiple)
    assert answer.size == max((n for n in range(multiple, 5001, multiple) if 7 + int(n**power) <= limit), default=0)
    assert len(sizes) == len(set(sizes)) <= 24 and tuple(sizes) == answer.traced


def predicted(size, card="0.5 GiB, capability 7.5"):
    rows = lambda net: net(torch.ones(size, 256, device="cuda")).square().sum()  # noqa: E731
    return predict(lambda: nn.Linear(256, 256), rows, card)


def test_a_model_of_ones_own_gets_its_largest_batch_and_where_nothing_fits_the_smallest_is_said():
    answer = largest(predicted, multiple=1000, most=10**6)
    assert predicted(answer.size).fits and not predicted(answer.size + 1000).fits
    assert len(answer.traced) <= 12 and f"{answer.size:,} is the largest size that fits." in str(answer)
    assert answer.prediction == predicted(answer.size)
    answer = largest(lambda size: predicted(size, "0.215 GiB"), multiple=100_000, most=10**6)
    assert answer.size == 0 and str(answer).startswith("No size fits: 100,000 alone takes 0.")
    for bounds in ({"most": 0}, {"multiple": 0}, {"most": 5, "multiple": 6}, {"most": 1.5}):
        with pytest.raises(BadInput, match="There is no size from multiple"):
            largest(predicted, **bounds)
