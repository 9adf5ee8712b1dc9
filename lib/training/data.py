"""The loaders that bring the samples of a step, and what brings a batch to the device.

A worker has no state: its unit of work is one (step, slot), so the number of workers changes nothing.
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
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from lib import ranks
from lib.config import Data
from lib.errors import TrainingFailed
from lib.task import Batch, Task
from lib.training.order import COLLATE, SUBSET, Order, mix, permutation

_MIB = 2**20


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
        pin_memory=options.pin_memory and torch.cuda.is_available(),
        worker_init_fn=functools.partial(_end_with, os.getpid()),
    )
    slots = iter(loader)
    for step in steps:
        yield step, [next(slots) for _ in mine]


_SHARED = Path("/dev/shm")


def limit_workers(task: Task, slot_size: int, options: Data) -> tuple[Data, str]:
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


def size_of(batch: Batch) -> int:
    """The number of samples in a batch."""
    return len(next(iter(batch.values())))


def micro_batches(batch: Batch, most: int) -> Iterator[Batch]:
    """Slices of at most `most` samples."""
    if size_of(batch) <= most:
        yield batch
        return
    for first in range(0, size_of(batch), most):
        yield {name: value[first : first + most] for name, value in batch.items()}
