"""Random draws of a person's code from the generators that a process has anyway: torch's, NumPy's and Python's.

torchvision, albumentations and most transforms draw from these. Seeded for each slot of each step, they have no
history: a resumed run sees the samples that it would have seen. So it is for each micro-batch of a step and
each batch of an evaluation, where the device's generator is seeded too.
"""

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from lib.training.order import DRAWS, begun, mix, seed_generators

_DRAWS = begun(DRAWS)
alone = threading.RLock()  # the generators are the process's: of two threads that load one waits


def seed_draws(seed: int) -> None:
    """Seeds the three generators; it takes 15 microseconds.

    Each gets other bits of the seed, because the same 32 give torch and NumPy the same numbers. None of them are the
    bits of the generator that `collate` is handed.
    """
    mixed = mix(seed, start=_DRAWS)
    torch.default_generator.manual_seed(mixed & 0xFFFFFFFF)  # its Mersenne twister takes no more
    np.random.seed(mixed >> 31)
    random.seed(seed)


def seed_all(seed: int, device: torch.device) -> None:
    """Seeds the three generators and the device's, for what a model or a loss draws; it takes 15 microseconds."""
    seed_generators(seed, device)
    np.random.seed(mix(seed, start=_DRAWS) >> 31)
    random.seed(seed)


@contextlib.contextmanager
def put_back_all(device: torch.device) -> Iterator[None]:
    """Leaves the three generators and the device's after the block as they were before it.

    Unlike `put_back` it makes no other thread wait, so that the block may load samples in threads of its own.
    """
    former, own = _states(), _of_device(device)
    states = [generator.get_state() for generator in own]
    try:
        yield
    finally:
        _set_states(former)
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)


def _of_device(device: torch.device) -> list[torch.Generator]:
    return [torch.cuda.default_generators[device.index or 0]] if device.type == "cuda" else []


def _states() -> tuple[Any, Any, Any]:
    return torch.default_generator.get_state(), np.random.get_state(legacy=False), random.getstate()


def _set_states(states: tuple[Any, Any, Any]) -> None:
    torch.default_generator.set_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Leaves the three generators after the block as they were before it.

    NumPy takes most of its 200 microseconds, so neither a step nor a loader worker does it: both seed and leave it so.
    """
    with alone:
        former = _states()
        try:
            yield
        finally:
            _set_states(former)


@contextlib.contextmanager
def seeded_draws(seed: int) -> Iterator[None]:
    """Seeds the three generators for the block, and puts them back after it."""
    with put_back():
        seed_draws(seed)
        yield
