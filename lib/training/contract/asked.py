"""What the checks of a task share: the task, its data, the size of a batch, and a batch as training gets it."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lib.config import Config
from lib.config.batches import micro_batch_of
from lib.errors import BadInput
from lib.machine import memory
from lib.task import Batch, Task, checked_datasets
from lib.training import data, learned
from lib.training.contract.sentences import asking
from lib.training.draws import seeded_draws
from lib.training.order import Order

_SAMPLES = 4  # of a batch: two halves of two


@dataclass
class Asked:
    """A task that is being checked, with its configuration in steps.

    `thorough` says whether data sets and model may be made a second time. What is doubtful and may be meant goes to
    `doubts`.
    """

    task: Task
    config: Config
    thorough: bool = True
    doubts: list[str] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        return type(self.task).__name__

    @property
    def device(self) -> torch.device:
        return memory.device()

    @property
    def size(self) -> int:
        """Samples of a batch."""
        return _SAMPLES

    @property
    def collated(self) -> int:
        """Samples of a batch in the run's evaluations."""
        return self.config.data.evaluation_batch or micro_batch_of(self.config.training)

    @cached_property
    def sets(self) -> dict[str, Any]:
        _ = self.learned  # which a task takes before it is asked for its data sets
        with asking(f"{self.name}.datasets()", "Look at data.dir, and at how the data is read."):
            return checked_datasets(self.task)

    @cached_property
    def learned(self) -> dict[str, Any]:
        """What the task learned from its data, which it has taken back as a run does."""
        with asking(f"{self.name}.learned() or take_learned()"):
            learned.take(self.task, None, self.doubts.append)
            return learned.of(self.task)

    def bare(self, learned: Mapping[str, Any] | None = None) -> Task:
        """Returns the task without its data, as the planner has it, or with what was learned from data."""
        bare = dataless(type(self.task), self.config)
        if learned:
            with asking(f"{self.name}.take_learned()"):
                bare.take_learned(learned)
        return bare

    def indices(self, dataset: Any, batch: int = 0, size: int = 0) -> list[int]:
        """Returns which samples a training batch has, in the order of the run."""
        size = size or self.size
        order = dataclasses.replace(Order.of(dataset, self.config), effective_batch=size, slots=1)
        return order.indices(batch, 0)

    def train_set(self, sets: dict[str, Any]) -> Any:
        return data.subset(sets["train"], self.config.data.subset_ratio, self.config.seed)


@dataclass
class Fetched:
    """The samples of a batch before and after `collate`, and the batch."""

    before: list[Any] | None  # None: these cannot be copied
    after: list[Any]
    batch: Batch


def dataless(cls: type[Task], config: Config) -> Task:
    """Returns a task without data, whose `datasets` refuses. Raises BadInput where it cannot be made."""
    mend = "The planner makes a task where there is no data (source is None). Read it in datasets()."
    with asking(f"{cls.__name__}(config) without data", mend):
        bare = cls(config)

    def refuse() -> dict[str, Any]:
        raise BadInput(
            f"{cls.__name__}.model() or example_batch() asks for datasets(). Both must do without data: the planner "
            "calls them where there is none. Give the sizes that they need as settings (workload:)."
        )

    bare.datasets = refuse  # type: ignore[method-assign]
    return bare


def fetch(asked: Asked, dataset: Any, indices: Sequence[int], seed: int, split: str = "train") -> Fetched:
    """Returns what the trainer makes of these samples in a slot with this seed. Raises BadInput for an error in it."""
    with seeded_draws(seed):
        samples = [fetch_one(asked, dataset, index, split) for index in indices]
        before = _copied(samples)
        with asking(f"{asked.name}.collate()"):
            batch = asked.task.collate(samples, torch.Generator().manual_seed(seed))
    return Fetched(before, samples, batch)


def fetch_one(asked: Asked, dataset: Any, index: int, split: str) -> Any:
    length = f"Indices run from 0 to {len(dataset) - 1}, by its __len__."
    with asking(f"{asked.name}.datasets()[{split!r}][{index}]", length):
        return dataset[index]


def _copied(samples: list[Any]) -> list[Any] | None:
    try:
        return copy.deepcopy(samples)
    except Exception:  # an open file, say
        return None


def alike(one: Any, other: Any) -> bool:
    """Says whether two values are the same to the last bit, whatever they are made of."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same_kind = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
        return same_kind and torch.equal(_bits(one), _bits(other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        return alike(one.tolist(), other.tolist()) if one.dtype.hasobject else one.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    return _equal(one, other)


def _equal(one: Any, other: Any) -> bool:
    """Compares objects by their own `==`, or by their attributes where they have none: an image, a dataclass."""
    try:
        if bool(one == other):
            return True
    except Exception:  # of an array inside
        return alike(vars(one), vars(other)) if hasattr(one, "__dict__") else False
    has_own = type(one).__eq__ is not object.__eq__
    return False if has_own or not hasattr(one, "__dict__") else alike(vars(one), vars(other))


def _bits(value: Tensor) -> Tensor:
    plain = value.detach()
    if not plain.numel() or plain.is_quantized:
        return plain
    # a new one: a single element out of a column counts as contiguous and keeps its stride, which `view` refuses
    return torch.empty(plain.shape, dtype=plain.dtype, device=plain.device).copy_(plain).reshape(-1).view(torch.uint8)
