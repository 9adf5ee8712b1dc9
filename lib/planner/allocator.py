"""Simulates PyTorch's CUDA caching allocator, to tell whether a card can hold a sequence of tensors.

Sizes and rules are from c10/cuda/CUDACachingAllocator.cpp with its default settings, for one stream:
requests are rounded to 512 bytes; up to 1 MiB they share segments of 2 MiB, below 10 MiB segments of
20 MiB, and larger ones get a segment rounded to 2 MiB; a free block is taken by best fit, split, and
merged with its neighbours when it is freed.
"""

import bisect
from dataclasses import dataclass, field

MIB = 2**20
ROUNDING = 512
_SMALL = MIB
_MEDIUM = 10 * MIB


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment, linked to its neighbours so that free ones can be merged. Sizes are bytes."""

    size: int
    address: int
    small: bool
    before: "Block | None" = None
    after: "Block | None" = None
    free: bool = True


_Pool = list[tuple[int, int, Block]]  # free blocks, sorted by size and address


@dataclass
class Allocator:
    """The allocator of one card. `capacity`: bytes that may be reserved (None: no limit). All counters are bytes.

    A request that does not fit even after the cache is emptied sets `overflowed` and is granted, so that one pass over
    a training step shows both whether it fits and how much it needs.
    """

    capacity: int | None = None
    allocated: int = 0  # blocks in use; torch.cuda.memory_allocated
    reserved: int = 0  # their segments; torch.cuda.memory_reserved
    peak_allocated: int = 0
    peak_reserved: int = 0
    overflowed: bool = False
    _next_address: int = 0
    _pools: dict[bool, _Pool] = field(default_factory=lambda: {True: [], False: []})

    def allocate(self, size: int) -> Block | None:
        """Takes a block for `size` bytes; returns None for an empty tensor."""
        if size == 0:
            return None
        size = round_up(size, ROUNDING)
        pool = self._pools[size <= _SMALL]
        index = bisect.bisect_left(pool, (size,))  # the best fit
        if index < len(pool):
            block = pool.pop(index)[2]
        else:
            block = self._new_segment(size)
        rest = block.size - size
        if rest > _SMALL or (block.small and rest >= ROUNDING):
            after = Block(rest, block.address + size, block.small, before=block, after=block.after)
            if block.after:
                block.after.before = after
            block.after = after
            block.size = size
            self._put(after)
        block.free = False
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block | None) -> None:
        """Returns a block to its pool, merged with its free neighbours."""
        if block is None:
            return
        self.allocated -= block.size
        block.free = True
        for left, right in ((block.before, block), (block, block.after)):
            if left and right and left.free and right.free:
                self._take(left if right is block else right)
                block.size = left.size + right.size
                block.address = left.address
                block.before = left.before
                block.after = right.after
                if block.before:
                    block.before.after = block
                if block.after:
                    block.after.before = block
        self._put(block)

    def empty_cache(self) -> None:
        """Returns segments without a used block to the driver."""
        for pool in self._pools.values():
            for size, _, block in list(pool):
                if not (block.before or block.after):
                    self._take(block)
                    self.reserved -= size

    def _new_segment(self, size: int) -> Block:
        small = size <= _SMALL
        if small:
            segment = 2 * MIB
        elif size < _MEDIUM:
            segment = 20 * MIB
        else:
            segment = round_up(size, 2 * MIB)
        if self.capacity is not None and self.reserved + segment > self.capacity:
            self.empty_cache()
            self.overflowed |= self.reserved + segment > self.capacity
        self.reserved += segment
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._next_address += segment
        return Block(segment, self._next_address - segment, small)

    def _put(self, block: Block) -> None:
        bisect.insort(self._pools[block.small], (block.size, block.address, block))

    def _take(self, block: Block) -> None:
        pool = self._pools[block.small]
        pool.pop(bisect.bisect_left(pool, (block.size, block.address)))


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
