"""The processes that read source files: one for each CPU, which a file may crash, stall or fill."""

import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from lib.errors import TrainingFailed, printable
from lib.machine import hardware
from workloads.codegraph import child

_PROGRAM = Path(child.__file__)  # imported, so that a notebook carries it
_MOST_SECONDS = 60.0  # of CPU time for a file; 1 MiB takes 2.5
_MOST_PROCESSES = 8
_FILES_EACH = 50  # of which reading takes longer than another process takes to start


class Lost(NamedTuple):
    """Stands for the answer to a job that has none, and says why."""

    reason: str


class _Reader:
    """One process. `begun` is the CPU time that it had used when its job began; None while it has none."""

    def __init__(self) -> None:
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        command = [sys.executable, "-I", "-S", str(_PROGRAM)]  # without site-packages the start takes 20 ms
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said)
        self.begun: float | None = None
        self.is_late = False

    def wait_for_start(self) -> "_Reader":
        if isinstance(ready := self._load(), Lost):
            raise TrainingFailed(f"The process that reads source files does not start: {ready.reason}.")
        return self

    def ask(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Returns the answer of a function of `child`, or Lost."""
        self.begun = self.seconds()
        with suppress(OSError):  # it has ended, which the reading finds
            self.process.stdin.write(pickle.dumps((name, arguments), 5))  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
        answer = self._load()
        self.begun = None
        if isinstance(answer, BaseException):
            return Lost(f"reading it ends with {type(answer).__name__}")
        return answer

    def _load(self) -> Any:
        try:
            return pickle.load(self.process.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # the process has ended
            return Lost(self._why())

    def _why(self) -> str:
        self.process.kill()
        code = self.process.wait()
        if self.is_late:
            return f"reading it takes more than {_MOST_SECONDS:g} s of CPU time"
        if code < 0:
            return f"reading it ends the process by {signal.Signals(-code).name}"
        self.said.seek(0)
        last = self.said.read()[-2000:].decode("utf-8", "replace").strip().rpartition("\n")[2]
        return printable(f"reading it ends the process with code {code}: {last}", most=300)

    def seconds(self) -> float:
        """Returns the CPU time that the process has used: of a machine under load it says more than a clock."""
        with suppress(psutil.Error):
            times = psutil.Process(self.process.pid).cpu_times()
            return float(times.user + times.system)
        return 0.0

    def end_if_late(self) -> None:
        begun = self.begun
        if begun is not None and self.seconds() - begun > _MOST_SECONDS:
            self.is_late = True
            self.process.kill()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class _Work:
    """The jobs that are left, the answers to the others, and the processes that have work."""

    def __init__(self, name: str, jobs: Iterable[tuple[Any, ...]], count: int):
        self.name, self.waiting = name, iter(enumerate(jobs))
        self.answers: list[Any] = [None] * count
        self.readers: list[_Reader] = []
        self.failures: list[BaseException] = []
        self.lock = threading.Lock()

    def next(self) -> tuple[int, tuple[Any, ...]] | None:
        with self.lock:
            return next(self.waiting, None)

    def start(self) -> _Reader:
        reader = _Reader()
        self.readers.append(reader)
        return reader.wait_for_start()

    def serve(self) -> None:
        """Has one process answer jobs until there are none, and another one after each that ends it."""
        try:
            reader = self.start()
            while job := self.next():
                number, arguments = job
                self.answers[number] = answer = reader.ask(self.name, arguments)
                if isinstance(answer, Lost):
                    reader.end()
                    reader = self.start()
        except BaseException as error:
            self.failures.append(error)


def run(name: str, jobs: Iterable[tuple[Any, ...]], count: int, processes: int = 0) -> list[Any]:
    """Returns the answers of a function of `child` to `count` jobs, which are its arguments, in their order.

    A job that ends its process, needs too much memory or more than a minute of CPU time has a Lost as its answer. The
    number of processes, 0 for one a CPU, changes no answer. Raises TrainingFailed where none starts.
    """
    many = processes or max(1, min(int(hardware.cpus()), _MOST_PROCESSES, -(-count // _FILES_EACH)))
    work = _Work(name, jobs, count)
    threads = [threading.Thread(target=work.serve, daemon=True) for _ in range(min(many, count))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(min(1.0, _MOST_SECONDS / 4))
                for reader in tuple(work.readers):
                    reader.end_if_late()
    finally:
        for reader in tuple(work.readers):
            reader.end()
    if work.failures:
        raise work.failures[0]
    return work.answers
