"""The clock of a session: Unix time that nobody can set back, and when the session began."""

import os
import time
from contextlib import suppress

import psutil

from lib.config import environment
from lib.machine import platform


def _seconds() -> float:
    """Returns seconds that go on while the machine is suspended, where the system counts these."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


# The clock on the wall is read once: set back or forward in mid-session, it moves no deadline.
_ANCHOR = time.time() - _seconds()
_STARTED = psutil.Process().create_time()


def now() -> float:
    """Returns the Unix time that it would be if nobody had set the clock since this process began."""
    return _ANCHOR + _seconds()


def session_start(minutes: float) -> float:
    """Returns the Unix time from which a session counts.

    It is the start of the container on a platform with a limit, unless `minutes` are configured;
    otherwise that of this process, or the one that its parent handed down.
    """
    if platform.detect().begins_with_container and not minutes:
        with suppress(psutil.Error):
            return psutil.Process(1).create_time()
    return process_start()


def handed_down() -> str:
    """Returns SESSION_START for a child that is started now, which reads the clock on the wall once too."""
    return str(time.time() - (now() - process_start()))


def process_start() -> float:
    """Returns the Unix time at which this process began, or the one that its parent handed down."""
    handed = os.environ.get(environment.SESSION_START)
    return float(handed) if handed else _STARTED
