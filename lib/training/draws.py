"""Random draws of a user's code from the generators that a process has anyway: torch's, NumPy's and Python's.

torchvision, albumentations and most transforms draw from these. Seeded for each slot of each step, they have no
history: a resumed run sees the samples that it would have seen. So it is for each micro-batch of a step and
each batch of an evaluation, where the device's generator is seeded too.
"""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

from lib.training.order import DRAWS, mix


def seed_draws(seed: int) -> None:
    """Seeds the three generators; it takes 15 microseconds.

    Each gets other bits of the seed, because the same 32 give torch and NumPy the same numbers. None of them are the
    bits of the generator that `collate` is handed.
    """
    mixed = mix(DRAWS, seed)
    torch.default_generator.manual_seed(mixed & 0xFFFFFFFF)  # its Mersenne twister takes no more
    np.random.seed(mixed >> 31)
    random.seed(seed)


def seed_all(seed: int, device: torch.device) -> None:
    """Seeds the three generators and the device's, for what a model or a loss draws; it takes 15 microseconds."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 150
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    np.random.seed(mix(DRAWS, seed) >> 31)
    random.seed(seed)


@contextlib.contextmanager
def put_back(device: torch.device | None = None) -> Iterator[None]:
    """Leaves the three generators, and with a `device` its own, after the block as they were before it.

    NumPy takes most of its 200 microseconds, so neither a step nor a loader worker does it: both seed and leave it so.
    """
    generators = [torch.default_generator]
    if device and device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    states = [generator.get_state() for generator in generators]
    of_numpy, of_python = np.random.get_state(legacy=False), random.getstate()
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        np.random.set_state(of_numpy)
        random.setstate(of_python)


@contextlib.contextmanager
def seeded_draws(seed: int) -> Iterator[None]:
    """Seeds the three generators for the block, and puts them back after it."""
    with put_back():
        seed_draws(seed)
        yield
