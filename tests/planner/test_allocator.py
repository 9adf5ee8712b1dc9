"""The simulated allocator against the rules of PyTorch's, worked out by hand."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.planner.allocator import MIB, Allocator


@pytest.mark.parametrize(
    "size, allocated, reserved",
    [
        (1, 512, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the last small one
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # a rest of 1 MiB or less stays with the block
    ],
)
def test_a_request_takes_a_block_and_a_segment_of_its_class(size, allocated, reserved):
    allocator = Allocator()
    assert allocator.allocate(size)
    assert allocator.allocated == allocated
    assert allocator.reserved == reserved


def test_an_empty_tensor_takes_no_block():
    allocator = Allocator()
    assert allocator.allocate(0) is None
    assert allocator.release(None) is None
    assert allocator.reserved == 0


def test_a_request_takes_the_smallest_free_block():
    allocator = Allocator()
    large = allocator.allocate(40 * MIB)
    small = allocator.allocate(30 * MIB)
    allocator.release(large)
    allocator.release(small)
    assert allocator.allocate(28 * MIB).address == small.address
    assert allocator.reserved == 70 * MIB
    assert allocator.peak_allocated == 70 * MIB


def test_free_neighbours_are_merged():
    allocator = Allocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]  # one segment of 20 MiB
    for number in (0, 2, 1, 3):
        allocator.release(blocks[number])
    assert allocator.allocate(9 * MIB)
    assert allocator.allocate(9 * MIB)
    assert allocator.reserved == 20 * MIB


def test_the_cache_is_emptied_before_memory_runs_out_and_overflow_is_granted():
    allocator = Allocator(capacity=100 * MIB)
    allocator.release(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.reserved == 80 * MIB
    assert not allocator.overflowed
    allocator.allocate(60 * MIB)
    assert allocator.overflowed
    assert allocator.peak_allocated == 140 * MIB


# size, whether a held block is released instead, and which
REQUEST = st.tuples(st.integers(0, 40 * MIB), st.booleans(), st.integers(0, 99))


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.lists(REQUEST, max_size=60))
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
        held_in_order = sorted(held, key=lambda block: block.address)
        for first, second in itertools.pairwise(held_in_order):
            assert first.address + first.size <= second.address
    for block in held:
        allocator.release(block)
    allocator.empty_cache()
    assert allocator.allocated == 0
    assert allocator.reserved == 0
