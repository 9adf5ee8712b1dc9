"""Keeps a user's training loop: it resumes bit for bit, and stops in time."""

import math
import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from lib import checkpoint, private
from lib.config import environment
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.training.session import Session, start_session

EXIT_DEADLINE = 75  # everything is saved: run the same command again
EXIT_INTERRUPTED = 130
_PLAIN = (bool, int, float, str, type(None))
_GROUP = "state"  # the file of a checkpoint that holds all tensors


class Keep:
    """Saves and restores an own loop: weights, optimizer, schedule, random numbers, place in the epoch.

        keep = Keep("checkpoints", model=model, optimizer=optimizer, scheduler=scheduler)
        for epoch in keep.epochs(20):
            for batch in keep.batches(loader):
                ...

    `parts` are objects with `state_dict` and `load_state_dict`. `values` is a dict of the loop's own
    numbers and texts, such as the best score so far. A checkpoint is written every `every_minutes`,
    at the session's end, and after SIGTERM or Ctrl-C; the newest `keep_last` stay. It is hashed, and
    a damaged one is passed over. At the deadline the process ends with exit code 75.

    On a CPU a killed loop ends in the same bytes if its random numbers are those of torch, NumPy and
    Python. A loader with workers reads the batches of a begun epoch again. Raises BadInput where a
    checkpoint does not fit the parts.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every_minutes: float = 10.0,
        keep_last: int = 2,
        session_minutes: float = 0.0,
        margin_seconds: float = 60.0,
        **parts: Any,
    ):
        self.folder = Path(folder)
        self.values: dict[str, Any] = {}
        self.step_number = 0  # batches or steps since the beginning
        self._parts = parts
        self._every_seconds = 60 * every_minutes
        self._keep_last = keep_last
        self._saved_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "keep")
        self._writing: Future[None] | None = None
        self._session = own_session(session_minutes, margin_seconds)
        self._epoch = 0
        self._batch = 0  # batches of this epoch that are done
        self._epoch_begin: dict[str, Any] = {}  # random numbers at the begin of the epoch's batches
        self._was_called = False
        self._restore()

    def epochs(self, total: int) -> Iterator[int]:
        """Yields the numbers of the epochs that are left of `total`; saves between them when due."""
        while self._epoch < total:
            yield self._epoch
            self._epoch += 1
            self._batch = 0
            self._epoch_begin = {}
            self._check(is_last=self._epoch == total)
        self._wait()

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches of an epoch that are left; saves between them when due."""
        done = self._batch
        if done:
            batches = self._resumed(loader, done)
        else:
            self._epoch_begin = random_state()
            batches = iter(loader)
        for batch in batches:
            yield batch
            self._batch += 1
            self.step_number += 1
            self._check()
        self._batch = 0

    def steps(self, total: int) -> Iterator[int]:
        """Yields the numbers of the steps that are left of `total`; `step()` in the loop is optional."""
        while self.step_number < total:
            self._was_called = False
            yield self.step_number
            if not self._was_called:
                self.step()
        self._wait()

    def step(self) -> None:
        """Counts a step and saves when due. Exits with 75 at the deadline."""
        self._was_called = True
        self.step_number += 1
        self._check()

    def save(self) -> None:
        """Writes a checkpoint now, in the background."""
        self._wait()
        self._saved_at = time.monotonic()
        state = {
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "random": _gathered(random_state()),
            "epoch_begin": _gathered(self._epoch_begin),
            "values": self.values,
            "place": [self.step_number, self._epoch, self._batch],
        }
        if rank():
            return
        tensors: dict[str, Tensor] = {}
        plain = flattened(state, "", tensors)
        text = checkpoint.to_json({"keep": plain, "step": self.step_number})
        parcel = checkpoint.pack(self.step_number, {_GROUP: tensors}, text)
        self._writing = self._thread.submit(self._write, parcel, time.perf_counter())

    def _write(self, parcel: checkpoint.Parcel, begin: float) -> None:
        checkpoint.write(self.folder, parcel)
        self._session.record("save", time.perf_counter() - begin)
        for step in checkpoint.steps(self.folder)[: -self._keep_last]:
            disk.discard(checkpoint.path_of(self.folder, step))

    def _wait(self) -> None:
        if self._writing:
            self._writing.result()  # raises CheckpointNotSaved
            self._writing = None

    def _check(self, is_last: bool = False) -> None:
        """Saves if a save is due; saves and exits if the session ends. All ranks decide together."""
        reason = None if is_last else self._session.stop_reason()
        is_due = is_last or time.monotonic() - self._saved_at >= self._every_seconds
        stop, save = agreed(reason is not None, is_due)
        if not (stop or save):
            return
        self.save()
        if not stop:
            return
        self._wait()
        reason = reason or "deadline"
        print(
            f"Stopped ({reason}) after step {self.step_number:,}: everything is saved in "
            f"{self.folder}. Run the same command again.",
            flush=True,
        )
        raise SystemExit(EXIT_DEADLINE if reason == "deadline" else EXIT_INTERRUPTED)

    def _restore(self) -> None:
        checkpoint.tidy(self.folder)
        newest, sentences = checkpoint.load_newest(self.folder)
        for sentence in sentences:
            print(sentence, flush=True)
        if newest is None:
            return
        state = unflattened(newest.state["keep"], newest.tensors[_GROUP])
        stored = state["parts"]
        if stored.keys() != self._parts.keys():
            raise BadInput(
                f"The checkpoint {newest.path} has {', '.join(stored)}, and Keep was given "
                f"{', '.join(self._parts)}. Give the same parts, or another folder."
            )
        for name, part in self._parts.items():
            try:
                part.load_state_dict(stored[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise BadInput(
                    f"The {name} of {newest.path} does not fit yours "
                    f"({printable(error, most=300)}). Give another folder to begin afresh."
                ) from error
        self.values = state["values"]
        self.step_number, self._epoch, self._batch = state["place"]
        ranks = len(state["random"])
        self._epoch_begin = state["epoch_begin"][rank() % ranks]
        restore_random(state["random"][rank() % ranks])
        print(f"Resumed {newest.path} at step {self.step_number:,}.", flush=True)

    def _resumed(self, loader: Iterable[Any], done: int) -> Iterator[Any]:
        """Returns the rest of an epoch whose first `done` batches are trained.

        The sampler is drawn as it was. Without workers nothing is read again; workers carry random
        numbers of their own from batch to batch, so they read the first batches again.
        """
        now = random_state()
        restore_random(self._epoch_begin)
        if isinstance(loader, torch.utils.data.DataLoader) and not loader.num_workers:
            batches = private.skipped(iter(loader), done)
        else:
            print(f"Reading {done:,} batches of the begun epoch again.", flush=True)
            batches = islice(iter(loader), done, None)
            first = next(batches, None)
            restore_random(now)
            return _behind(first, batches)
        restore_random(now)
        return batches


def own_session(minutes: float, margin_seconds: float) -> Session:
    """Returns the session of an own loop, which catches signals from now on.

    `trainbook run` hands down an earlier deadline: by it the run is packed too.
    """
    session = start_session(minutes, margin_seconds)
    if handed := os.environ.get(environment.DEADLINE):
        session.deadline = min(session.deadline, float(handed))
    session.catching_signals().__enter__()
    return session


def _behind(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    if first is not None:
        yield first
    yield from rest


def random_state() -> dict[str, Any]:
    """Returns the states of the generators of torch, CUDA, NumPy and Python."""
    kind, keys, place, has_gauss, gauss = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": [str(kind), torch.from_numpy(np.array(keys, np.int64)), place, has_gauss, gauss],
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_random(state: Mapping[str, Any]) -> None:
    """Puts the states of `random_state` back."""
    torch.set_rng_state(state["torch"].to(torch.uint8))
    kind, keys, place, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, gauss))
    random.setstate(state["python"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state_all(list(state["cuda"]))


def flattened(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Returns a value as JSON holds it, and puts copies of its tensors into `tensors`. Raises BadInput."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().to("cpu", copy=True)
        return {"tensor": name}
    if isinstance(value, np.generic):
        return flattened(value.item(), name, tensors)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        items = [
            [flattened(key, "", {}), flattened(v, f"{name}/{key}", tensors)]
            for key, v in value.items()
        ]
        return {"dict": items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [flattened(v, f"{name}/{place}", tensors) for place, v in enumerate(value)]}
    raise BadInput(
        f"Keep cannot save {name.strip('/')}, a {type(value).__name__}. A state_dict may hold tensors, "
        "numbers, texts, lists, tuples and dicts."
    )


def unflattened(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Returns what `flattened` was given."""
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "float":
        return float(inner)
    if kind == "dict":
        return {unflattened(key, tensors): unflattened(v, tensors) for key, v in inner}
    values = [unflattened(v, tensors) for v in inner]
    return values if kind == "list" else tuple(values)


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _gathered(state: Any) -> list[Any]:
    """Returns the state of every rank, in their order."""
    if not dist.is_initialized():
        return [state]
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    return states


def agreed(*flags: bool) -> list[bool]:
    """Returns which flags are set on any rank."""
    if not dist.is_initialized():
        return [*flags]
    is_nccl = dist.get_backend() == "nccl"
    values = torch.tensor(flags, dtype=torch.int32, device="cuda" if is_nccl else "cpu")
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return [bool(value) for value in values.tolist()]
