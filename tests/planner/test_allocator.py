"""The simulated allocator against the rules of PyTorch's, worked out by hand."""

import itertools
import random

import pytest

from lib.planner.allocator import MIB, Allocator


@pytest.mark.parametrize(
    "size, allocated, reserved",
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the last small one
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # a rest of 1 MiB or less stays with the block
    ],
)
def test_a_request_takes_the_block_and_segment_of_its_class(size, allocated, reserved):
    allocator = Allocator()
    allocator.allocate(size)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_an_empty_tensor_takes_nothing():
    allocator = Allocator()
    assert allocator.allocate(0) is None
    allocator.release(None)
    assert allocator.reserved == 0


def test_freed_memory_is_used_again_and_stays_reserved():
    allocator = Allocator()
    allocator.release(allocator.allocate(30 * MIB))
    allocator.allocate(30 * MIB)
    assert (allocator.allocated, allocator.reserved, allocator.peak_allocated) == (30 * MIB, 30 * MIB, 30 * MIB)


def test_the_smallest_free_block_that_is_large_enough_is_taken():
    allocator = Allocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.release(large)
    allocator.release(small)
    assert allocator.allocate(28 * MIB).address == small.address


def test_neighbours_are_merged_when_they_are_free():
    allocator = Allocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]  # one segment of 20 MiB
    assert allocator.reserved == 20 * MIB
    for block in (blocks[0], blocks[2], blocks[1], blocks[3]):
        allocator.release(block)
    assert allocator.allocate(9 * MIB) and allocator.allocate(9 * MIB)
    assert allocator.reserved == 20 * MIB


def test_the_cache_is_emptied_before_memory_runs_out():
    allocator = Allocator(capacity=100 * MIB)
    allocator.release(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.reserved == 80 * MIB and not allocator.overflowed


def test_what_does_not_fit_is_noted_and_granted():
    allocator = Allocator(capacity=100 * MIB)
    allocator.allocate(60 * MIB)
    allocator.allocate(60 * MIB)
    assert allocator.overflowed and allocator.peak_allocated == 120 * MIB


def test_fragments_can_overflow_a_card_that_has_the_bytes():
    allocator = Allocator(capacity=60 * MIB)
    blocks = [allocator.allocate(5 * MIB) for _ in range(12)]  # three segments of 20 MiB
    for number, block in enumerate(blocks):
        if number % 4:
            allocator.release(block)
    assert allocator.allocated == 15 * MIB and not allocator.overflowed
    allocator.allocate(30 * MIB)
    assert allocator.overflowed


def test_any_order_of_requests_keeps_the_books():
    draw = random.Random(0)
    allocator, held = Allocator(), []
    for _ in range(3000):
        if held and draw.random() < 0.5:
            allocator.release(held.pop(draw.randrange(len(held))))
        else:
            held.append(allocator.allocate(draw.choice([300, 40_000, 3 * MIB, 30 * MIB]) + draw.randrange(5000)))
        assert allocator.allocated == sum(block.size for block in held)
        spans = sorted((block.address, block.address + block.size) for block in held)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    for block in held:
        allocator.release(block)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved) == (0, 0)
