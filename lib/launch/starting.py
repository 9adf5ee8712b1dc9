"""Whether ranks that start are alive: until its first step a rank that waits for ever looks like one that is slow."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from lib.ranks import boot

# Without a sign of life from a rank that starts. A thread of its own gives one every second, however long imports and
# data take. Only loading a large library holds that thread up, and meanwhile the process uses the CPU or the disk.
SILENT_SECONDS = 60.0
_LOOK_SECONDS = 1.0  # of silence that one look may count: a machine that was asleep gives everyone time to answer


class Signs:
    """The signs of life of the ranks of one launch, in its folder and from the system."""

    def __init__(self, place: Path):
        self.place = place
        self._shown: dict[int, Any] = {}
        self._silent: dict[int, float] = {}
        self._looked = time.monotonic()

    def look(self, ranks: Mapping[int, psutil.Process]) -> str:
        """Returns a sentence on a rank that has shown no sign of life for SILENT_SECONDS; empty while there is none."""
        now = time.monotonic()
        passed = min(now - self._looked, _LOOK_SECONDS)
        self._looked = now
        for number, process in ranks.items():
            stage = boot.read_stage(self.place, number)
            shown = None if stage == boot.TRAINING else self._sign(number, process)
            is_alive = stage == boot.TRAINING or shown != self._shown.get(number)
            self._shown[number] = shown
            self._silent[number] = 0.0 if is_alive else self._silent.get(number, 0.0) + passed
            if self._silent[number] >= SILENT_SECONDS:
                where = f"in the stage {stage!r}" if stage else "before its first line"
                return (
                    f"Rank {number} hung while it started, {where}: it gave no sign of life for {SILENT_SECONDS:.0f} s."
                )
        return ""

    def _sign(self, number: int, process: psutil.Process) -> Any:
        """Returns what changes while a rank lives: the time of its last touch, CPU time, and bytes from the disk."""
        with contextlib.suppress(OSError, psutil.Error):
            path = self.place / f"alive-{number}"
            touched = path.stat().st_mtime_ns if path.exists() else 0
            times = process.cpu_times()
            read = process.io_counters().read_bytes if hasattr(process, "io_counters") else 0  # not on macOS
            return touched, times.user + times.system, read
        return time.monotonic()  # it has just ended, which is seen elsewhere
