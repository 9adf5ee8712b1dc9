"""The session's clock: when it ends, what still fits into it, and the signals that ask for a stop."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Literal

import psutil

from lib import ranks
from lib.config import environment
from lib.machine import platform

Reason = Literal["completed", "deadline", "interrupted"]
_STOPS: tuple[Reason | None, ...] = (None, "deadline", "interrupted")  # the later one wins


def _clock() -> float:
    """Returns seconds of a clock that cannot be set and, on Linux, counts while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


# The system's time is read once: a clock that is set in mid-session moves no deadline.
_ANCHOR = time.time() - _clock()
_STARTED = psutil.Process().create_time()
# Reserves: how much longer than the longest of the last eight a save or an evaluation may take. With a margin of 120 s
# on top none of 10,000 simulated sessions was late (tests/bench/bench_session.py).
_FACTOR = {"step": 1.0, "evaluate": 1.25, "save": 1.5, "package": 1.5}
_CONSTANT_SECONDS = {"step": 0.0, "evaluate": 0.0, "save": 5.0, "package": 5.0}
_ECHO_SECONDS = 1.0  # torchrun passes on a signal that its ranks got from the terminal themselves


def now() -> float:
    """Returns the Unix time as if the system's clock had not been set since this process began."""
    return _ANCHOR + _clock()


class Session:
    """The time left of `minutes` (None: no end) from `start` (Unix time), and what must be done before its end."""

    def __init__(self, minutes: float | None, margin_seconds: float, start: float):
        self.deadline = start + 60 * minutes if minutes else float("inf")
        self.margin_seconds = margin_seconds
        self._last: dict[str, deque[float]] = {name: deque(maxlen=8) for name in _FACTOR}
        # seconds to keep free, from the longest of the last eight
        self.reserves = dict(_CONSTANT_SECONDS)
        self.is_signalled = False
        self._signalled_at = 0.0
        self._process = os.getpid()

    def remaining(self) -> float:
        return self.deadline - now()

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Measures a "step", "evaluate", "save" or "package", so that the next one can be reserved."""
        begin = time.perf_counter()
        yield
        self.record(name, time.perf_counter() - begin)

    def record(self, name: str, seconds: float) -> None:
        """Takes the seconds of a "step", "evaluate", "save" or "package"; a save ends in the background."""
        last = self._last[name]
        last.append(seconds)
        self.reserves[name] = _FACTOR[name] * max(last) + _CONSTANT_SECONDS[name]

    def stop_reason(self, evaluates_next: bool = False) -> Reason | None:
        """Returns why the run must stop now: a signal came, or a further step leaves no time for saving and packing."""
        if self.is_signalled:
            return "interrupted"
        names = ["step", "save", "package"]
        if evaluates_next:
            names.append("evaluate")
        needed = self.margin_seconds + sum(self.reserves[name] for name in names)
        return "deadline" if self.remaining() < needed else None

    def stop_alone(self) -> Reason | None:
        """Returns why to stop in the middle of a step; several ranks decide together, at its end."""
        if ranks.world() == 1:
            return self.stop_reason()
        return None

    def decide(self, evaluates_next: bool, save: bool, last: bool) -> tuple[Reason | None, bool]:
        """Returns why to stop after this step, if at all, and whether to save. One rank that must stop stops all."""
        stop = None if last else self.stop_reason(evaluates_next)
        if ranks.world() > 1:
            number, due = ranks.highest(_STOPS.index(stop), save)
            stop = _STOPS[int(number)]
            save = bool(due)
        self.is_signalled |= stop == "interrupted"  # the signal may have come to another rank
        return stop, save

    def signalled(self) -> Reason | None:
        """Returns "interrupted" if a signal came to any rank."""
        self.is_signalled = ranks.anywhere(self.is_signalled)
        return "interrupted" if self.is_signalled else None

    def catching_signals(self) -> AbstractContextManager[None]:
        """Stops at the step's end on the first SIGINT or SIGTERM; a second one raises KeyboardInterrupt."""
        return handling_signals(self._on_signal, self._comes_again)

    def _comes_again(self) -> bool:
        """Returns whether torchrun may send this rank its signal again, which would end the packaging."""
        return self.is_signalled and ranks.under_torchrun()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Ctrl-C in a terminal reaches forked loader processes too
        if os.getpid() != self._process:
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        seconds = time.monotonic()
        if self.is_signalled:
            if ranks.under_torchrun() and seconds - self._signalled_at < _ECHO_SECONDS:
                return
            raise KeyboardInterrupt
        self.is_signalled = True
        self._signalled_at = seconds
        why = "Interrupted" if number == signal.SIGINT else "Asked to end by the system"
        print(f"{why}: finishing this step and saving; a second one stops at once.", flush=True)


@contextmanager
def handling_signals(
    handler: Callable[[int, FrameType | None], None],
    ignored_afterwards: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Handles SIGINT and SIGTERM in the block, in a main thread; ignores both after it if `ignored_afterwards`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        ignored = ignored_afterwards()
        for number, handler_before in former.items():
            signal.signal(number, signal.SIG_IGN if ignored else handler_before)


def start_session(minutes: float, margin_seconds: float) -> Session:
    """Returns the session of this process. `minutes` 0: the platform's limit, from the start of the container."""
    here = platform.detect()
    has_container = here.name != "local" and environment.KAGGLE_ROOT not in os.environ
    begun = _process_start()
    if has_container and not minutes:
        with suppress(psutil.Error):
            begun = psutil.Process(1).create_time()
    return Session(minutes or here.session_minutes, margin_seconds, begun)


def handed_down() -> str:
    """Returns SESSION_START for a child that is started now, which reads the system's time once too."""
    return str(time.time() - (now() - _process_start()))


def _process_start() -> float:
    handed = os.environ.get(environment.SESSION_START)
    return float(handed) if handed else _STARTED
