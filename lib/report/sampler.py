"""Samples the machine while it trains: a thread reads GPU and RAM every second for metrics.csv."""

import threading
from collections import defaultdict
from collections.abc import Callable

import torch

from lib.machine import hardware
from lib.report.printing import Informing

SECONDS = 1.0  # a reading takes a quarter of a millisecond of CPU
WAIT_LIMIT = 0.2  # share of the time that waiting for data may take
# Consecutive rows above it; a single one may be an epoch's end or a neighbour on the machine
WAIT_ROWS = 3
RAM_LIMIT = 0.8

# By column of metrics.csv; only RAM without a GPU, or if it cannot be read
Sample = dict[str, float]


def new_probe() -> Callable[[], Sample]:
    """Returns a reader of RAM, by the container's limit, and of this process's GPU."""
    # another thread's is the first
    index = torch.cuda.current_device() if torch.cuda.is_available() else 0
    # NVML is opened here, not on the sampler's thread: a loader worker that is forked while another
    # thread imports a module would wait for the import lock for ever
    gpus = [hardware.gpu_reader(index)] if torch.cuda.is_available() else []

    def probe() -> Sample:
        ram = hardware.ram()
        sample = {"ram_share": (ram.total - ram.available) / ram.total}
        try:
            for load in (read() for read in gpus):
                if load.use is not None:
                    sample["gpu_use"] = load.use
                sample["gpu_memory_bytes"] = load.used  # of all processes
                sample["gpu_allocated_bytes"] = torch.cuda.memory_allocated(index)
                sample["gpu_reserved_bytes"] = torch.cuda.memory_reserved(index)
        except Exception:  # a driver's errors are of many classes
            gpus.clear()
        return sample

    return probe


class Sampler:
    """Runs `probe` every second on a thread while the `with` block lasts."""

    def __init__(self, probe: Callable[[], Sample] | None = None):
        self._guard = Informing("reading GPU and RAM")
        self._probe = probe or new_probe()
        self._ended = threading.Event()
        self._samples: list[Sample] = []  # since the last row
        self._last: list[Sample] = []
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(timeout=2.0)  # a driver that hangs must not hold the run

    def _run(self) -> None:
        with self._guard:
            while not self._ended.wait(SECONDS):
                sample = self._probe()
                # to the list of now: a row may have begun a new one meanwhile
                self._samples.append(sample)

    def row(self) -> dict[str, float]:
        """Returns mean use of the GPU and peak memory since the last row, or the last ones again."""
        with self._guard:
            if not (self._samples or self._last):
                # the first row may come before the first second has passed
                self._samples.append(self._probe())
        samples = self._samples or self._last
        self._samples = []
        self._last = samples[-1:]
        columns = defaultdict[str, list[float]](list)
        for sample in samples:
            for name, value in sample.items():
                columns[name].append(value)
        row = {}
        for name, values in columns.items():
            value = sum(values) / len(values) if name == "gpu_use" else max(values)
            row[name] = round(value, 4)
        return row


class Advice:
    """Says once a session what to do about rows that look bad."""

    def __init__(self, workers: int):
        self.workers = workers  # that load data
        self._waiting_rows = -1  # the first row has the start of the workers in it
        self._printed: set[str] = set()

    def lines(self, row: dict[str, float]) -> list[str]:
        """Returns new sentences about a row."""
        waited = row.get("data_wait_share", 0.0)
        ram = row.get("ram_share", 0.0)
        if waited > WAIT_LIMIT and self._waiting_rows >= 0:
            self._waiting_rows += 1
        else:
            self._waiting_rows = 0
        sentences = {}
        workers = f"data.num_workers (now {self.workers})"
        if self._waiting_rows >= WAIT_ROWS:
            sentences["wait"] = (
                f"Training waits for data {waited:.0%} of the time. Raise {workers}; "
                "0 workers are best where samples take no time."
            )
        if ram > RAM_LIMIT:
            sentences["ram"] = (
                f"RAM is {ram:.0%} full; at 100 % the system kills the run. Lower {workers}, "
                "or close other notebooks."
            )
        new = [sentence for name, sentence in sentences.items() if name not in self._printed]
        self._printed |= sentences.keys()
        return new
