"""Simulates PyTorch's CUDA caching allocator: what a sequence of tensors reserves, and whether a card can hold it.

Sizes and rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings, for one stream: requests are
rounded to 512 bytes; up to 1 MiB they share segments of 2 MiB, below 10 MiB segments of 20 MiB, and larger ones get a
segment rounded to 2 MiB; a free block is taken by best fit, split, and merged with its neighbours when it is freed.
"""

import bisect
from dataclasses import dataclass, field

MIB = 2**20
ROUNDING = 512
_SMALL = MIB
_SMALL_SEGMENT = 2 * MIB
_MEDIUM = 10 * MIB
_MEDIUM_SEGMENT = 20 * MIB
_LARGE_ROUNDING = 2 * MIB


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment, linked to its neighbours so that free ones can be merged. Sizes are bytes."""

    size: int
    address: int
    small: bool
    requested: int = 0
    before: "Block | None" = None
    after: "Block | None" = None
    free: bool = True

    @property
    def whole(self) -> bool:
        """Whether the block is its whole segment."""
        return self.before is None and self.after is None


@dataclass
class Allocator:
    """The allocator of one card. `capacity`: bytes that may be reserved (None: no limit). All counters are bytes.

    A request that does not fit even after the cache is emptied sets `overflowed` and is granted, so that one pass over
    a training step shows both whether it fits and how much it needs.
    """

    capacity: int | None = None
    requested: int = 0  # what tensors hold
    allocated: int = 0  # the blocks that they stand in; torch.cuda.memory_allocated
    reserved: int = 0  # the segments that these were cut from; torch.cuda.memory_reserved
    peak_requested: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    overflowed: bool = False
    _next_address: int = 0
    _pools: dict[bool, list[tuple[int, int, Block]]] = field(default_factory=lambda: {True: [], False: []})

    def allocate(self, size: int) -> Block | None:
        """Takes a block for `size` bytes; None for an empty tensor, which takes no memory."""
        if size == 0:
            return None
        block = self._best_fit(rounded(size)) or self._new_segment(rounded(size))
        self._split(block, rounded(size))
        block.free, block.requested = False, size
        self.requested += size
        self.peak_requested = max(self.peak_requested, self.requested)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block | None) -> None:
        """Returns a block to its pool, merged with its free neighbours."""
        if block is None:
            return
        self.allocated -= block.size
        self.requested -= block.requested
        block.free = True
        if block.before and block.before.free:
            self._take(block.before)
            block = _merged(block.before, block)
        if block.after and block.after.free:
            self._take(block.after)
            block = _merged(block, block.after)
        self._put(block)

    def empty_cache(self) -> None:
        """Returns free segments to the driver."""
        for small, pool in self._pools.items():
            self.reserved -= sum(size for size, _, block in pool if block.whole)
            self._pools[small] = [entry for entry in pool if not entry[2].whole]

    def _best_fit(self, size: int) -> Block | None:
        pool = self._pools[size <= _SMALL]
        index = bisect.bisect_left(pool, size, key=lambda entry: entry[0])
        return pool.pop(index)[2] if index < len(pool) else None

    def _new_segment(self, size: int) -> Block:
        if size <= _SMALL:
            segment = _SMALL_SEGMENT
        else:
            segment = _MEDIUM_SEGMENT if size < _MEDIUM else -(-size // _LARGE_ROUNDING) * _LARGE_ROUNDING
        if self.capacity is not None and self.reserved + segment > self.capacity:
            self.empty_cache()
            self.overflowed |= self.reserved + segment > self.capacity
        self.reserved += segment
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        block = Block(segment, self._next_address, size <= _SMALL)
        self._next_address += segment
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = block.size - size
        if rest < ROUNDING or (not block.small and rest <= _SMALL):
            return
        after = Block(rest, block.address + size, block.small, before=block, after=block.after)
        if block.after:
            block.after.before = after
        block.after, block.size = after, size
        self._put(after)

    def _put(self, block: Block) -> None:
        bisect.insort(self._pools[block.small], (block.size, block.address, block), key=lambda entry: entry[:2])

    def _take(self, block: Block) -> None:
        pool = self._pools[block.small]
        pool.pop(bisect.bisect_left(pool, (block.size, block.address), key=lambda entry: entry[:2]))


def rounded(size: int) -> int:
    """Returns the bytes that a request of `size` takes of its segment."""
    return -(-size // ROUNDING) * ROUNDING


def _merged(left: Block, right: Block) -> Block:
    left.size += right.size
    left.after = right.after
    if right.after:
        right.after.before = left
    return left
