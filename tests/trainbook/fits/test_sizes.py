"""The largest size that fits, against a search of every size."""

import types

from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.fits.language import largest


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.integers(0, 10**7), st.sampled_from([1, 1.5, 2]), st.sampled_from([1, 8]), st.integers(0, 6000))
def test_the_largest_size_is_that_of_a_search_of_every_size(limit, power, multiple, start):
    sizes = []

    def peak(size):
        return int(1000 * (7 + size**power))

    def predicted(size):
        sizes.append(size)
        moments = {"after load": 7000}
        return types.SimpleNamespace(
            fits=peak(size) <= limit, peak_bytes=peak(size), limit_bytes=limit, moments=moments
        )

    size = largest(predicted, 5000, multiple, start)
    assert size == max((n for n in range(multiple, 5001, multiple) if peak(n) <= limit), default=0)
    assert len(sizes) == len(set(sizes)) <= 14
