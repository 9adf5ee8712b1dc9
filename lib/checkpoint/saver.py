"""Saves in the background: training waits for a copy, a thread writes it and deletes old checkpoints."""

import contextlib
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lib import checkpoint
from lib.checkpoint import CheckpointNotSaved
from lib.config import Checkpoint
from lib.errors import TrainingFailed
from lib.machine import disk, memory, platform
from lib.text import amount

Tensors = Mapping[str, Mapping[str, Tensor]]
Key = tuple[str, str, str]  # checkpoints or best, group, name


class Retention:
    """Keeps the newest checkpoints and the best weights of a run within limits; never deletes the last good one."""

    def __init__(self, folder: Path, options: Checkpoint):
        self.folder = folder
        self.options = options
        here = platform.detect()
        inside = here.output_dir.resolve() in folder.resolve().parents
        self._output_dir = here.output_dir if inside else folder.parent
        self._output_bytes = here.output_bytes
        self._kept_bytes = options.keep_bytes or here.output_bytes
        self._kept_files = here.output_files

    def make_room(self, name: str, parcel: checkpoint.Parcel) -> None:
        """Deletes old checkpoints if this one does not fit otherwise. Raises CheckpointNotSaved if it cannot fit."""
        if parcel.size > self.available():
            checkpoint.tidy(self.folder / name)  # a failed save may have left its own
        if parcel.size > self.available() and name == "checkpoints":
            steps = self._written(name)
            keep = max(1, self.options.keep_last - 1)
            newest = reversed(steps[-keep:])
            if len(steps) > keep and any(map(self._is_good, newest)):
                self._drop_oldest(steps, keep, lambda: parcel.size <= self.available())
        available = max(0, self.available())
        if parcel.size > available:
            raise CheckpointNotSaved(
                parcel.step,
                f"it needs {amount(parcel.size)}, and {amount(available)} are available in {self._output_dir}. "
                "Delete files there, or lower checkpoint.keep_last or checkpoint.keep_best",
            )

    def available(self) -> int:
        """Returns the bytes that can be written, by the disk and by the platform's limit on the output folder."""
        folder = self.folder.absolute()
        while not folder.is_dir():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        most = self._output_bytes
        if most is None:
            return free
        return min(free, most - disk.held(self._output_dir)[0])

    def after_checkpoint(self, step: int, best: Collection[int]) -> None:
        """Deletes, after a step was saved, all but the last and the best ones, and more to stay within the budget."""
        try:
            # the one just saved is the newest, also in a run that was taken back to an earlier step
            earlier = [other for other in self._written("checkpoints") if other != step]
            steps = [*earlier, step]
            self._drop_oldest(steps, self.options.keep_last, lambda: False)
            self.keep_best(best)
            self._drop_oldest(steps[-self.options.keep_last :], 1, self._within_budget)
        except OSError as error:
            print(
                f"Could not look for old checkpoints in {self.folder} ({error}); they stay.",
                flush=True,
            )

    def keep_best(self, best: Collection[int]) -> None:
        for step in self._written("best"):
            if step not in best:
                disk.discard(checkpoint.path_of(self.folder / "best", step))

    def _within_budget(self) -> bool:
        pairs = [disk.held(self.folder / name) for name in ("checkpoints", "best")]
        size, number = (sum(column) for column in zip(*pairs, strict=True))
        return size <= (self._kept_bytes or size) and number <= (self._kept_files or number)

    def _drop_oldest(self, steps: list[int], keep: int, enough: Callable[[], bool]) -> None:
        """Deletes checkpoints, oldest first, until `enough` is true or `keep` are left."""
        for step in steps[:-keep]:
            if enough():
                return
            disk.discard(checkpoint.path_of(self.folder / "checkpoints", step))

    def _is_good(self, step: int) -> bool:
        try:
            return bool(checkpoint.verify(checkpoint.path_of(self.folder / "checkpoints", step)))
        except (checkpoint.DamagedCheckpoint, checkpoint.NewerFormat):
            return False

    def _written(self, name: str) -> list[int]:
        """Lists the steps whose folder has a manifest, which only a run writes."""
        folder = self.folder / name

        def has_manifest(step: int) -> bool:
            return (checkpoint.path_of(folder, step) / checkpoint.MANIFEST).is_file()

        return list(filter(has_manifest, checkpoint.steps(folder)))


