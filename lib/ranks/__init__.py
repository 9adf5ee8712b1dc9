"""Joins the processes that train one run: their numbers, and their common decisions.

`launch` or torchrun starts a process for each GPU and numbers them; `start` joins them. In a single process, such as a
notebook's kernel or a plain `trainbook train`, every function here is a no-op.

Numbers and decisions go over gloo, gradients between GPUs over nccl. Two addends commute, so the sum over two ranks has
the bits of the sum in one process; of more addends the backend chooses the order, which is the same on every rank.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lib import private
from lib.config import environment
from lib.errors import BadInput, TrainingFailed
from lib.ranks.boot import die_with

JOIN_SECONDS = 300  # for all ranks to come together
PATIENT_SECONDS = 1800  # before the first step: data are read, kernels compiled
HANG_SECONDS = 120  # later: a rank that lets the others wait longer counts as hung

Value = TypeVar("Value")
Groups = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class _Place:
    rank: int = 0
    size: int = 1
    local_size: int = 1  # on this machine
    flags: dist.ProcessGroup | None = None  # gloo, for numbers and decisions


_here = _Place()


def world() -> int:
    """Returns the number of processes that train this run."""
    return _here.size


def local_world() -> int:
    """Returns the number of them on this machine."""
    return _here.local_size


def rank() -> int:
    return _here.rank


def is_first() -> bool:
    """Returns whether this is the one process that writes files and prints."""
    return _here.rank == 0


def under_torchrun() -> bool:
    """Returns whether torchrun started this process, or `launch` as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ or is_watched()


def check_count(processes: int) -> None:
    """Raises BadInput for more processes than GPUs; without a GPU they share the CPU."""
    if torch.cuda.is_available() and processes > (gpus := torch.cuda.device_count()):
        raise BadInput(
            f"{processes} processes are configured for {gpus} GPU(s). Lower device.processes."
        )


def is_watched() -> bool:
    """Returns whether `launch` started this rank, so that the launching process shows its output."""
    return environment.RANK_FOLDER in os.environ


def processes(slots: int, configured: int = 0) -> int:
    """Returns how many processes share the slots of a run; 1 where this one trains. Raises BadInput."""
    is_rank = under_torchrun() or world() > 1
    if is_rank:
        count = world()
    else:
        count = configured or torch.cuda.device_count() or 1
        check_count(count)
    if slots % count == 0:
        return 1 if is_rank else count
    next_multiple = -(-slots // count) * count
    problem = (
        f"training.micro_batch_slots is {slots}, which cannot be dealt to {count} processes in equal numbers. "
        f"Set it to {next_multiple} in a new run; a run keeps its slots."
    )
    if is_rank or configured:
        raise BadInput(problem)
    fitting = max(number for number in range(1, count) if slots % number == 0)
    print(f"{problem} Until then {fitting} of {count} GPUs are used.")
    return fitting


def start() -> None:
    """Joins the ranks, and chooses this process's GPU. Raises BadInput if that fails."""
    global _here
    if _here.size > 1:
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with(os.getppid())
    size, local_size = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    gpus = torch.cuda.device_count()
    local = int(os.environ.get("LOCAL_RANK", 0))
    if size > 1:
        check_count(local_size)
    if gpus and local:  # the first is torch's default, and choosing it would touch the GPU early
        torch.cuda.set_device(local)
    if size > 1:
        _join()
        if gpus:
            flags = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENT_SECONDS))
        else:
            flags = dist.group.WORLD
        _here = _Place(dist.get_rank(), size, local_size, flags)
        keep_pace(PATIENT_SECONDS)


def _join() -> None:
    try:
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=JOIN_SECONDS))
    except (ValueError, RuntimeError) as error:  # torch's DistError is a RuntimeError
        first = str(error).strip().splitlines()[0]
        if is_watched():
            # one machine, so the address is right: a fresh launch may succeed
            raise RuntimeError(
                f"Timed out waiting for the other ranks to start: {first}"
            ) from error
        address = os.environ.get("MASTER_ADDR", "(unset)")
        port = os.environ.get("MASTER_PORT", "(unset)")
        raise BadInput(
            f"This process on {socket.gethostname()} did not find the other ranks at {address}:{port}: {first} "
            "Start all with this address and a free port (torchrun: --master-port)."
        ) from error


def end() -> None:
    global _here
    if _here.size > 1:
        dist.destroy_process_group()
        _here = _Place()


def keep_pace(seconds: float = HANG_SECONDS) -> None:
    """Sets the longest wait for other ranks; after it this one ends with an error."""
    if _here.size > 1:
        for group in {dist.group.WORLD, _here.flags or dist.group.WORLD}:
            private.set_timeout(group, seconds)


def highest(*values: float) -> list[float]:
    """Returns the highest of each value over the ranks; whole numbers up to 2**53 stay exact."""
    if _here.size == 1:
        return list(values)
    numbers = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(numbers, dist.ReduceOp.MAX, group=_here.flags)
    return numbers.tolist()


def anywhere(flag: bool) -> bool:
    return bool(highest(flag)[0])


def gathered(value: Value) -> list[Value]:
    values: list[Any] = [value] * _here.size
    if _here.size > 1:
        dist.all_gather_object(values, value, group=_here.flags)
    return values


def from_first(value: Value) -> Value:
    box = [value]
    if _here.size > 1:
        dist.broadcast_object_list(box, 0, group=_here.flags)
    return box[0]


def tensors_from_first(groups: Groups | None) -> Groups | None:
    """Returns the first rank's tensors on every rank, or None if it gives None; the others get them on the CPU."""
    if _here.size == 1:
        return groups
    mine: dict[str, dict[str, Any]] = {}
    for group, named in (groups or {}).items():
        mine[group] = {name: (value.shape, value.dtype) for name, value in named.items()}
    shapes = from_first(None if groups is None else mine)
    if shapes is None:
        return None
    received: dict[str, dict[str, Tensor]] = {group: {} for group in shapes}
    for group, described in shapes.items():
        for name, (shape, dtype) in described.items():
            if is_first() and groups:
                tensor = groups[group][name]
            else:
                tensor = torch.empty(shape, dtype=dtype)
            copy = tensor.detach().cpu().contiguous()
            if copy.numel():  # as bytes: not every dtype is known to gloo
                dist.broadcast(copy.reshape(-1).view(torch.uint8), 0, group=_here.flags)
            received[group][name] = tensor if is_first() else copy
    return received


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Raises the BadInput or TrainingFailed of one rank on all, with its name, so that all end."""
    failure: Exception | None = None
    try:
        yield
    except (BadInput, TrainingFailed) as error:
        if _here.size == 1:
            raise
        failure = error
    answers = gathered((type(failure), f"{failure}") if failure else None)
    failures = {rank: answer for rank, answer in enumerate(answers) if answer}
    if not failures:
        return
    kind = next(iter(failures.values()))[0]
    texts = dict.fromkeys(text for _, text in failures.values())
    if len(failures) == _here.size and len(texts) == 1:
        raise kind(*texts) from failure
    hosts = gathered(socket.gethostname())
    lines = [f"Rank {rank} on {hosts[rank]}: {text}" for rank, (_, text) in failures.items()]
    raise kind("\n".join(lines)) from failure
