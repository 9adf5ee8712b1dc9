"""Random draws of a person's code from the generators that a process has anyway: torch's, NumPy's and Python's.

torchvision, albumentations and most transforms draw from these. Seeded for each slot of each step, and put back, they
have no history: a resumed run sees the samples that it would have seen.
"""

import contextlib
import random
import threading
from collections.abc import Iterator

import numpy as np
import torch

from lib.training.order import DRAWS, mix

_alone = threading.RLock()  # the generators are the process's: of two threads that load one waits


def seed_draws(seed: int) -> None:
    """Seeds the three generators; it takes 15 microseconds.

    Each gets other bits of the seed, because the same 32 give torch and NumPy the same numbers. None of them are the
    bits of the generator that `collate` is handed.
    """
    bits = mix(DRAWS, seed)
    torch.default_generator.manual_seed(bits & 0xFFFFFFFF)  # its Mersenne twister takes no more
    np.random.seed(bits >> 31)
    random.seed(seed)


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Leaves the three generators after the block as they were before it.

    NumPy takes most of its 200 microseconds, so the training process does it once a step and a loader worker never.
    """
    with _alone:
        former = torch.default_generator.get_state(), np.random.get_state(legacy=False), random.getstate()
        try:
            yield
        finally:
            torch.default_generator.set_state(former[0])
            np.random.set_state(former[1])
            random.setstate(former[2])


@contextlib.contextmanager
def seeded_draws(seed: int) -> Iterator[None]:
    """Seeds the three generators for the block, and puts them back after it."""
    with put_back():
        seed_draws(seed)
        yield