class Saver:
    """Saves one checkpoint at a time. A failure is a warning at the next save, or an error in `wait`.

    `record` gets the seconds from the call of `save` until everything is on the disk. `before` is called on the thread
    before each checkpoint, to sync the files that it relies on.
    """

    def __init__(
        self, folder: Path, retention: Retention, record: Callable[[float], None] = lambda seconds: None,
        before: Callable[[], None] = lambda: None,
    ):  # fmt: skip
        self.folder = folder
        self.retention = retention
        self.record = record
        self.before = before
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._works: list[Future[None]] = []
        self._buffers: dict[Key, Tensor] = {}
        self._in_use: set[str] = (
            set()
        )  # kinds of checkpoint whose buffers the thread may be reading

    def prepare(self, name: str, tensors: Tensors) -> None:
        """Makes the buffers in the background: the first touch of memory can take ten times as long as a copy."""
        self._in_use.add(name)

        def touch() -> None:
            # if memory runs out here, a save makes the rest
            with contextlib.suppress(RuntimeError, MemoryError):
                for key, value in _items(name, tensors):
                    self._buffer(key, value).zero_()

        self._works.append(self._thread.submit(touch))

    def save(
        self,
        name: str,
        step: int,
        tensors: Tensors,
        state: Mapping[str, Any],
        then: Callable[[], None] | None = None,
    ) -> None:
        """Copies the tensors now, commits the checkpoint into `folder / name` in the background, then calls `then`."""
        begin = time.perf_counter()
        text = checkpoint.to_json({**state, "step": step})
        has_failed = any(work.exception() for work in self._works if work.done())
        if name in self._in_use or has_failed:
            self._join()  # the thread may still be writing from these buffers
        copies = self._copied_where_memory_allows(name, tensors)
        parcel = None if copies is None else checkpoint.pack(step, copies, text)
        self._in_use.add(name)
        self._works.append(self._thread.submit(self._commit, begin, name, step, parcel, then))

    def wait(self) -> None:
        """Waits until everything is on the disk. Raises CheckpointNotSaved if the last save failed."""
        last = self._works.pop() if self._works else None
        self._join()
        if last:
            last.result()

    def finish(self) -> None:
        """Waits for the last save of a session, whose failure is one of the run. Raises TrainingFailed."""
        try:
            self.wait()
        except CheckpointNotSaved as error:
            raise TrainingFailed(
                f"{error} This was the last save of the session: the next one resumes from the checkpoint before it."
            ) from error

    def _join(self) -> None:
        """Waits for the thread and warns of failed saves. Raises any other error of the thread."""
        works = self._works
        self._works = []
        self._in_use.clear()
        for failure in [work.exception() for work in works]:
            if isinstance(failure, CheckpointNotSaved):
                print(f"Warning: {failure} Training continues.", flush=True)
            elif failure:
                raise failure

    def _commit(
        self,
        begin: float,
        name: str,
        step: int,
        parcel: checkpoint.Parcel | None,
        then: Callable[[], None] | None,
    ) -> None:
        """Makes room and writes the checkpoint, on the thread; then calls `then`."""
        if not parcel:
            raise CheckpointNotSaved(step, "there was no memory for a copy of it")
        self.before()
        try:
            self._write(name, parcel)
        except CheckpointNotSaved:  # retried from the same buffers: a disk error may pass
            self._write(name, parcel)
        self.record(time.perf_counter() - begin)
        if then:
            then()

    def _write(self, name: str, parcel: checkpoint.Parcel) -> None:
        try:
            self.retention.make_room(name, parcel)
            checkpoint.write(self.folder / name, parcel)
        except (OSError, MemoryError) as error:  # of asking for the free space, or of the machine
            raise CheckpointNotSaved(parcel.step, f"{error}" or "memory ran out") from error

    def _copied_where_memory_allows(
        self, name: str, tensors: Tensors
    ) -> dict[str, dict[str, Tensor]] | None:
        """Returns copies of the tensors, or None if memory runs out twice, the second time after freeing it."""
        items = _items(name, tensors)
        for _ in range(2):
            try:
                copies: dict[str, dict[str, Tensor]] = {group: {} for group in tensors}
                for key, value in items:
                    _, group, tensor = key
                    buffer = self._buffer(key, value)
                    copies[group][tensor] = buffer.copy_(value, non_blocking=True)
                if any(value.is_cuda for _, value in items):
                    torch.cuda.synchronize()
                return copies
            except Exception as error:
                if not memory.is_oom(error):
                    raise
            self._join()
            self._buffers.clear()
            memory.clear_memory()
        return None

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
        with self._thread:
            self._join()


def _items(kind: str, tensors: Tensors) -> list[tuple[Key, Tensor]]:
    items: list[tuple[Key, Tensor]] = []
    for group, named in tensors.items():
        items += [((kind, group, name), value.detach()) for name, value in named.items()]
    return items
