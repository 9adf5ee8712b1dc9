"""The simulated allocator against the rules of PyTorch's, worked out by hand."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from lib.planner.allocator import MIB, Allocator


def test_a_request_takes_the_smallest_block_and_segment_of_its_class_and_neighbours_are_merged():
    for size, allocated, reserved in (
        (1, 512, 2 * MIB), (MIB, MIB, 2 * MIB),  # the last small one
        (MIB + 1, MIB + 512, 20 * MIB), (10 * MIB, 10 * MIB, 10 * MIB), (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # a rest of 1 MiB or less stays with the block
    ):  # fmt: skip
        allocator = Allocator()
        assert allocator.allocate(0) is None
        assert allocator.release(None) is None
        assert allocator.allocate(size)
        assert allocator.allocated == allocated
        assert allocator.reserved == reserved
    allocator = Allocator()
    large = allocator.allocate(40 * MIB)
    small = allocator.allocate(30 * MIB)
    allocator.release(large)
    allocator.release(small)
    assert allocator.allocate(28 * MIB).address == small.address
    assert allocator.reserved == (70 * MIB)
    assert allocator.peak_allocated == (70 * MIB)
    allocator = Allocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]  # one segment of 20 MiB
    for number in (0, 2, 1, 3):
        allocator.release(blocks[number])
    assert allocator.allocate(9 * MIB)
    assert allocator.allocate(9 * MIB)
    assert allocator.reserved == 20 * MIB


def test_the_cache_is_emptied_before_memory_runs_out_and_what_does_not_fit_is_granted():
    allocator = Allocator(capacity=100 * MIB)
    allocator.release(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.reserved == 80 * MIB
    assert not allocator.overflowed
    allocator.allocate(60 * MIB)
    assert allocator.overflowed
    assert allocator.peak_allocated == 140 * MIB


@settings(derandomize=True, max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40 * MIB), st.booleans(), st.integers(0, 99)), max_size=60)
)
def test_any_order_of_requests_keeps_the_books(requests):
    allocator = Allocator()
    held = []
    for size, is_release, place in requests:
        if held and is_release:
            allocator.release(held.pop(place % len(held)))
        elif block := allocator.allocate(size):
            assert block.size >= size
            assert block.size % 512 == block.address % 512 == 0
            held.append(block)
        assert allocator.allocated == sum(block.size for block in held) <= allocator.reserved
        spans = sorted((block.address, block.address + block.size) for block in held)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    for block in held:
        allocator.release(block)
    allocator.empty_cache()
    assert allocator.allocated == 0
    assert allocator.reserved == 0
