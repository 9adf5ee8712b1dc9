"""Chooses the samples and seeds of a step by (seed, step, slot) alone: a resumed run never replays earlier steps."""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from lib.config import Config
from lib.errors import BadInput

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # splitmix64's constants: Steele, Lea, Flood, OOPSLA 2014, figure 14
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
# Domains of `mix`, so that the streams of one step never coincide.
ORDER, COLLATE, DROPOUT, EVALUATE, SUBSET, INITIALISE, WEIGHTS, DRAWS, BUCKETS = range(9)


def mix(*values: int) -> int:
    """Hashes integers to 63 bits: the same on every machine and in every version of Python, NumPy and torch."""
    state = _GOLDEN
    for value in values:
        state = ((state ^ (value & _MASK)) + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * _MIX1) & _MASK
        state = ((state ^ (state >> 27)) * _MIX2) & _MASK
        state ^= state >> 31
    return state >> 1  # torch's seeds are signed 64-bit numbers


def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """Returns an epoch's order, (size) int64: a stable argsort of hashed positions (0.13 s for a million)."""
    offset = np.uint64(mix(ORDER, seed, epoch))
    with np.errstate(over="ignore"):
        keys = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + offset
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(_MIX1)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(_MIX2)
        keys ^= keys >> np.uint64(31)
    return np.argsort(keys, kind="stable")


def weighted(seed: int, epoch: int, weights: np.ndarray) -> np.ndarray:
    """Returns an epoch's order, (samples) int64, by weight: `weights` are (samples) float64.

    Systematic resampling (Kitagawa, 1996): a sample of n comes floor or ceil of n * weight / sum times, and which of
    the two follows from one uniform offset of (seed, epoch), so its mean over the epochs is exact.
    """
    bounds = np.cumsum(weights)
    n = len(bounds)
    offset = mix(WEIGHTS, seed, epoch) / 2**63
    points = (np.arange(n) + offset) * (bounds[-1] / n)
    drawn = np.searchsorted(bounds, points, side="right")
    return np.minimum(drawn, n - 1)[permutation(seed, epoch, n)]


def buckets(
    lengths: Sequence[float] | np.ndarray, seed: int, epoch: int, batch: int, pool: int = 50
) -> np.ndarray:
    """Returns an epoch's order, (samples) int64: shuffled, sorted within pools of `pool` batches, these shuffled.

    Batches continue from one epoch to the next: the first and last samples of this one are of any length.
    """
    sizes = np.asarray(lengths)
    shuffled = permutation(seed, epoch, len(sizes))
    first = min(-epoch * len(sizes) % batch, len(sizes))
    count = (len(sizes) - first) // batch
    last = first + count * batch
    middle = shuffled[first:last]
    pools = np.arange(len(middle)) // (pool * batch)
    in_pools = middle[np.lexsort((sizes[middle], pools))]
    batches = in_pools.reshape(count, batch)[permutation(mix(BUCKETS, seed), epoch, count)]
    return np.concatenate([shuffled[:first], batches.ravel(), shuffled[last:]])


def weights_of(dataset: Any, name: str = "weights") -> np.ndarray | None:
    """Returns the attribute `name` of a data set or of the whole of a subset, (samples) float64; None without it."""
    if isinstance(dataset, Subset):
        whole = weights_of(dataset.dataset, name)
        if whole is None:
            return None
        return whole[dataset.indices]
    values = getattr(dataset, name, None)
    if values is None:
        return None
    return np.ascontiguousarray(values, np.float64)


def _by_method(dataset: Any, seed: int, epoch: int) -> np.ndarray:
    """Returns `dataset.order(seed, epoch)`; for a subset the places of its samples."""
    if isinstance(dataset, Subset):
        whole: Any = dataset.dataset
        places = np.full(len(whole), -1)
        places[dataset.indices] = np.arange(len(dataset))
        order = places[_by_method(whole, seed, epoch)]
        return order[order >= 0]
    order = np.asarray(dataset.order(seed, epoch))
    outside = order[(order < 0) | (order >= len(dataset))]
    if len(outside):
        raise BadInput(
            f"{type(dataset).__name__}.order returned the index {outside[0]} in epoch {epoch}, of "
            f"{len(dataset)} samples."
        )
    return order


def _lengths_of(dataset: Any, pool: int) -> np.ndarray:
    lengths = weights_of(dataset, "lengths")
    size = len(dataset)
    if lengths is None or lengths.shape != (size,):
        raise BadInput(
            f"data.buckets is {pool}, and the training data set has no attribute `lengths` with a number for each of "
            f"its {size} samples. Set it, or write 0."
        )
    return lengths


