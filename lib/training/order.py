"""Which samples step k sees, as pure functions of (seed, step, slot).

Nothing here has history: a resumed run computes the samples of its next step and never replays earlier ones.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from lib.config import Config
from lib.config.batches import slots_of
from lib.errors import BadInput

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # splitmix64's constants: Steele, Lea, Flood, OOPSLA 2014, figure 14
_MIX1, _MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

# Domains of `mix`, so that the streams of one step never coincide.
ORDER, COLLATE, DROPOUT, EVALUATE, SUBSET, INITIALISE, WEIGHTS, DRAWS, BUCKETS = range(9)


def mix(*values: int, start: int = _GOLDEN) -> int:
    """Hashes integers to 63 bits: the same on every machine and in every version of Python, NumPy and torch."""
    return _state(start, values) >> 1  # torch's seeds are signed 64-bit numbers


@functools.lru_cache
def begun(*values: int) -> int:
    """Returns a `start` of `mix` that has these values in it: those of all steps are hashed once."""
    return _state(_GOLDEN, values)


def _state(state: int, values: Sequence[int]) -> int:
    for value in values:
        state = ((state ^ (value & _MASK)) + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * _MIX1) & _MASK
        state = ((state ^ (state >> 27)) * _MIX2) & _MASK
        state ^= state >> 31
    return state


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds torch's default generator, and the device's, in a microsecond; `torch.manual_seed` takes 150."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


@functools.lru_cache(maxsize=2)  # a step touches two epochs at most where they meet
def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """Returns an epoch's order, (size) int64: a stable argsort of hashed positions (0.13 s for a million)."""
    with np.errstate(over="ignore"):
        keys = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(mix(ORDER, seed, epoch))
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(_MIX1)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(_MIX2)
        keys ^= keys >> np.uint64(31)
    return np.argsort(keys, kind="stable")


@functools.lru_cache(maxsize=2)
def weighted(seed: int, epoch: int, weights: bytes) -> np.ndarray:
    """Returns an epoch's order, (samples) int64, by weight: `weights` are the bytes of (samples) float64.

    Systematic resampling (Kitagawa, 1996): a sample of n comes floor or ceil of n * weight / sum times, and which of
    the two follows from one uniform offset of (seed, epoch), so its mean over the epochs is exact.
    """
    bounds = np.cumsum(np.frombuffer(weights))
    n = len(bounds)
    offset = mix(WEIGHTS, seed, epoch) / 2**63
    chosen = np.searchsorted(bounds, (np.arange(n) + offset) * (bounds[-1] / n), side="right")
    return np.minimum(chosen, n - 1)[permutation(seed, epoch, n)]


