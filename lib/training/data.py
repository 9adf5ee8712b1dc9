"""The loaders that bring the samples of a step, and what brings a batch to the device.

A worker has no state: its unit of work is one (step, slot), so the number of workers changes nothing.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from lib import ranks
from lib.config import Data
from lib.errors import BadInput, TrainingFailed
from lib.machine import hardware
from lib.task import Batch, Task
from lib.training import workers
from lib.training.draws import put_back, seed_draws
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
    """A data set whose items are the collated batches of (step, slot): a worker has no state to resume."""

    def __init__(self, task: Task, dataset: Any, order: Order):
        self.task, self.dataset, self.order = task, dataset, order

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        step, slot = key
        seed = mix(COLLATE, self.order.seed, step, slot)
        seed_draws(seed)
        samples = [self.dataset[i] for i in self.order.indices(step, slot)]
        return self.task.collate(samples, torch.Generator().manual_seed(seed))


def train_batches(
    task: Task, dataset: Any, order: Order, steps: range, options: Data
) -> Iterator[tuple[int, list[Batch]]]:
    """Yields each step of `steps` with the batches of this rank's slots, on the CPU.

    What data set and `collate` draw from the generators of torch, NumPy and Python follows from (seed, step, slot) too.
    To the caller these are as before.
    """
    mine = order.share(ranks.rank(), ranks.world())
    count = options.num_workers
    batches = _SlotBatches(task, dataset, order)
    if count:
        workers.start_server()
    loader = DataLoader(
        workers.Sent(batches, task.config.task) if count else batches,
        batch_size=None,
        sampler=_SlotKeys(steps, mine),
        num_workers=count,
        prefetch_factor=options.prefetch_factor if count else None,
        pin_memory=options.pin_memory and torch.cuda.is_available(),
        multiprocessing_context=workers.context if count else None,
        worker_init_fn=workers.end_with_parent,
        generator=torch.Generator(),  # for the workers' own seeds; without it torch's default one is drawn from
    )
    slots = iter(loader)
    for step in steps:
        with workers.naming_signals(slots), contextlib.nullcontext() if count else put_back():
            batch = [next(slots) for _ in mine]
        yield step, batch


_SHARED = Path("/dev/shm")
_WAY_SECONDS = 0.002  # of a batch from a worker, of a few numbers on two CPUs (tests/bench/bench_loader.py)


def limit_workers(task: Task, dataset: Any, slot_size: int, options: Data) -> tuple[Data, str]:
    """Caps `num_workers` at what CPUs and /dev/shm allow; returns the options and a sentence, empty where they fit.

    There are no workers where task or data set cannot be sent to them.
    """
    if not options.num_workers:
        return options, ""
    if what := workers.unsendable(task, "the task") or workers.unsendable(dataset, "the data set"):
        return dataclasses.replace(options, num_workers=0), (
            f"data.num_workers is {options.num_workers}, but what loads the data cannot be sent to another process: "
            f"{what}. The training process loads the data. No result changes. To use workers, open or make such a "
            "thing where it is first used, and leave it out in __getstate__."
        )
    workers.start_server()
    most, why = _most_workers(task, slot_size, options)
    if most >= options.num_workers:
        return options, ""
    sentence = f"data.num_workers is {options.num_workers}, but {why}: {most} load data. No result changes."
    return dataclasses.replace(options, num_workers=most), sentence


def most_workers(task: Task, dataset: Any, slot_size: int, options: Data) -> int:
    """Returns the most loader workers that `limit_workers` lets a process have; draws nothing that training draws."""
    if workers.unsendable(task, "the task") or workers.unsendable(dataset, "the data set"):
        return 0
    with torch.random.fork_rng(devices=[]):
        return _most_workers(task, slot_size, options)[0]


def is_cheap(task: Task, dataset: Any, slot_size: int) -> bool:
    """Says whether this process makes a slot faster than a worker hands it over; draws nothing that training draws."""
    with put_back(), contextlib.suppress(Exception):  # an advice ends no run
        begin = time.perf_counter()
        task.collate([dataset[i] for i in range(min(slot_size, len(dataset)))], torch.Generator())
        return time.perf_counter() - begin < _WAY_SECONDS
    return False


def _most_workers(task: Task, slot_size: int, options: Data) -> tuple[int, str]:
    """Returns how many workers CPUs and /dev/shm allow, and which of them is the limit.

    Workers hand batches over in /dev/shm. Where that is full the system kills one with a bus error, in mid-run.
    """
    most = hardware.cpus_per_process(ranks.local_world())
    why = f"{hardware.cpus():g} CPUs serve {ranks.local_world()} process(es)"
    if _SHARED.is_dir():
        batch = task.example_batch(slot_size, torch.device("cpu"))
        held = sum(value.nbytes for value in batch.values()) * options.prefetch_factor  # by one worker
        free = shutil.disk_usage(_SHARED).free
        fitting = free // max(1, held * ranks.local_world())
        if fitting < most:
            most = fitting
            why = (
                f"{_SHARED} has {free / _MIB:,.0f} MiB free, and a worker keeps up to {held / _MIB:,.0f} MiB of "
                "batches in it (a container gets more by --shm-size; a lower data.prefetch_factor needs less)"
            )
    return most, why


class WorkerKilled(TrainingFailed):
    """The system killed a process that loads data; a fresh launch may get through."""


@contextlib.contextmanager
def naming_killed_workers(step: Callable[[], int], count: int) -> Iterator[None]:
    """Turns torch's error about a loader worker that the system killed into one about the host's memory.

    Raises WorkerKilled.
    """
    try:
        try:
            yield
        except (ConnectionError, EOFError) as error:
            # The connection to a worker that ended while it still owed half a batch; not one of the data set's own.
            frames = traceback.extract_tb(error.__traceback__)
            in_loader = any(Path(frame.filename).match("torch/utils/data/dataloader.py") for frame in frames)
            if in_loader and "in DataLoader worker process" not in str(error):
                time.sleep(1.0)  # the handler's own error may still be on its way, and must not come up elsewhere
                raise RuntimeError("DataLoader worker (pid unknown) exited unexpectedly") from error
            raise
    except Exception as error:
        chain: list[BaseException] = [
            error
        ]  # raised in the middle of a library's own work, one may follow from another
        while chain[-1].__context__ is not None:
            chain.append(chain[-1].__context__)
        message = next((str(link) for link in chain if _KILLED_WORKER.search(str(link))), None)
        if message is None:
            raise
        where = "/dev/shm, the memory that workers share, is" if "Bus error" in message else "the machine's RAM was"
        raise WorkerKilled(
            f"At step {step()} the system killed a process that loads data: most likely {where} full. Lower "
            f"data.num_workers (now {count}; 0 loads in the training process) or data.prefetch_factor, so that fewer "
            "batches are in flight, take a smaller training.effective_batch or more training.micro_batch_slots, or a "
            f"part of the data by data.subset_ratio. The loader said: {message.splitlines()[0]}"
        ) from error


_KILLED_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)?.*\) (exited unexpectedly|is killed by signal: (Killed|Bus error))"
)


STAGES = {"quick": 0.05, "validate": 0.2, "full": 1.0}


def share(ratio: float | str) -> float:
    """Returns `data.subset_ratio` as a number; it may be a stage's name."""
    return STAGES[ratio] if isinstance(ratio, str) else ratio


