"""Progress that a person sees: a bar in a terminal, one updating line in a notebook, plain lines in a batch run."""

import json
import os
import shutil
import sys
import time
from typing import Protocol

from lib.config import environment
from lib.machine import platform

_PLAIN_SECONDS = 15.0  # a saved log stays readable: 240 lines an hour
_LIVE_SECONDS = 0.2
MARK = "\x1e"  # ASCII's record separator: before a line of standard output that is progress


class Progress(Protocol):
    def update(self, done: int, total: int, text: str) -> None:
        """Shows that `done` of `total` are done; calls may come as often as they like."""

    def note(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """Ends the updating line, with its last state standing."""


def choose_progress() -> Progress:
    """The form that fits where this process writes to."""
    if environment.RELAY in os.environ:
        return Relayed()
    if platform.in_notebook() and not platform.detect().batch:
        return Notebook()
    return Terminal() if sys.stdout.isatty() else Plain()


class _Throttled:
    interval = _LIVE_SECONDS

    def __init__(self) -> None:
        self._last = float("-inf")
        self._pending = ""

    def update(self, done: int, total: int, text: str) -> None:
        self._pending = f"{done:,}/{total:,} ({done / max(total, 1):.0%})  {text}"
        now = time.monotonic()
        if now - self._last >= self.interval or done == total:
            self._last = now
            self._show(self._pending, done / max(total, 1))
            self._pending = ""

    def close(self) -> None:
        if self._pending:
            self._show(self._pending, 0.0)
        self._pending = ""

    def _show(self, line: str, share: float) -> None:
        raise NotImplementedError


class Plain(_Throttled):
    """A flushed line every so often: what a log file or Kaggle's batch run keeps."""

    interval = _PLAIN_SECONDS

    def _show(self, line: str, share: float) -> None:
        print(line, flush=True)

    def note(self, text: str) -> None:
        print(text, flush=True)


class Relayed(Plain):
    """Marked lines for the process that started this one, which shows them in its own way."""

    interval = _LIVE_SECONDS

    def update(self, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= self.interval or done == total:
            self._last = now
            print(MARK + json.dumps([done, total, text]), flush=True)


class Terminal(_Throttled):
    """A bar on one line of a terminal."""

    def _show(self, line: str, share: float) -> None:
        filled = round(24 * share)
        text = f"[{'#' * filled}{'.' * (24 - filled)}] {line}"
        print("\r\x1b[2K" + text[: shutil.get_terminal_size().columns - 1], end="", flush=True)

    def note(self, text: str) -> None:
        print("\r\x1b[2K" + text, flush=True)

    def close(self) -> None:
        self._pending = ""
        print(flush=True)


class Notebook(_Throttled):
    """One line that updates in place; it survives in the saved notebook, where a tqdm bar freezes at 0 %."""

    interval = 1.0

    def __init__(self) -> None:
        super().__init__()
        self._handle = None

    def _show(self, line: str, share: float) -> None:
        from IPython.display import Pretty, display

        shown = Pretty(line)
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)

    def note(self, text: str) -> None:
        print(text, flush=True)
