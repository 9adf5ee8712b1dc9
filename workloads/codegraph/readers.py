"""The processes that read source files: one for each CPU, which a file may crash, stall or fill."""

import io
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from lib.errors import TrainingFailed, printable
from lib.machine import hardware
from workloads.codegraph import child

_PROGRAM = Path(child.__file__)  # imported, so that a notebook carries it
_MOST_SECONDS = 60.0  # of CPU time for a file; 1 MiB takes 2.5
_MOST_PROCESSES = 8
_FILES_EACH = 100  # of which reading takes longer than a process takes to start
Job = TypeVar("Job")


class Lost(str):
    """Stands for the answer to a job that has none, and says why."""


def run(name: str, jobs: Sequence[Job], arguments: Callable[[Job], tuple[Any, ...]], processes: int = 0) -> list[Any]:
    """Returns the answers of a function of `child` to jobs, in their order; `arguments` makes its arguments of a job.

    A job that ends its process, or needs too much memory or CPU time (SIGVTALRM), has a Lost as its answer. The number
    of processes, 0 for one a CPU, changes no answer. Raises TrainingFailed if no process starts.
    """
    chunks = [jobs[begin : begin + _FILES_EACH] for begin in range(0, len(jobs), _FILES_EACH)]
    pool = ThreadPoolExecutor(processes or max(1, min(int(hardware.cpus()), _MOST_PROCESSES)))
    try:
        parts = pool.map(lambda chunk: _answers(name, [arguments(job) for job in chunk]), chunks)
        return [answer for part in parts for answer in part]
    finally:
        pool.shutdown(cancel_futures=True)


def _answers(name: str, jobs: list[tuple[Any, ...]]) -> list[Any]:
    """Has a process answer the jobs, and another one the jobs that are left behind one that ends it."""
    answers: list[Any] = []
    while len(answers) < len(jobs):
        command = [sys.executable, "-I", "-S", str(_PROGRAM)]  # without site-packages the start takes 20 ms
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = process.communicate(pickle.dumps((name, _MOST_SECONDS, jobs[len(answers) :]), 5))
        stream, pickles = io.BytesIO(output), []
        with suppress(EOFError, ValueError, pickle.UnpicklingError):  # at its end, or where it is cut off
            while True:
                pickles.append(pickle.load(stream))
        last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        why = f"ends the process with code {process.returncode}: {last}"
        if process.returncode < 0:
            why = f"ends the process by {signal.Signals(-process.returncode).name}"
        if not pickles:
            raise TrainingFailed(f"The process that reads source files does not start: it {printable(why, most=300)}.")
        for answer in pickles[1:]:
            is_error = isinstance(answer, BaseException)
            answers.append(Lost(f"reading it ends with {type(answer).__name__}") if is_error else answer)
        if len(answers) < len(jobs):
            answers.append(Lost(printable(f"reading it {why}", most=300)))
    return answers