def buckets(lengths: Sequence[float], seed: int, epoch: int, batch: int, pool: int = 50) -> np.ndarray:
    """Returns an epoch's order, (samples) int64, in which the samples of a batch are of nearly the same length.

    They are shuffled, sorted within pools of `pool` batches, and these batches shuffled. Batches go on from one epoch
    to the next: the first samples of this one, and the last, complete batches that the epochs beside it have begun, and
    are of any length.
    """
    sizes = np.asarray(lengths)
    shuffled = permutation(seed, epoch, len(sizes))
    first = min(-epoch * len(sizes) % batch, len(sizes))
    count = (len(sizes) - first) // batch
    last = first + count * batch
    middle = shuffled[first:last]
    in_pools = middle[np.lexsort((sizes[middle], np.arange(len(middle)) // (pool * batch)))]
    batches = in_pools.reshape(count, batch)[permutation(mix(BUCKETS, seed), epoch, count)]
    return np.concatenate([shuffled[:first], batches.ravel(), shuffled[last:]])


def weights_of(dataset: Any) -> np.ndarray | None:
    """Returns the `weights` of a data set, or of what it is a subset of: (samples) float64; None for an even draw."""
    return _numbers(dataset, "weights")


def _numbers(dataset: Any, name: str) -> np.ndarray | None:
    """Returns an attribute of a data set, or of what it is a subset of, with a number for each sample."""
    if isinstance(dataset, Subset):
        whole = _numbers(dataset.dataset, name)
        return None if whole is None else whole[dataset.indices]
    given = getattr(dataset, name, None)
    return None if given is None else np.ascontiguousarray(given, np.float64)


class _Kept:
    """An order whose last two epochs are kept: a step touches two epochs at most where they meet."""

    def __init__(self) -> None:
        self._kept: dict[int, np.ndarray] = {}

    def epoch(self, number: int) -> np.ndarray:
        if number not in self._kept:
            newest = list(self._kept.items())[-1:]
            self._kept = {**dict(newest), number: self.made(number)}
        return self._kept[number]

    def made(self, number: int) -> np.ndarray:
        raise NotImplementedError


class _ByLength(_Kept):
    """Epochs of samples in buckets by their length."""

    def __init__(self, dataset: Any, config: Config):
        super().__init__()
        lengths = _numbers(dataset, "lengths")
        if lengths is None or lengths.shape != (len(dataset),):
            has = "none" if lengths is None else f"of shape {lengths.shape}"
            raise BadInput(
                f"data.buckets is {config.data.buckets}, and the training data set has no attribute `lengths` with a "
                f"number for each of its {len(dataset)} samples ({has}). Set it, or write 0."
            )
        self.lengths, self.config = lengths, config

    def made(self, number: int) -> np.ndarray:
        batch = self.config.training.effective_batch
        return buckets(self.lengths, self.config.seed, number, batch, self.config.data.buckets)


class _Own(_Kept):
    """Epochs as a data set's method `order(seed, epoch)` gives them; of a subset those samples that are in it."""

    def __init__(self, dataset: Any, seed: int):
        super().__init__()
        self.seed, self.size, self.length = seed, len(dataset), 0
        self.places: np.ndarray | None = None  # of the whole data set's samples in the subset; -1: not in it
        while isinstance(dataset, Subset):
            chosen = np.asarray(dataset.indices)
            places = np.full(len(dataset.dataset), -1)
            places[chosen] = np.arange(len(chosen)) if self.places is None else self.places
            self.places, dataset = places, dataset.dataset
        self.dataset, self.name = dataset, f"{type(dataset).__name__}.order"
        first = self.epoch(0)
        self.length = len(first)
        if not np.array_equal(first, self.made(0)):
            raise BadInput(
                f"{self.name} returned two orders for the same seed and epoch, so a resumed run would see other "
                "samples. Draw from what it is given, for example with np.random.default_rng([seed, epoch])."
            )

    def made(self, number: int) -> np.ndarray:
        order = np.asarray(self.dataset.order(self.seed, number))
        size = len(self.dataset)
        if order.ndim != 1 or order.dtype.kind not in "iu":
            raise BadInput(f"{self.name} returned {order.dtype} of shape {order.shape}. Return a row of whole numbers.")
        if len(order) and not (order.min() >= 0 and order.max() < size):
            wrong = order[(order < 0) | (order >= size)][0]
            raise BadInput(f"{self.name} returned the index {wrong} in epoch {number}, and there are {size} samples.")
        if self.places is not None:
            order = self.places[order]
            order = order[order >= 0]
        if not len(order) or len(order) != (self.length or len(order)):
            before = f", and {self.length} in epoch 0" if self.length else ""
            of = " of the subset's" if self.places is not None else ""
            raise BadInput(
                f"{self.name} gives {len(order)}{of} samples in epoch {number}{before}. Return as many in every epoch, "
                "and one at least: where a step stands in its epoch follows from that."
            )
        return order


def _has_order(dataset: Any) -> bool:
    return _has_order(dataset.dataset) if isinstance(dataset, Subset) else callable(getattr(dataset, "order", None))


def _epochs(dataset: Any, config: Config) -> _ByLength | _Own | None:
    """Returns what decides the order of a training data set's epochs beside weights; None for an even shuffle."""
    weights, own = weights_of(dataset) is not None, _has_order(dataset)
    given = {"a method `order`": own, "`weights`": weights, "data.buckets": bool(config.data.buckets)}
    if len(several := [name for name, is_given in given.items() if is_given]) > 1:
        raise BadInput(
            f"The training samples have {' and '.join(several)}, and each alone decides their order. Leave one; a "
            "method `order` of the data set can do the work of both, with lib.training.order.buckets."
        )
    if config.data.buckets:
        return _ByLength(dataset, config)
    return _Own(dataset, config.seed) if own else None


@dataclass(frozen=True)
class Order:
    """Deals the samples of endless epochs to steps and slots. Epochs flow into each other: no batch is short."""

    samples: int  # of an epoch
    seed: int
    effective_batch: int
    slots: int
    weights: np.ndarray | None = dataclasses.field(default=None, compare=False)  # (samples) how often each one comes
    epochs: _ByLength | _Own | None = dataclasses.field(default=None, compare=False)  # other orders than a shuffle

    @classmethod
    def of(cls, dataset: Any, config: Config) -> "Order":
        """Returns the order of a run's training samples: shuffled, in buckets, or by the data set's weights or `order`.

        Raises BadInput where these contradict each other.
        """
        training, epochs = config.training, _epochs(dataset, config)
        size = epochs.length if isinstance(epochs, _Own) else len(dataset)
        return cls(size, config.seed, training.effective_batch, slots_of(training), weights_of(dataset), epochs)

    @property
    def left_out(self) -> str:
        """Says how many samples the first epoch of a data set's own order lacks; empty where it has them all."""
        if not isinstance(self.epochs, _Own):
            return ""
        lacking = self.epochs.size - len(np.unique(self.epochs.epoch(0)))
        if not lacking:
            return ""
        return (
            f"{self.epochs.name} leaves out {lacking:,} of {self.epochs.size:,} training samples in the first epoch, "
            f"which has {self.samples:,} places."
        )

    @property
    def slot_size(self) -> int:
        return self.effective_batch // self.slots

    def epoch(self, step: int) -> float:
        """Returns how often the samples have been seen before a step, to a ten-thousandth."""
        return round(step * self.effective_batch / self.samples, 4)

    def share(self, rank: int, ranks: int) -> range:
        """Returns the slots of one of so many ranks: neighbours, the same number for each."""
        each = self.slots // ranks
        return range(rank * each, (rank + 1) * each)

    def indices(self, step: int, slot: int) -> list[int]:
        first = step * self.effective_batch + slot * self.slot_size
        number, place = divmod(first, self.samples)
        if place + self.slot_size <= self.samples:  # the usual case, in a tenth of the time
            return self._epoch(number)[place : place + self.slot_size].tolist()
        positions = range(first, first + self.slot_size)
        epochs = {number: self._epoch(number) for number in {p // self.samples for p in positions}}
        return [int(epochs[p // self.samples][p % self.samples]) for p in positions]

    def _epoch(self, number: int) -> np.ndarray:
        if self.epochs:
            return self.epochs.epoch(number)
        if self.weights is None:
            return permutation(self.seed, number, self.samples)
        return weighted(self.seed, number, self.weights.tobytes())
