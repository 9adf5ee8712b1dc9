"""Takes figures from a command's output into metrics.csv, with the memory and use of the machine."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from lib.report.metrics import MetricsLog

ROW_SECONDS = 10.0  # between rows of a command whose output has no figures
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # of Linux, and of Linux below Windows
_COUNTS = ("step", "epoch")  # figures that count the rows; the first one found is used
_NAME = re.compile(r"[A-Za-z_][\w./-]*")


class Figures:
    """Reads lines of output by patterns with one group each; the name is the first word of a pattern.

    Without a figure called step or epoch, rows are counted by the seconds of all sessions. `step` is
    the one that an earlier session ended at.
    """

    def __init__(self, patterns: Sequence[str], rows: MetricsLog, step: int = 0):
        self._patterns = {name_of(pattern): re.compile(pattern) for pattern in patterns}
        self._rows = rows
        self._row: dict[str, float] = {}
        self._lock = threading.Lock()  # lines come from the thread that reads them
        self._begun = self._written = time.monotonic()
        self._load = _gpu_load()
        self.latest: dict[str, float] = {}
        self._seen: set[str] = set()
        self.step = self._first = step
        counts = [name for name in _COUNTS if name in self._patterns]
        self._count = counts[0] if counts else ""

    def take(self, line: str) -> None:
        """Takes the figures of a line. A figure that comes again begins a new row."""
        for name, pattern in self._patterns.items():
            match = pattern.search(line)
            value = _number(match[1]) if match else None
            if value is None:
                continue
            with self._lock:
                if name in self._row:
                    self._write()
                self._row[name] = value
                self._seen.add(name)

    def unmatched(self) -> list[str]:
        """Lists the patterns that no line of the output had a number for."""
        return [p.pattern for name, p in self._patterns.items() if name not in self._seen]

    def sample(self) -> None:
        """Writes a row of the machine's load if the output has had no figure for a while."""
        if time.monotonic() - self._written >= ROW_SECONDS:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        seconds = self._written - self._begun
        values = dict(self._row)
        otherwise = self.step if self._count else self._first + seconds
        self.step = int(values.pop(self._count, otherwise))
        self.latest |= values
        machine = {"ram_share": psutil.virtual_memory().percent / 100, **self._load()}
        row: dict[str, Any] = {
            "step": self.step,
            "split": "train",
            **values,
            "elapsed_seconds": round(seconds, 1),
        }
        self._rows.append({**row, **machine})
        self._row = {}


def name_of(pattern: str) -> str:
    match = _NAME.match(pattern)
    return match[0].rstrip("./-") if match else pattern


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(text.rstrip(",;%)"))
    return None


def _gpu_load() -> Callable[[], dict[str, Any]]:
    """Returns a function that reads the use and memory of all GPUs by NVML; without one it reads nothing.

    torch is not asked: its import takes seconds, which the command needs. Nor is NVML where there is
    no driver: a twentieth of a second.
    """
    if not any(map(os.path.exists, _DRIVERS)):
        return dict
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
    except Exception:  # no package, no driver; errors of many classes
        return dict

    def read() -> dict[str, Any]:
        try:
            loads = [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles]
            used = [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]
        except Exception:
            return {}
        return {"gpu_use": sum(loads) / len(loads) / 100, "gpu_memory_bytes": sum(map(int, used))}

    return read
