"""Keeps the checkpoints that a run is to keep, and makes room for another one."""

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from lib import checkpoint
from lib.checkpoint import CheckpointNotSaved
from lib.config import Checkpoint
from lib.machine import disk, platform
from lib.text import amount


class Retention:
    """Keeps the newest checkpoints and the best weights of the run in `folder`, within the platform's limits.

    It deletes only folders that are named like a checkpoint and have a manifest, and never the last good one.
    """

    def __init__(self, folder: Path, options: Checkpoint):
        self.folder, self.options = folder, options
        here = platform.detect()
        inside = here.output_dir.resolve() in folder.resolve().parents
        self._output_dir = here.output_dir if inside else folder.parent
        self._output_bytes = here.output_bytes
        self._kept_bytes, self._kept_files = options.keep_bytes or here.output_bytes, here.output_files

    def make_room(self, name: str, parcel: checkpoint.Parcel) -> None:
        """Deletes what this save replaces, if it does not fit otherwise. Raises CheckpointNotSaved if it cannot fit."""
        if parcel.size > self.available():
            checkpoint.tidy(self.folder / name)  # a failed save may have left its own
        if parcel.size > self.available() and name == "checkpoints":
            steps, keep = self._written(name), max(1, self.options.keep_last - 1)
            if steps[:-keep] and any(map(self._is_good, reversed(steps[-keep:]))):
                self._drop_oldest(steps, keep, lambda: parcel.size <= self.available())
        if parcel.size > (available := self.available()):
            raise CheckpointNotSaved(
                f"The checkpoint of step {parcel.step:,} was not saved in {self.folder / name}: it needs "
                f"{amount(parcel.size)}, and {amount(max(0, available))} are available in {self._output_dir}. Delete "
                "files there, or lower checkpoint.keep_last or checkpoint.keep_best. Those saved before are untouched."
            )

    def available(self) -> int:
        """Returns the bytes that can be written, by the disk and by the platform's limit on the output folder."""
        folder = next(p for p in (self.folder, *self.folder.absolute().parents) if p.is_dir())
        free = shutil.disk_usage(folder).free
        if self._output_bytes is None:
            return free
        return min(free, self._output_bytes - disk.held(self._output_dir)[0])

    def after_checkpoint(self, step: int, best: Collection[int]) -> None:
        """Deletes, after a step was saved, all but the last and the best ones, and more to stay within the budget."""
        try:
            # What was just saved counts as the newest, also in a run that was taken back to an earlier step.
            steps = [s for s in self._written("checkpoints") if s != step] + [step]
            self._drop_oldest(steps, self.options.keep_last, lambda: False)
            self.keep_best(best)
            self._drop_oldest(steps[-self.options.keep_last :], 1, self._within_budget)
        except OSError as error:
            print(f"Could not look for old checkpoints in {self.folder} ({error}); they stay.", flush=True)

    def keep_best(self, best: Collection[int]) -> None:
        """Deletes the weights of all other steps."""
        for step in self._written("best"):
            if step not in best:
                disk.discard(checkpoint.path_of(self.folder / "best", step))

    def _within_budget(self) -> bool:
        pairs = [disk.held(self.folder / name) for name in ("checkpoints", "best")]
        size, number = (sum(column) for column in zip(*pairs, strict=True))
        return size <= (self._kept_bytes or size) and number <= (self._kept_files or number)

    def _drop_oldest(self, steps: list[int], keep: int, enough: Callable[[], bool]) -> None:
        """Deletes checkpoints, oldest first, until there is `enough` room or `keep` are left."""
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
        return [s for s in checkpoint.steps(folder) if (checkpoint.path_of(folder, s) / checkpoint.MANIFEST).is_file()]
