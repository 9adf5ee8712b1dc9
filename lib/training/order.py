"""Which samples step k sees, as pure functions of (seed, step, slot).

Nothing here has history: a resumed run computes the samples of its next step and never replays earlier ones.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from lib.config import Config

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # splitmix64's constants: Steele, Lea, Flood, OOPSLA 2014, figure 14
_MIX1, _MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

# Domains of `mix`, so that the streams of one step never coincide.
ORDER, COLLATE, DROPOUT, EVALUATE, SUBSET, INITIALISE, WEIGHTS, DRAWS = range(8)


def mix(*values: int) -> int:
    """Hashes integers to 63 bits: the same on every machine and in every version of Python, NumPy and torch."""
    state = _GOLDEN
    for value in values:
        state = ((state ^ (value & _MASK)) + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * _MIX1) & _MASK
        state = ((state ^ (state >> 27)) * _MIX2) & _MASK
        state ^= state >> 31
    return state >> 1  # torch's seeds are signed 64-bit numbers


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


def weights_of(dataset: Any) -> np.ndarray | None:
    """Returns the `weights` of a data set, or of what it is a subset of: (samples) float64; None for an even draw."""
    if isinstance(dataset, Subset):
        whole = weights_of(dataset.dataset)
        return None if whole is None else whole[dataset.indices]
    given = getattr(dataset, "weights", None)
    return None if given is None else np.ascontiguousarray(given, np.float64)


@dataclass(frozen=True)
class Order:
    """Deals the samples of endless epochs to steps and slots. Epochs flow into each other: no batch is short."""

    samples: int
    seed: int
    effective_batch: int
    slots: int
    weights: np.ndarray | None = dataclasses.field(default=None, compare=False)  # (samples) how often each one comes

    @classmethod
    def of(cls, dataset: Any, config: Config) -> "Order":
        """Returns the order of a run's training samples, by the data set's `weights` where it has some."""
        training = config.training
        slots = training.micro_batch_slots
        return cls(len(dataset), config.seed, training.effective_batch, slots, weights_of(dataset))

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
        positions = range(first, first + self.slot_size)
        epochs = {number: self._epoch(number) for number in {p // self.samples for p in positions}}
        return [int(epochs[p // self.samples][p % self.samples]) for p in positions]

    def _epoch(self, number: int) -> np.ndarray:
        if self.weights is None:
            return permutation(self.seed, number, self.samples)
        return weighted(self.seed, number, self.weights.tobytes())
