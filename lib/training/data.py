"""Loads the samples of a step, and brings them to the device. Workers have no state: their number changes nothing."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from lib import ranks
from lib.config import Data
from lib.errors import BadInput
from lib.machine import hardware
from lib.task import Batch, Task
from lib.training import workers
from lib.training.order import COLLATE, SUBSET, Order, mix, permutation, seed_draws

SLOTS_AHEAD = 2  # that each worker prepares, as in torch
_SLICE = 1.0  # seconds between two looks at the clock and the signals while a batch is late
Stop = Callable[[], object]
Note = Callable[[str], None]


class _SlotBatches(Dataset):
    """Collates the batch of (step, slot) for each number of a range: a worker has no state to resume."""

    def __init__(self, task: Task, dataset: Any, order: Order, first_step: int, slots: range):
        self.task = task
        self.dataset = dataset
        self.order = order
        self.first_step = first_step
        self.slots = slots

    def __getitem__(self, number: int) -> Batch:
        steps, place = divmod(number, len(self.slots))
        step = self.first_step + steps
        slot = self.slots[place]
        seed = mix(COLLATE, self.order.seed, step, slot)
        seed_draws(seed)
        samples = [self.dataset[i] for i in self.order.indices(step, slot)]
        batch = {**self.task.collate(samples, torch.Generator().manual_seed(seed))}
        for name, value in batch.items():
            # torch does not pin tensors whose values share memory, as after `expand`
            if isinstance(value, Tensor) and 0 in value.stride():
                batch[name] = value.contiguous()
        return batch


def train_batches(
    task: Task, dataset: Any, order: Order, steps: range, options: Data, must_stop: Stop = lambda: None,
    note: Note = print,
) -> Iterator[tuple[int, list[Batch]]]:  # fmt: skip
    """Yields each step with the batches of this rank's slots. Ends early if `must_stop` while one is late."""
    mine = order.share(ranks.rank(), ranks.world())
    batches = _SlotBatches(task, dataset, order, steps.start, mine)
    loaded = _loaded(batches, len(steps) * len(mine), options, must_stop, note)
    for step in steps:
        batch = list(itertools.islice(loaded, len(mine)))
        if len(batch) < len(mine):
            return
        yield step, batch


def _loaded(
    batches: _SlotBatches, count: int, options: Data, must_stop: Stop, note: Note
) -> Iterator[Batch]:
    """Yields the first `count` batches. After the loss of a worker half as many load the rest."""
    done = 0
    number = options.num_workers
    pins = torch.cuda.is_available()
    sent: Any = workers.Sent(batches, batches.task.config.task) if number else None
    while number and done < count:
        slots: Any = ()
        try:
            workers.start_server()
            slots = iter(_loader(sent, range(done, count), number, pins))
            for batch in workers.waiting(slots, must_stop, note):
                yield batch
                done += 1
            return
        except (RuntimeError, OSError, EOFError) as error:
            loss = workers.loss_of(slots, error)
            number = number // 2
        note(
            f"A process that loads data {loss}. From here on data.num_workers is {number} "
            "(0 loads in the training process). No result changes. Lower it for the next run."
        )
    for place in range(done, count):
        batch = batches[place]
        yield _pinned(batch) if pins else batch


def _loader(sent: Any, places: range, number: int, pins: bool) -> DataLoader:
    """Starts `number` workers that load the batches of `places`."""
    return DataLoader(
        sent,
        batch_size=None,
        sampler=places,
        collate_fn=workers.share,
        pin_memory=pins,
        num_workers=number,
        prefetch_factor=SLOTS_AHEAD,
        timeout=_SLICE,
        multiprocessing_context=workers.context,
        worker_init_fn=workers.end_with_parent,
        generator=torch.Generator(),  # seeds the workers; torch's default one would advance
    )


def _pinned(batch: Batch) -> Batch:
    return {
        name: value.pin_memory() if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


def limit_workers(task: Task, dataset: Any, options: Data, note: Note) -> Data:
    """Limits `num_workers` to this process's share of the CPUs; 0 if task or data set cannot be pickled."""
    if not options.num_workers:
        return options
    wanted = options.num_workers
    reason = workers.unsendable("the task", task) or workers.unsendable("the data set", dataset)
    if reason:
        note(
            f"data.num_workers is {wanted}, but what loads the data cannot be sent to another process: {reason}. "
            "The training process loads the data. No result changes. To use workers, open or make such a thing "
            "where it is first used, and leave it out in __getstate__."
        )
        return dataclasses.replace(options, num_workers=0)
    workers.start_server()
    processes = ranks.local_world()
    most = hardware.cpus_per_process(processes)
    if most >= wanted:
        return options
    note(
        f"data.num_workers is {wanted}, but {hardware.cpus():g} CPUs serve {processes} process(es): "
        f"{most} load data. No result changes."
    )
    return dataclasses.replace(options, num_workers=most)


def subset(dataset: Any, ratio: float, seed: int) -> Any:
    """Returns a fixed random share of a data set, or its own `subset(share, seed)`; at least one sample."""
    if ratio >= 1:
        return dataset
    if callable(choose := getattr(dataset, "subset", None)):
        return choose(ratio, seed)
    shuffled = permutation(mix(SUBSET, seed), 0, len(dataset))
    size = max(1, round(len(dataset) * ratio))
    return Subset(dataset, sorted(shuffled[:size].tolist()))


def to_device(batch: Batch, device: torch.device) -> Batch:
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def size_of(batch: Batch) -> int:
    return next(iter(batch.values())).shape[0]


def check_samples(batch: Batch) -> None:
    """Raises BadInput unless all values of a batch are tensors of the same length."""
    lengths = {value.shape[:1] if isinstance(value, Tensor) else () for value in batch.values()}
    if len(lengths) != 1 or () in lengths:
        shapes = {name: _shape(value) for name, value in batch.items()}
        raise BadInput(
            "Task.collate must return tensors, samples along the first dimension. Repeat what holds for all "
            f"samples for each of them, or keep it in the task: {shapes}."
        )


def _shape(value: object) -> tuple[int, ...] | str:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return type(value).__name__


def micro_batches(batch: Batch, most: int) -> Iterator[Batch]:
    if (size := size_of(batch)) <= most:
        yield batch
        return
    for first in range(0, size, most):
        yield {name: value[first : first + most] for name, value in batch.items()}