@dataclass(frozen=True)
class Order:
    """Deals the samples of endless epochs to steps and slots. Epochs flow into each other: no batch is short."""

    samples: int  # in an epoch
    seed: int
    effective_batch: int
    slots: int
    make: Callable[[int], np.ndarray] | None = None  # the order of an epoch; None: an even shuffle
    # of the last two epochs
    _made: dict[int, np.ndarray] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of(cls, dataset: Any, config: Config) -> "Order":
        """Returns the order of a run's training samples: shuffled, in buckets, or by the set's weights or `order`.

        Raises BadInput if two of these are set, or one is malformed.
        """
        weights = weights_of(dataset)
        whole = dataset
        while isinstance(whole, Subset):
            whole = whole.dataset
        has_order = callable(getattr(whole, "order", None))
        ways = [has_order, weights is not None, config.data.buckets > 0]
        if sum(ways) > 1:
            raise BadInput(
                "Two of a method `order`, `weights` and data.buckets decide the order of the training samples. "
                "Leave one."
            )
        seed = config.seed
        batch = config.training.effective_batch
        new = partial(cls, seed=seed, effective_batch=batch, slots=config.training.slots)
        if has_order:
            make = partial(_by_method, dataset, seed)
            first = make(0)
            if not len(first) or not np.array_equal(first, make(0)):
                raise BadInput(
                    f"{type(whole).__name__}.order returned no sample, or two orders for the same seed and epoch. "
                    "Draw from what it is given: np.random.default_rng([seed, epoch])."
                )
            return new(len(first), make=make)
        if weights is not None:
            return new(len(dataset), make=partial(weighted, seed, weights=weights))
        if config.data.buckets:
            lengths = _lengths_of(dataset, config.data.buckets)
            pool = config.data.buckets
            return new(len(dataset), make=partial(buckets, lengths, seed, batch=batch, pool=pool))
        return new(len(dataset))

    def epoch(self, step: int) -> float:
        """Returns how often the samples have been seen before a step, to a ten-thousandth."""
        return round(step * self.effective_batch / self.samples, 4)

    def share(self, rank: int, ranks: int) -> range:
        """Returns the slots of a rank: neighbours, the same number for each of `ranks`."""
        each = self.slots // ranks
        return range(rank * each, (rank + 1) * each)

    def indices(self, step: int, slot: int) -> list[int]:
        size = self.effective_batch // self.slots
        number, place = divmod(step * self.effective_batch + slot * size, self.samples)
        indices = self._epoch(number)[place : place + size].tolist()
        while len(indices) < size:  # where epochs meet
            number += 1
            indices += self._epoch(number)[: size - len(indices)].tolist()
        return indices

    def _epoch(self, number: int) -> np.ndarray:
        if number not in self._made:
            for earlier in list(self._made)[:-1]:
                del self._made[earlier]
            if self.make:
                order = self.make(number)
            else:
                order = permutation(self.seed, number, self.samples)
            if len(order) != self.samples:
                raise BadInput(
                    f"The method `order` gives {len(order)} samples in epoch {number}, and {self.samples} in epoch 0. "
                    "Return as many in every epoch."
                )
            self._made[number] = order
        return self._made[number]


# --- draws of a user's code: seeded for each slot, micro-batch and batch of an evaluation, they have no history -------


def seed_draws(seed: int) -> None:
    """Seeds the three generators with different bits: from the same 32, torch and NumPy draw the same numbers."""
    mixed = mix(DRAWS, seed)
    torch.default_generator.manual_seed(mixed & 0xFFFFFFFF)  # its Mersenne twister takes no more
    np.random.seed(mixed >> 31)
    random.seed(seed)


def seed_all(seed: int, device: torch.device) -> None:
    """Seeds the three generators and the device's for a model or a loss, in 15 microseconds."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 150
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    np.random.seed(mix(DRAWS, seed) >> 31)
    random.seed(seed)


@contextlib.contextmanager
def put_back(device: torch.device | None = None) -> Iterator[None]:
    """Restores the three generators and a device's after the block. NumPy takes 200 microseconds: no step does it."""
    generators = [torch.default_generator]
    if device and device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    states = [generator.get_state() for generator in generators]
    of_numpy = np.random.get_state(legacy=False)
    of_python = random.getstate()
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        np.random.set_state(of_numpy)
        random.setstate(of_python)


@contextlib.contextmanager
def seeded_draws(seed: int) -> Iterator[None]:
    with put_back():
        seed_draws(seed)
        yield
