"""Shows progress: a bar in a terminal, one updating line in a notebook, plain lines in a batch run."""

import json
import math
import os
import shutil
import sys
import time
from typing import Any

from lib.config import environment
from lib.machine import platform

MARK = "\x1e"  # ASCII's record separator: before a line of standard output that is progress


class Progress:
    """One way to show progress, at most once in `interval` seconds."""

    interval = 0.2
    _last = -math.inf
    _pending = ""  # the last line, if it was not shown

    def update(self, done: int, total: int, text: str) -> None:
        """Shows that `done` of `total` are done; may be called as often as you like."""
        self._pending = f"{done:,}/{total:,} ({done / max(total, 1):.0%})  {text}"
        now = time.monotonic()
        if now - self._last >= self.interval or done == total:
            self._last = now
            self._show(self._pending, done / max(total, 1))
            self._pending = ""

    def note(self, text: str) -> None:
        """Prints a line that stays."""
        print(text, flush=True)

    def close(self) -> None:
        """Ends the updating line, which keeps its last text."""
        if self._pending:
            self._show(self._pending, 0.0)
        self._pending = ""

    def _show(self, line: str, share: float) -> None:
        raise NotImplementedError


class Plain(Progress):
    """Prints a flushed line every 15 seconds, which a log file or Kaggle's batch run keeps."""

    interval = 15.0  # a saved log stays readable: 240 lines an hour

    def _show(self, line: str, share: float) -> None:
        print(line, flush=True)


class Relayed(Progress):
    """Prints marked lines for the process that started this one, which shows them in its own way."""

    def update(self, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= self.interval or done == total:
            self._last = now
            print(MARK + json.dumps([done, total, text]), flush=True)


class Terminal(Progress):
    """Draws a bar on one line of a terminal."""

    def _show(self, line: str, share: float) -> None:
        filled = round(24 * share)
        text = f"[{'#' * filled}{'.' * (24 - filled)}] {line}"
        print("\r\x1b[2K" + text[: shutil.get_terminal_size().columns - 1], end="", flush=True)

    def note(self, text: str) -> None:
        print("\r\x1b[2K" + text, flush=True)

    def close(self) -> None:
        print(flush=True)


class Notebook(Progress):
    """Updates one line in place; it survives in the saved notebook, where a tqdm bar freezes at 0 %."""

    interval = 1.0
    _handle: Any = None

    def _show(self, line: str, share: float) -> None:
        from IPython.display import Pretty, display

        if self._handle is None:
            self._handle = display(Pretty(line), display_id=True)
        else:
            self._handle.update(Pretty(line))


def choose_progress() -> Progress:
    """Returns the form that fits the output of this process."""
    if environment.RELAY in os.environ:
        return Relayed()
    if platform.in_notebook() and not platform.detect().batch:
        return Notebook()
    return Terminal() if sys.stdout.isatty() else Plain()
