"""Which samples step k sees, as a pure function of (seed, step, slot), and the loaders that bring them.

Nothing here has history: a resumed run computes the samples of its next step and never replays earlier ones, and the
number of loader workers changes nothing.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from lib import ranks
from lib.config import Data
from lib.errors import TrainingFailed
from lib.task import Batch, Task

_MIB = 2**20
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # splitmix64's constants: Steele, Lea, Flood, OOPSLA 2014, figure 14
_MIX1, _MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

# Domains of `mix`, so that the streams of one step never coincide.
ORDER, COLLATE, DROPOUT, EVALUATE, SUBSET, INITIALISE, WEIGHTS = range(7)


def mix(*values: int) -> int:
    """A 63-bit hash of integers: the same on every machine and in every version of Python, NumPy and torch."""
    state = _GOLDEN
    for value in values:
        state = ((state ^ (value & _MASK)) + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * _MIX1) & _MASK
        state = ((state ^ (state >> 27)) * _MIX2) & _MASK
        state ^= state >> 31
    return state >> 1  # torch's seeds are signed 64-bit numbers


@functools.lru_cache(maxsize=2)  # a step touches two epochs at most where they meet
def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """The order of `size` samples in an epoch: a stable argsort of hashed positions (0.13 s for a million)."""
    with np.errstate(over="ignore"):
        keys = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(mix(ORDER, seed, epoch))
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(_MIX1)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(_MIX2)
        keys ^= keys >> np.uint64(31)
    return np.argsort(keys, kind="stable")


@functools.lru_cache(maxsize=2)
def weighted(seed: int, epoch: int, weights: bytes) -> np.ndarray:
    """An epoch's order where a sample comes in proportion to its weight: `weights` are the bytes of float64 values.

    Systematic resampling (Kitagawa, 1996): a sample of n comes floor or ceil of n * weight / sum times, and which of
    the two follows from one uniform offset of (seed, epoch), so its mean over the epochs is exact.
    """
    bounds = np.cumsum(np.frombuffer(weights))
    n = len(bounds)
    offset = mix(WEIGHTS, seed, epoch) / 2**63
    chosen = np.searchsorted(bounds, (np.arange(n) + offset) * (bounds[-1] / n), side="right")
    return np.minimum(chosen, n - 1)[permutation(seed, epoch, n)]


def weights_of(dataset: Any) -> np.ndarray | None:
    """The `weights` that a data set, or what it is a subset of, gives its samples; None for an even draw."""
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

    @property
    def slot_size(self) -> int:
        return self.effective_batch // self.slots

    def share(self, rank: int, ranks: int) -> range:
        """The slots of one of so many ranks: neighbours, the same number for each."""
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


class _SlotKeys(Sampler[tuple[int, int]]):
    def __init__(self, steps: range, slots: range):
        self.steps, self.slots = steps, slots

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((step, slot) for step in self.steps for slot in self.slots)

    def __len__(self) -> int:
        return len(self.steps) * len(self.slots)


class _SlotBatches(Dataset):
    """One item is the collated batch of one (step, slot), so workers carry no state that a resume would need."""

    def __init__(self, task: Task, dataset: Any, order: Order):
        self.task, self.dataset, self.order = task, dataset, order

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        step, slot = key
        samples = [self.dataset[i] for i in self.order.indices(step, slot)]
        generator = torch.Generator().manual_seed(mix(COLLATE, self.order.seed, step, slot))
        return self.task.collate(samples, generator)


def train_batches(
    task: Task, dataset: Any, order: Order, steps: range, options: Data
) -> Iterator[tuple[int, list[Batch]]]:
    """Yields each step of `steps` with the batches of this rank's slots, on the CPU."""
    mine = order.share(ranks.rank(), ranks.world())
    workers = options.num_workers
    loader = DataLoader(
        _SlotBatches(task, dataset, order),
        batch_size=None,
        sampler=_SlotKeys(steps, mine),
        num_workers=workers,
        prefetch_factor=options.prefetch_factor if workers else None,
        persistent_workers=options.persistent_workers and workers > 0,
        pin_memory=options.pin_memory and torch.cuda.is_available(),
        worker_init_fn=functools.partial(_end_with, os.getpid()),
    )
    slots = iter(loader)
    for step in steps:
        yield step, [next(slots) for _ in mine]


_SHARED = Path("/dev/shm")


