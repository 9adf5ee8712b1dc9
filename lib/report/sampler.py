"""Samples what the machine does while it trains: a thread reads GPU and RAM every second for rows of metrics.csv."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import torch

from lib import ranks
from lib.machine import hardware
from lib.report.printing import Informing

SECONDS = 1.0  # a reading takes 0.15 ms of CPU, so a seven-thousandth of one core
WAIT_LIMIT = 0.2  # share of the time that waiting for data may take
WAIT_ROWS = 3  # rows in a row above it; one alone may be an epoch's end or a neighbour on the machine
RAM_LIMIT = 0.8


@dataclass(frozen=True)
class Sample:
    """One reading; None where there is no GPU, or none that says how busy it is."""

    ram_share: float
    gpu_use: float | None = None
    gpu_memory_bytes: int | None = None  # of all processes
    gpu_allocated_bytes: int | None = None  # by this one, in tensors
    gpu_reserved_bytes: int | None = None  # by this one's allocator


class Probe:
    """Reads RAM, by the container's limit where it has one, and this process's GPU.

    A GPU that cannot be read is not asked again, and never breaks a run. NVML is opened here, on the thread that makes
    the probe: a loader worker that is forked while another thread imports a module would wait for the import lock for
    ever.
    """

    def __init__(self) -> None:
        self._index = torch.cuda.current_device() if torch.cuda.is_available() else 0  # another thread's is the first
        self._gpu = hardware.gpu_reader(self._index) if torch.cuda.is_available() else None

    def __call__(self) -> Sample:
        ram = hardware.ram()
        share = (ram.total - ram.available) / ram.total
        if self._gpu:
            try:
                load = self._gpu()
                own = torch.cuda.memory_allocated(self._index), torch.cuda.memory_reserved(self._index)
                return Sample(share, load.use, load.used, *own)
            except Exception:  # a driver's errors are of many classes
                self._gpu = None
        return Sample(share)


class Sampler:
    """Runs `probe` every second on a thread of its own for as long as the `with` block lasts.

    `wait(seconds)` sleeps and returns whether to end; tests give one that does not sleep.
    """

    def __init__(self, probe: Callable[[], Sample] | None = None, wait: Callable[[float], bool] | None = None):
        self._guard = Informing("reading GPU and RAM")
        self._probe = probe or Probe()
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._lock = threading.Lock()
        self._samples: list[Sample] = []  # since the last row
        self._last: Sample | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(timeout=2.0)  # a driver that hangs must not hold the run

    def _run(self) -> None:
        with self._guard:
            while not self._ended.is_set() and not self._wait(SECONDS):
                self.sample()

    def sample(self) -> None:
        """Takes one reading."""
        sample = self._probe()
        with self._lock:
            self._samples.append(sample)

    def row(self) -> dict[str, float]:
        """Returns the mean use of the GPU, and the highest memory of GPU and RAM, since the last row.

        If no second has passed since then, it returns the last values again.
        """
        with self._guard:
            if self._last is None and not self._samples:
                self.sample()  # the first row may come before the first second has passed
        with self._lock:
            samples, self._samples = self._samples or ([self._last] if self._last else []), []
        if not samples:
            return {}
        self._last = samples[-1]
        row: dict[str, float] = {"ram_share": round(max(s.ram_share for s in samples), 4)}
        if use := [s.gpu_use for s in samples if s.gpu_use is not None]:
            row["gpu_use"] = round(sum(use) / len(use), 4)
        for name in ("gpu_memory_bytes", "gpu_allocated_bytes", "gpu_reserved_bytes"):
            if sizes := [size for s in samples if (size := getattr(s, name)) is not None]:
                row[name] = max(sizes)
        return row


class Advice:
    """Says what to do about rows that look bad; each sentence once a session.

    `most` returns how many loader workers this process may have; by default as many as its share of the CPUs.
    `is_cheap` returns whether this process makes a batch faster than a worker hands it over.
    """

    def __init__(
        self, workers: int, most: Callable[[], int] | None = None, is_cheap: Callable[[], bool] = lambda: False
    ):
        self.workers = workers
        self._guard = Informing("the advice")
        self._is_cheap = is_cheap
        self._most = most or (lambda: hardware.cpus_per_process(ranks.local_world()))
        self._waiting_rows = 0
        self._first = True
        self._printed: set[str] = set()

    def lines(self, row: dict[str, float]) -> list[str]:
        """Returns new sentences about a row. The first row has the start of the workers in it and is left out."""
        with self._guard:
            return self._lines(row)
        return []

    def _lines(self, row: dict[str, float]) -> list[str]:
        waits = row.get("data_wait_share", 0.0) > WAIT_LIMIT and not self._first
        self._waiting_rows = self._waiting_rows + 1 if waits else 0
        self._first = False
        sentences = {}
        if self._waiting_rows >= WAIT_ROWS:
            most = self._most()
            advice = (
                f"A batch is made faster than a worker hands it over: set data.num_workers to 0 (now {self.workers})."
                if self.workers and self._is_cheap()
                else f"Raise data.num_workers from {self.workers} to {most}, the most that this process may have."
                if self.workers < most
                else f"It has all the loader workers that the CPUs allow (data.num_workers {self.workers}): raise "
                "data.prefetch_factor against stretches of slow samples, or prepare samples beforehand."
            )
            sentences["wait"] = f"Training waits for data {row['data_wait_share']:.0%} of the time. {advice}"
        if row.get("ram_share", 0.0) > RAM_LIMIT:
            sentences["ram"] = (
                f"RAM is {row['ram_share']:.0%} full; at 100 % the system kills the run. Lower data.num_workers "
                f"(now {self.workers}) or data.prefetch_factor, or close other notebooks."
            )
        new = [text for name, text in sentences.items() if name not in self._printed]
        self._printed |= sentences.keys()
        return new
