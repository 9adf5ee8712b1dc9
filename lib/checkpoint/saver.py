"""Saves in the background: training waits for a copy into buffers that are kept, and a thread does the rest."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lib import checkpoint
from lib.checkpoint import CheckpointNotSaved
from lib.checkpoint.retention import Retention
from lib.errors import TrainingFailed
from lib.machine import memory

Tensors = Mapping[str, Mapping[str, Tensor]]
Key = tuple[str, str]  # group, name


class Saver:
    """Saves one checkpoint at a time. A failure is a warning at the next save, or an error in `wait`.

    `record` gets the seconds from the call of `save` until everything is on the disk. `before` is called on the thread
    before each checkpoint: what it relies on must be on the disk first.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention,
        record: Callable[[float], None] = lambda seconds: None,
        before: Callable[[], None] = lambda: None,
    ):
        self.folder, self.retention, self.record, self.before = folder, retention, record, before
        self._thread: threading.Thread | None = None
        self._saves = 0
        self._failures: dict[int, BaseException] = {}  # by the number of the save
        self._buffers: dict[Key, Tensor] = {}
        self._sources: dict[Key, tuple[int, int, int, StorageWeakRef]] = {}  # what each buffer is a copy of
        self._in_use: set[Key] = set()  # buffers that the thread is reading

    def prepare(self, tensors: Tensors) -> None:
        """Makes the buffers in the background: the first touch of memory can take ten times as long as a copy."""
        items = _items(tensors)
        self._in_use |= items.keys()

        def touch() -> None:
            try:
                for key, value in items.items():
                    self._buffer(key, value).zero_()
            except Exception as error:  # a save makes those for which memory runs out
                if not memory.is_oom(error):
                    raise

        self._start(touch)

    def save(
        self, name: str, step: int, tensors: Tensors, state: Mapping[str, Any], then: Callable[[], None] | None = None
    ) -> None:
        """Copies the tensors now, commits the checkpoint into `folder / name` in the background, then calls `then`."""
        begin = time.perf_counter()
        text = checkpoint.to_json({**state, "step": step})
        # What stays equal while a tensor holds the same bytes: best weights and checkpoint share one copy. An address
        # may be used again once its memory is freed; a weak reference to the storage keeps its identity.
        sources = {
            key: (step, value.data_ptr(), value._version, StorageWeakRef(value.untyped_storage()))
            for key, value in _items(tensors).items()
        }
        if self._failures or any(
            key in self._in_use and self._sources.get(key) != source for key, source in sources.items()
        ):
            self._join()  # the thread is still writing other content from one of the buffers
        self._saves += 1
        copies = self._copied_where_memory_allows(tensors, sources)
        if copies is None:
            self._failures[self._saves] = CheckpointNotSaved(
                f"The checkpoint of step {step:,} was not saved: there was no memory for a copy of it. Those saved "
                "before are untouched."
            )
            return
        self._in_use |= sources.keys()
        self._start(partial(self._commit, self._saves, begin, name, checkpoint.pack(step, copies, text), then))

    def write_now(self, name: str, parcel: checkpoint.Parcel) -> None:
        """Commits a checkpoint into `folder / name` before it returns. Raises CheckpointNotSaved."""
        self._join()
        self._write(name, parcel)

    def _start(self, work: Callable[[], object]) -> None:
        """Starts a thread that does `work` when the one before it has ended."""

        def run(before: threading.Thread | None = self._thread) -> None:
            if before:
                before.join()
            work()

        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Waits until everything is on the disk. Raises CheckpointNotSaved if the last save failed."""
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
        """Waits for the thread and warns of failed saves. Raises any other error of the thread."""
        if self._thread:
            self._thread.join()
        self._thread = None
        self._in_use.clear()
        for number in [n for n in self._failures if n < warn_before]:
            failure = self._failures.pop(number)
            if not isinstance(failure, CheckpointNotSaved):
                raise failure
            print(f"Warning: {failure} Training continues.", flush=True)

    def _commit(
        self, number: int, begin: float, name: str, parcel: checkpoint.Parcel, then: Callable[[], None] | None
    ) -> None:
        """Makes room and writes the checkpoint, on the thread; then calls `then`."""
        try:
            self.before()
            try:
                self._write(name, parcel)
            except CheckpointNotSaved:  # once more, from the same buffers: an error of the disk may be a passing one
                self._write(name, parcel)
            self.record(time.perf_counter() - begin)
            if then:
                then()
        except BaseException as error:  # carried over to the training thread
            self._failures[number] = error

    def _write(self, name: str, parcel: checkpoint.Parcel) -> None:
        try:
            self.retention.make_room(name, parcel)
            checkpoint.write(self.folder / name, parcel)
        except (OSError, MemoryError) as error:  # of asking for the free space, or of the machine
            why = f"{error}" or "memory ran out"
            raise CheckpointNotSaved(f"The checkpoint of step {parcel.step:,} was not saved: {why}.") from error

    def _copied_where_memory_allows(
        self, tensors: Tensors, sources: Mapping[Key, tuple]
    ) -> dict[str, dict[str, Tensor]] | None:
        """Returns copies of the tensors; None where memory runs out, also after all that can be freed was freed."""
        for is_last in (False, True):
            try:
                return self._copied(tensors, sources)
            except Exception as error:
                if not memory.is_oom(error):
                    raise
            self._join()
            self._sources.clear()  # what was queued before the failure need not have arrived
            if is_last:
                self._buffers.clear()
            memory.clear_memory()
        return None

    def _copied(self, tensors: Tensors, sources: Mapping[Key, tuple]) -> dict[str, dict[str, Tensor]]:
        """Copies what the buffers do not hold yet; returns the buffers by group and name."""
        changed = {key: value for key, value in _items(tensors).items() if self._sources.get(key) != sources[key]}
        for key, value in changed.items():
            self._buffer(key, value).copy_(value, non_blocking=True)
            self._sources[key] = sources[key]
        if any(value.is_cuda for value in changed.values()):
            torch.cuda.synchronize()
        return {group: {name: self._buffers[group, name] for name in named} for group, named in tensors.items()}

    def _buffer(self, key: Key, value: Tensor) -> Tensor:
        """Returns the buffer of a tensor on the CPU; pinned for a GPU's, so that one wait is enough for all copies."""
        buffer = self._buffers.get(key)
        if buffer is None or (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
            try:
                buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            except RuntimeError:  # the system allows no more pinned memory
                buffer = torch.empty(value.shape, dtype=value.dtype)
            self._buffers[key] = buffer
        return buffer

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *error: object) -> None:
        self._join()


def _items(tensors: Tensors) -> dict[Key, Tensor]:
    return {(group, name): value.detach() for group, named in tensors.items() for name, value in named.items()}