def fitting(task: Task, slot_size: int, options: Data) -> tuple[Data, str]:
    """The options with as many workers as there are CPUs and shared memory for, and a sentence where that is fewer.

    Workers hand batches over in /dev/shm. Where that is full the system kills one with a bus error, in mid-run.
    """
    if not options.num_workers:
        return options, ""
    cpus = os.process_cpu_count() if hasattr(os, "process_cpu_count") else len(os.sched_getaffinity(0))
    each, why = max(1, cpus // ranks.local_world()), f"{cpus} CPUs serve {ranks.local_world()} process(es)"
    if _SHARED.is_dir():
        batch = task.example_batch(slot_size, torch.device("cpu"))
        held = sum(value.nbytes for value in batch.values()) * options.prefetch_factor  # by one worker
        free = shutil.disk_usage(_SHARED).free
        most = free // max(1, held * ranks.local_world())
        if most < min(each, options.num_workers):
            each = most
            why = (
                f"{_SHARED} has {free / _MIB:,.0f} MiB free, and a worker keeps up to {held / _MIB:,.0f} MiB of "
                "batches in it (a container gets more by --shm-size; a lower data.prefetch_factor needs less)"
            )
    if each >= options.num_workers:
        return options, ""
    said = f"data.num_workers is {options.num_workers}, but {why}: {each} load data. No result changes."
    return dataclasses.replace(options, num_workers=each), said


def _end_with(parent: int, worker: int) -> None:
    ranks.die_with(parent)


@contextlib.contextmanager
def naming_killed_workers(step: Callable[[], int], workers: int) -> Iterator[None]:
    """Reports a loader worker that the system killed as what it is: the host's memory. Raises TrainingFailed.

    torch raises from a signal handler, so at any line of the training process and not only where it waits for data.
    """
    try:
        try:
            yield
        except (ConnectionError, EOFError) as error:
            if _is_lost_batch(error):
                time.sleep(1.0)  # the handler's own error may still be on its way, and must not come up elsewhere
                raise RuntimeError("DataLoader worker (pid unknown) exited unexpectedly") from error
            raise
    except Exception as error:
        said = next((str(each) for each in _contexts(error) if _KILLED_WORKER.search(str(each))), None)
        if said is None:
            raise
        where = "/dev/shm, the memory that workers share, is" if "Bus error" in said else "the machine's RAM was"
        raise TrainingFailed(
            f"At step {step()} the system killed a process that loads data: most likely {where} full. Lower "
            f"data.num_workers (now {workers}; 0 loads in the training process) or data.prefetch_factor, so that fewer "
            "batches are in flight, take a smaller training.effective_batch or more training.micro_batch_slots, or a "
            f"part of the data by data.subset_ratio. The loader said: {said.splitlines()[0]}"
        ) from error


def _contexts(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those it came up in: raised in the middle of a library's own work, one may follow from another."""
    while error is not None:
        yield error
        error = error.__context__


def _is_lost_batch(error: Exception) -> bool:
    """Whether the connection was that to a loader worker, which ended while it still owed half a batch."""
    frames = traceback.extract_tb(error.__traceback__)
    is_loaders = any(Path(frame.filename).match("torch/utils/data/dataloader.py") for frame in frames)
    return is_loaders and "in DataLoader worker process" not in str(error)  # this one the data set itself raised


_KILLED_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)?.*\) (exited unexpectedly|is killed by signal: (Killed|Bus error))"
)


class EvaluationLoader:
    """All samples of a data set in their order, in batches on the device. What `Task.evaluate` iterates over.

    `collate` is called for `batch_size` samples, and what it gives is handed out in slices of at most `most`: memory
    that runs out makes the slices smaller and changes neither padding nor anything that is drawn.
    """

    def __init__(
        self,
        task: Task,
        dataset: Any,
        batch_size: int,
        device: torch.device,
        seed: int = 0,
        on_batch: Callable[[int, int], None] | None = None,
        most: int = 0,
    ):
        self.task, self.dataset, self.batch_size = task, dataset, batch_size
        self.device, self.seed, self.on_batch = device, seed, on_batch
        self.most = min(most or batch_size, batch_size)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole * -(-self.batch_size // self.most) + -(-rest // self.most)

    def __iter__(self) -> Iterator[Batch]:
        done = 0
        for first in range(0, len(self.dataset), self.batch_size):
            samples = [self.dataset[i] for i in range(first, min(first + self.batch_size, len(self.dataset)))]
            generator = torch.Generator().manual_seed(mix(EVALUATE, self.seed, first))
            for part in micro_batches(self.task.collate(samples, generator), self.most):
                yield to_device(part, self.device)
                done += 1
                if self.on_batch:
                    self.on_batch(done, len(self))


STAGES = {"quick": 0.05, "validate": 0.2, "full": 1.0}


def share(ratio: float | str) -> float:
    """The number that `data.subset_ratio` stands for, which may be a stage's name."""
    return STAGES[ratio] if isinstance(ratio, str) else ratio


def subset(dataset: Any, ratio: float | str, seed: int) -> Any:
    """A fixed random share of a data set, at least one sample; the whole where `ratio` is 1."""
    ratio = share(ratio)
    if ratio >= 1:
        return dataset
    keep = max(1, round(len(dataset) * ratio))
    chosen = permutation(mix(SUBSET, seed), 0, len(dataset))[:keep]
    return Subset(dataset, sorted(chosen.tolist()))


def to_device(batch: Batch, device: torch.device) -> Batch:
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches on the device; on a GPU each is copied on a stream of its own while the one before computes."""
    if device.type == "cpu":
        yield from (to_device(batch, device) for batch in batches)
        return
    ahead = None
    for batch in itertools.chain(batches, [None]):
        coming = _sent(batch, device) if batch else None
        if ahead:
            yield _arrived(*ahead)
        ahead = coming


def _sent(batch: Batch, device: torch.device) -> tuple[Batch, torch.cuda.Event | None]:
    """The batch on its way, and what tells that it is there; on `meta` (see lib/planner) it is there at once."""
    if device.type != "cuda":
        return to_device(batch, device), None
    stream = _copy_stream(device)
    with torch.cuda.stream(stream):
        return to_device(batch, device), stream.record_event()


def _arrived(batch: Batch, copied: torch.cuda.Event | None) -> Batch:
    if copied:
        computing = torch.cuda.current_stream()
        computing.wait_event(copied)
        for value in batch.values():
            value.record_stream(computing)  # its memory is not given away while `computing` reads it
    return batch


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def size(batch: Batch) -> int:
    """The number of samples in a batch."""
    return len(next(iter(batch.values())))


def micro_batches(batch: Batch, most: int) -> Iterator[Batch]:
    """Slices of at most `most` samples."""
    if size(batch) <= most:
        yield batch
        return
    for first in range(0, size(batch), most):
        yield {name: value[first : first + most] for name, value in batch.items()}
