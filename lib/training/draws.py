"""Seeds the generators that a user's code draws from: torch's, NumPy's and Python's.

Seeded for each slot, micro-batch and batch of an evaluation they have no history: a resumed run draws the same.
"""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

from lib.training.order import DRAWS, mix


def seed_draws(seed: int) -> None:
    """Seeds the three generators, each with other bits: of the same 32 torch and NumPy draw the same numbers."""
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
    """Puts the three generators back after the block, and a device's. NumPy takes 200 microseconds: no step does it."""
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
