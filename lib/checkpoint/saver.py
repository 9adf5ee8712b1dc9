"""Saving in the background: training stands still for the copy into kept buffers, a thread does the rest."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lib import checkpoint
from lib.checkpoint import CheckpointNotSaved
from lib.checkpoint.retention import Retention
from lib.errors import TrainingFailed

Tensors = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class _Source:
    """Which tensor was copied, in which state: the best weights of a step and its checkpoint share one copy."""

    step: int
    address: int
    version: int
    storage: StorageWeakRef  # an address says nothing once its memory was given back

    @classmethod
    def of(cls, step: int, value: Tensor) -> "_Source":
        return cls(step, value.data_ptr(), value._version, StorageWeakRef(value.untyped_storage()))

    def is_still(self, step: int, value: Tensor) -> bool:
        """Whether `value` holds the bytes that were copied then."""
        same = (self.step, self.address, self.version) == (step, value.data_ptr(), value._version)
        return same and not self.storage.expired()


class Saver:
    """One save in flight at a time. What fails surfaces at the next save, as a warning, or in `wait`, as an error.

    `record` is told the seconds from the call of `save` until everything is on the disk.
    """

    def __init__(self, folder: Path, retention: Retention, record: Callable[[float], None] = lambda seconds: None):
        self.folder, self.retention, self.record = folder, retention, record
        self._thread: threading.Thread | None = None
        self._saves = 0
        self._failures: dict[int, BaseException] = {}  # by the number of the save
        self._buffers: dict[tuple[str, str], Tensor] = {}
        self._sources: dict[tuple[str, str], _Source] = {}
        self._in_use: set[tuple[str, str]] = set()  # buffers that the thread is reading

    def prepare(self, tensors: Tensors) -> None:
        """Makes the buffers in the background: the first touch of memory can take ten times as long as a copy."""
        each = _each(tensors)
        self._in_use |= {(group, key) for group, key, _ in each}
        self._start(lambda: [self._buffer(group, key, value).zero_() for group, key, value in each])

    def save(
        self, name: str, step: int, tensors: Tensors, state: Mapping[str, Any], then: Callable[[], None] | None = None
    ) -> None:
        """Copies now, and commits the checkpoint into the run's folder `name` in the background; `then` follows."""
        begin = time.perf_counter()
        text = checkpoint.to_json({**state, "step": step})
        if any(self._is_taken((group, key), step, value) for group, key, value in _each(tensors)):
            self._join()
        copies = self._copied(tensors, step)
        self._in_use |= {(group, key) for group, key, _ in _each(tensors)}
        self._saves += 1
        work = partial(self._commit, self._saves, begin, name, checkpoint.pack(step, copies, text), then)
        self._start(work)

    def _start(self, work: Callable[[], object]) -> None:
        """Has the thread do something after what it is doing."""
        self._thread = threading.Thread(target=_in_turn, args=(self._thread, work), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Returns when everything is on the disk. Raises CheckpointNotSaved where the last save failed."""
        self._join(warn_before=self._saves)
        if self._failures:
            raise self._failures.pop(self._saves)

    def finish(self) -> None:
        """Waits for the last save of a session, whose failure is one of the run. Raises TrainingFailed."""
        try:
            self.wait()
        except CheckpointNotSaved as error:
            raise TrainingFailed(
                f"{error} This was the last save of the session: the next one resumes from the checkpoint before it."
            ) from error

    def _join(self, warn_before: float = math.inf) -> None:
        """Waits for the thread and warns of saves that failed; anything else that went wrong is raised."""
        if self._thread:
            self._thread.join()
        self._thread = None
        self._in_use.clear()
        for number in [n for n in self._failures if n < warn_before]:
            failure = self._failures.pop(number)
            if not isinstance(failure, CheckpointNotSaved):
                raise failure
            print(f"Warning: {failure} Training goes on.", flush=True)

    def _commit(
        self, number: int, begin: float, name: str, parcel: checkpoint.Parcel, then: Callable[[], None] | None
    ) -> None:
        """In the thread: makes room, writes, and deletes what is no longer kept."""
        try:
            try:
                self._write(name, parcel)
            except CheckpointNotSaved:  # once more, from the same buffers: what the disk refuses may pass
                self._write(name, parcel)
            self.record(time.perf_counter() - begin)
            if then:
                then()
        except BaseException as error:  # carried over to the training thread
            self._failures[number] = error

    def _write(self, name: str, parcel: checkpoint.Parcel) -> None:
        try:
            self.retention.make_room(name, parcel)
        except OSError as error:  # the disk cannot even be asked
            raise CheckpointNotSaved(f"The checkpoint of step {parcel.step:,} was not saved: {error}.") from error
        checkpoint.write(self.folder / name, parcel)

    def _is_taken(self, key: tuple[str, str], step: int, value: Tensor) -> bool:
        """Whether the thread is still writing other content from this tensor's buffer."""
        source = self._sources.get(key)
        return key in self._in_use and not (source and source.is_still(step, value))

    def _copied(self, tensors: Tensors, step: int) -> dict[str, dict[str, Tensor]]:
        copies: dict[str, dict[str, Tensor]] = {group: {} for group in tensors}
        on_gpu = False
        for group, key, value in _each(tensors):
            source = self._sources.get((group, key))
            if source is None or not source.is_still(step, value):
                self._buffer(group, key, value).copy_(value, non_blocking=True)
                self._sources[group, key] = _Source.of(step, value)
                on_gpu = on_gpu or value.is_cuda
            copies[group][key] = self._buffers[group, key]
        if on_gpu:
            torch.cuda.synchronize()
        return copies

    def _buffer(self, group: str, key: str, value: Tensor) -> Tensor:
        """The buffer kept for this tensor."""
        buffer = self._buffers.get((group, key))
        if buffer is None or (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
            buffer = self._buffers[group, key] = _new_buffer(value)
        return buffer

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._join()


def _in_turn(before: threading.Thread | None, work: Callable[[], object]) -> None:
    if before:
        before.join()
    work()


def _each(tensors: Tensors) -> list[tuple[str, str, Tensor]]:
    return [(group, key, value.detach()) for group, named in tensors.items() for key, value in named.items()]


def _new_buffer(value: Tensor) -> Tensor:
    """Memory on the CPU; pinned for a GPU's tensor, so that all copies are queued and one wait is enough."""
    try:
        return torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
    except RuntimeError:  # the system allows no more pinned memory
        return torch.empty(value.shape, dtype=value.dtype)
