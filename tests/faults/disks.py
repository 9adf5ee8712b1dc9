"""Disks that fail, tear or kill at operation n, and one that writes down what is asked of it."""

import errno
import os
import signal
import threading
from pathlib import Path

from lib.machine.disk import Disk

OPERATIONS = ("mkdir", "create", "write", "sync", "sync_folder", "rename", "remove")
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
FULL = "ENOSPC from then on"
FAULTS = ("kill", "tear", *ERRORS, FULL)
_COUNTED = {"tear": ("write",), FULL: ("mkdir", "create", "write")}


class Counting(Disk):
    """Numbers the operations in `counted` 1, 2, 3 ... and calls `act(name, arguments)` before each."""

    counted: tuple[str, ...] = OPERATIONS

    def __init__(self):
        self.number, self._lock = 0, threading.Lock()
        for name in OPERATIONS:
            setattr(self, name, self._counted(name, getattr(super(), name)))

    def _counted(self, name, original):
        def run(*arguments):
            with self._lock:
                if name in self.counted:
                    self.number += 1
                    self.act(name, arguments)
            return original(*arguments)

        return run

    def act(self, name, arguments):
        pass


class Faulty(Counting):
    """Operation `at` fails: "kill" before it, "tear" after half of a write, or an error, which stays on a full disk.

    The file `mark` tells the parent process that it happened.
    """

    def __init__(self, at: int, fault: str, mark: Path):
        super().__init__()
        self.at, self.fault, self.mark = at, fault, mark
        self.counted = _COUNTED.get(fault, OPERATIONS)

    def act(self, name, arguments):
        if self.number < self.at or (self.number > self.at and self.fault != FULL):
            return
        if not self.mark.exists():
            self.mark.write_text(name)
        if self.fault == FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.fault in ERRORS:
            raise OSError(ERRORS[self.fault], os.strerror(ERRORS[self.fault]))
        if self.fault == "tear":
            handle, data, _ = arguments
            os.write(handle, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)


class Recorder(Disk):
    """Notes every operation with its paths and data, and lets it happen."""

    def __init__(self):
        self.log: list[tuple] = []
        for name in OPERATIONS:
            setattr(self, name, self._noted(name, getattr(super(), name)))

    def _noted(self, name, original):
        def run(*arguments):
            if name == "write":
                _, data, path = arguments
                self.log.append((name, path, bytes(data)))
            else:
                self.log.append((name, *(each for each in arguments if not isinstance(each, int))))  # without handles
            return original(*arguments)

        return run
