"""The largest size that fits, against a search of every size."""

import types

from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.fits.language import largest


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.integers(0, 10**7), st.sampled_from([1, 1.5, 2]), st.sampled_from([1, 8]))
def test_the_largest_size_is_that_of_a_search_of_every_size(limit, power, multiple):
    sizes = []

    def peaks(size):
        sizes.append(size)
        peak = int(7 + size**power)
        return types.SimpleNamespace(fits=peak <= limit, peak_bytes=peak, limit_bytes=limit)

    size, prediction = largest(peaks, 5000, multiple)
    assert size == max((n for n in range(multiple, 5001, multiple) if 7 + int(n**power) <= limit), default=0)
    assert prediction.peak_bytes == int(7 + (size or multiple) ** power) and len(sizes) == len(set(sizes)) <= 24
