"""A command as a child process: its output passes through and is kept, and no descendant outlives it."""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import psutil

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans of the command become our children
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_LAST_LINES = 20
_SHELLS = {"bash", "dash", "sh", "zsh"}
_LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch"}
_CHUNK = 2**16


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Has this process get a signal when the one that started it ends, however that ends."""
    _prctl(_DEATH_SIGNAL, number)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


class Child:
    """A started command. `on_line` gets each whole line of its output."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        on_line: Callable[[str], None],
    ):
        _prctl(_SUBREAPER, 1)
        self._on_line = on_line
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._log = log.open("ab", buffering=0)
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C of a terminal comes here first
            preexec_fn=die_with_parent,
        )
        self._ending = _watched(self.process.pid)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        output: BinaryIO = self.process.stdout  # type: ignore[assignment]
        rest = b""
        while chunk := os.read(output.fileno(), _CHUNK):
            with contextlib.suppress(OSError, ValueError):  # the reader has gone
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
            with contextlib.suppress(OSError):  # a full disk ends no command
                self._log.write(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(line)
        self._take(rest)

    def _take(self, line: bytes) -> None:
        """Takes a line. A bar of progress overwrites itself: all its states count, the last is kept."""
        states = [state for state in line.decode("utf-8", "replace").split("\r") if state.strip()]
        for state in states:
            self._on_line(state)
        self.last_lines.extend(states[-1:])

    def wait(self, seconds: float) -> int | None:
        """Waits for the end of the command; returns its exit code, None while it runs."""
        if self._ending is not None:  # one wake-up; Popen.wait looks again forty times a second
            poller = select.poll()
            poller.register(self._ending, select.POLLIN)
            poller.poll(1000 * seconds)
            return self.process.poll()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the command and all its descendants, in whatever sessions they are."""
        for process in self.descendants():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def ask(self, number: signal.Signals) -> None:
        """Sends a signal to the program of the command; not to its workers, which it needs to save.

        A shell passes no signal on, and torchrun kills its ranks 30 s after it got one: their children
        get it in their place.
        """
        with contextlib.suppress(psutil.Error):
            main = psutil.Process(self.process.pid)
            targets = [main]
            if main.name() in _SHELLS or _LAUNCHERS & {*main.cmdline()}:
                targets = main.children() or targets
            for process in targets:
                process.send_signal(number)

    def descendants(self) -> list[psutil.Process]:
        """Lists the living processes below this one: the command, its children, and orphans of these."""
        with contextlib.suppress(psutil.Error):
            below = psutil.Process().children(recursive=True)
            return [each for each in below if _is_alive(each)]
        return []

    def end(self, patience: float) -> int:
        """Waits for descendants that end by themselves, kills the others, and returns how many that were."""
        _, alive = psutil.wait_procs(self.descendants(), timeout=patience)
        killed = 0
        while alive:
            killed += len(alive)
            for process in alive:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(alive, timeout=5)
            alive = self.descendants()
        _reap()
        self._reader.join(timeout=5)
        self._log.close()
        if self._ending is not None:
            os.close(self._ending)
            self._ending = None
        return killed


def _watched(pid: int) -> int | None:
    """Returns a file descriptor that is readable once a process has ended; None on systems without pidfd."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def _reap() -> None:
    """Collects the exit codes of orphans, which are our children since their parents ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@contextlib.contextmanager
def handling(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handles SIGINT and SIGTERM in the block."""
    former = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
