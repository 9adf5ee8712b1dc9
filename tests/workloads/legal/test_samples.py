"""Inputs of the encoder, and the padding of their batches."""

import numpy as np
import pytest

from lib.training.order import buckets
from workloads.legal.samples import input_of, padding

CLS, SEP = 1, 2


def test_a_sentence_that_is_too_long_keeps_its_beginning_and_its_end():
    assert input_of([10, 11], 8, CLS, SEP) == [CLS, 10, 11, SEP] and input_of([], 8, CLS, SEP) == [CLS, SEP]
    long = input_of(list(range(100, 20_100)), 12, CLS, SEP)
    assert long == [CLS, 100, 101, 102, 103, 104, 105, 106, 20_097, 20_098, 20_099, SEP]


def test_buckets_of_fifty_batches_leave_under_a_tenth_of_padding():
    """Lengths as those of the sample corpus: median 29, 5 % above 85."""
    assert padding(np.array([2, 4, 3, 3, 6]), 2) == pytest.approx(1 - 18 / 20) and padding(np.full(8, 5), 3) == 0
    lengths = np.clip(np.random.default_rng(0).lognormal(3.37, 0.65, 6000), 3, 256).astype(int)
    assert padding(lengths[buckets(lengths, 0, 0, 32, 50)], 32) < 0.1 < padding(lengths, 32)
