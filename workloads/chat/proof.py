"""Proves that an untrusted template ends, in bounded memory, and is deterministic."""

import contextlib
import os
import resource
import select
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from lib.errors import BadInput

SECONDS = 10.0  # for a rendering, and for a whole proof
_MOST_BYTES = 2**30  # that a proof may take
_MOST_TEXT = 2**20  # bytes of a proof's result
_ADVICE = (
    "Take the chat_template.jinja of another copy of this base, or another base (workload.base)"
)
_proved: set[str] = set()  # keys of renderings that this process has proved


def prove(key: str, renderings: Callable[[], list[str]]) -> None:
    """Renders twice in a separate process, once for each key. Raises BadInput for unusable renderings.

    The process is a fork, which has the compiled template, and uses no thread, lock or device.
    """
    if key in _proved:
        return
    answer = _in_fork(renderings)
    if answer is None:
        raise BadInput(
            f"The chat template of the base does not end within {SECONDS:g} seconds. {_ADVICE}."
        )
    if answer:
        raise BadInput(f"The chat template of the base {answer}. {_ADVICE}.")
    _proved.add(key)


def _in_fork(renderings: Callable[[], list[str]]) -> str | None:
    """Returns the problem of renderings, "" for usable ones, None if they do not end."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads
        process = os.fork()
    if not process:
        _answer(writer, renderings)
    os.close(writer)
    try:
        is_ready = bool(select.select([reader], [], [], SECONDS)[0])
        if is_ready:
            return os.read(reader, _MOST_TEXT).decode()
        return None
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _answer(writer: int, renderings: Callable[[], list[str]]) -> None:
    """Renders in bounded memory, writes the problem, and ends the process."""
    try:
        _limit_memory()
        first = renderings()
        second = renderings()
        what = "" if first == second else "writes the same conversation otherwise each time"
    except MemoryError:
        what = f"takes more than {_MOST_BYTES / 2**30:g} GiB of memory"
    except BaseException as error:
        what = f"cannot be used ({type(error).__name__})"
    os.write(writer, what.encode("utf-8", "replace"))
    os._exit(0)


def _limit_memory() -> None:
    with contextlib.suppress(OSError, ValueError):  # a system without /proc, or a lower limit
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        most = pages * resource.getpagesize() + _MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises BadInput inside a block that takes too long, if in the main thread, which has signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_: int, __: FrameType | None) -> None:
        raise BadInput(
            f"The chat template of the base does not end within {SECONDS:g} seconds. {_ADVICE}."
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