def subset(dataset: Any, ratio: float | str, seed: int) -> Any:
    """Returns a fixed random share of a data set, at least one sample; the whole where `ratio` is 1.

    A data set with a method `subset(share, seed)` chooses itself: whole documents, say.
    """
    ratio = share(ratio)
    if ratio >= 1:
        return dataset
    if callable(own := getattr(dataset, "subset", None)):
        return own(ratio, seed)
    keep = max(1, round(len(dataset) * ratio))
    chosen = permutation(mix(SUBSET, seed), 0, len(dataset))[:keep]
    return Subset(dataset, sorted(chosen.tolist()))


def to_device(batch: Batch, device: torch.device) -> Batch:
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yields the same batches on the device; a GPU copies each on a stream of its own while it computes the one before.

    On `meta` (see lib/planner) a batch is there at once.
    """
    if device.type == "cpu":
        yield from (to_device(batch, device) for batch in batches)
        return
    stream = _copy_stream(device) if device.type == "cuda" else None
    ahead = None
    for batch in itertools.chain(batches, [None]):
        coming = None
        if batch:
            with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
                coming = to_device(batch, device), stream.record_event() if stream else None
        if ahead:
            yield _arrived(*ahead)
        ahead = coming


@functools.cache  # a stream has memory of its own in the allocator
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _arrived(batch: Batch, copied: torch.cuda.Event | None) -> Batch:
    """Returns the batch once the computing stream is sure to find it copied."""
    if copied:
        computing = torch.cuda.current_stream()
        computing.wait_event(copied)
        for value in batch.values():
            value.record_stream(computing)  # its memory is not given away while `computing` reads it
    return batch


def size_of(batch: Batch) -> int:
    """Returns the number of samples in a batch."""
    return len(next(iter(batch.values())))


def check_samples(batch: Batch) -> None:
    """Raises BadInput unless every tensor of a batch has the samples along its first dimension.

    The batch's size is the one that most of its tensors agree on, and of equally many the first.
    """
    sizes = Counter(len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim())
    if len(sizes) == 1 and sizes.total() == len(batch):
        return
    if not sizes:
        raise BadInput("The batch has no tensors with samples. Task.collate must return a mapping of name to tensor.")
    size = sizes.most_common(1)[0][0]
    for name, value in batch.items():
        if not isinstance(value, Tensor):
            what = f"a value {name!r} of type {type(value).__name__}"
        elif not value.dim() or len(value) != size:
            what = f"a tensor {name!r} of shape {tuple(value.shape)}"
        else:
            continue
        raise BadInput(
            f"A batch of {size} samples has {what}. It is cut into micro-batches along the samples, so Task.collate "
            f"must return tensors of shape ({size}, ...) alone. Repeat it for each sample, or keep what belongs to no "
            "sample in the task or the model."
        )


def whole_groups(size: int, together: int) -> int:
    """Returns the largest number of samples up to `size` that parts no group of `together`; at least one group."""
    return max(together, size // together * together)


def half(size: int, together: int) -> int:
    """Returns half of a number of samples that is a multiple of `together`, rounded up to one."""
    return (size // together + 1) // 2 * together


def smallest(together: int) -> str:
    """Says of which size no half is left."""
    return "one sample" if together == 1 else f"{together} samples, which the task keeps together,"


def micro_batches(batch: Batch, most: int) -> Iterator[Batch]:
    """Yields slices of at most `most` samples."""
    if size_of(batch) <= most:
        yield batch
        return
    for first in range(0, size_of(batch), most):
        yield {name: value[first : first + most] for name, value in batch.items()}
