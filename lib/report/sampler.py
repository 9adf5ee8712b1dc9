"""What the machine does while it trains: a thread reads GPU and RAM every second, rows of metrics.csv say it."""

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import psutil
import torch

from lib.machine.hardware import nvml_reader, torch_reading

SECONDS = 1.0  # a reading takes about 0.1 ms, so a ten-thousandth of one core
WAIT_LIMIT = 0.2  # share of the time that waiting for data may take
WAIT_ROWS = 3  # rows in a row above it; one alone may be an epoch's end or a neighbour on the machine
RAM_LIMIT = 0.8


@dataclass(frozen=True)
class Sample:
    """One reading; None where there is no GPU, or none that says how busy it is."""

    ram_share: float
    gpu_use: float | None = None
    gpu_memory_bytes: int | None = None


class Probe:
    """Reads RAM and this process's GPU: by NVML where it answers (it sees other processes too), by torch otherwise.

    What fails is not asked again, and never breaks a run. NVML is opened here, on the thread that makes the probe: a
    loader worker that is forked while another thread imports a module would wait for the import lock for ever.
    """

    def __init__(self) -> None:
        self._readers: list[Callable[[], tuple[float | None, int]]] = []
        if torch.cuda.is_available():
            index = torch.cuda.current_device()
            with contextlib.suppress(Exception):  # no NVML in the image, or a driver that refuses it
                self._readers.append(nvml_reader(index))
            self._readers.append(lambda: torch_reading(index))

    def __call__(self) -> Sample:
        ram = psutil.virtual_memory()
        share = (ram.total - ram.available) / ram.total
        while self._readers:
            try:
                return Sample(share, *self._readers[0]())
            except Exception:  # a driver's errors are of many classes
                del self._readers[0]
        return Sample(share)


class Sampler:
    """Runs `probe` every `seconds` on a thread of its own while the `with` block lasts, errors included.

    `wait(seconds)` sleeps and says whether to end; tests give one that does not sleep.
    """

    def __init__(
        self,
        probe: Callable[[], Sample] | None = None,
        seconds: float = SECONDS,
        wait: Callable[[float], bool] | None = None,
    ):
        self._probe = probe or Probe()
        self._ended = threading.Event()
        self._seconds, self._wait = seconds, wait or self._ended.wait
        self._lock = threading.Lock()
        self._taken: list[Sample] = []  # since the last row
        self._last: Sample | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(timeout=2.0)  # a driver that hangs must not hold the run

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # a machine that cannot be read costs columns, never the run
            while not self._ended.is_set() and not self._wait(self._seconds):
                self.sample()

    def sample(self) -> None:
        """Takes one reading."""
        found = self._probe()
        with self._lock:
            self._taken.append(found)

    def row(self) -> dict[str, float]:
        """Since the last row: mean use of the GPU, highest memory of GPU and RAM; where no second passed, as before."""
        with contextlib.suppress(Exception):
            if self._last is None and not self._taken:
                self.sample()  # the first row may come before the first second has passed
        with self._lock:
            taken, self._taken = self._taken or ([self._last] if self._last else []), []
        if not taken:
            return {}
        self._last = taken[-1]
        use = [s.gpu_use for s in taken if s.gpu_use is not None]
        memory = [s.gpu_memory_bytes for s in taken if s.gpu_memory_bytes is not None]
        found: dict[str, float] = {"ram_share": round(max(s.ram_share for s in taken), 4)}
        if use:
            found["gpu_use"] = round(sum(use) / len(use), 4)
        if memory:
            found["gpu_memory_bytes"] = max(memory)
        return found


class Advice:
    """What to do about rows that look bad, each sentence once a session."""

    def __init__(self, workers: int, cpus: int | None = None):
        self.workers, self.cpus = workers, cpus or os.cpu_count() or 1
        self._waiting_rows = 0
        self._first = True
        self._said: set[str] = set()

    def lines(self, row: dict[str, float]) -> list[str]:
        """The sentences that a row gives rise to. The first row has the start of the workers in it and is left out."""
        waits = row.get("data_wait_share", 0.0) > WAIT_LIMIT and not self._first
        self._waiting_rows = self._waiting_rows + 1 if waits else 0
        self._first = False
        found = {}
        if self._waiting_rows >= WAIT_ROWS:
            found["wait"] = f"Training waits for data {row['data_wait_share']:.0%} of the time. {self._about_loading()}"
        if row.get("ram_share", 0.0) > RAM_LIMIT:
            found["ram"] = (
                f"RAM is {row['ram_share']:.0%} full; at 100 % the system kills the run. Lower data.num_workers "
                f"(now {self.workers}) or data.prefetch_factor, or close other notebooks."
            )
        new = [text for name, text in found.items() if name not in self._said]
        self._said |= found.keys()
        return new

    def _about_loading(self) -> str:
        most = max(1, self.cpus - 1)
        if self.workers < most:
            return f"Raise data.num_workers from {self.workers} to {most} (this machine has {self.cpus} CPUs)."
        return (
            f"All {self.cpus} CPUs load already (data.num_workers {self.workers}): raise data.prefetch_factor against "
            "stretches of slow samples, or prepare samples beforehand."
        )
