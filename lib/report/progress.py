"""Shows progress: a line in a terminal, also curves in a notebook, plain lines in a batch run."""

import contextlib
import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from typing import Any, TypeVar

from lib.config import environment
from lib.machine import platform
from lib.report.printing import Informing
from lib.text import duration

Item = TypeVar("Item")
Text = str | Callable[[], str]  # a function is called only if its text is shown
MARK = "\x1e"  # ASCII's record separator: before a line of standard output that is progress
_SHARE = 0.01  # of the time that drawing charts may take


class Progress:
    """One way to show progress, at most once in `interval` seconds."""

    interval = 0.2
    _last = -math.inf
    _ended = False
    _pending: tuple[int, int, Text] | None = None  # the last call, if it was not shown

    def __init__(self) -> None:
        self._guard = Informing("the display of progress")

    def update(self, done: int, total: int, text: Text) -> None:
        """Shows that `done` of `total` (0: unknown) are done; may be called as often as you like."""
        now = time.monotonic()
        ended = bool(total) and done == total
        self._pending = done, total, text
        if now - self._last >= self.interval or (ended and not self._ended):
            self._last = now
            self._show_pending()
        self._ended = ended

    def note(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        self._show_pending()

    def _show_pending(self) -> None:
        if self._pending:
            done, total, text = self._pending
            self._pending = None
            with self._guard:
                self._write(done, total, text() if callable(text) else text)

    def _write(self, done: int, total: int, text: str) -> None:
        if total:
            text = f"{done:,}/{total:,} ({done / total:.0%})  {text}"
        self._show(text)

    def _show(self, line: str) -> None:
        print(line, flush=True)


class Plain(Progress):
    """Prints a flushed line a minute, which a log file or Kaggle's batch run keeps."""

    interval = 60.0  # a log of twelve hours stays readable: 720 lines


class Relayed(Progress):
    """Prints marked lines for the process that started this one, which shows them."""

    def _write(self, done: int, total: int, text: str) -> None:
        print(MARK + json.dumps([done, total, text]), flush=True)


class Terminal(Progress):
    """Draws a line over the one before, as far as it fits; other output stays above it."""

    def _show(self, line: str) -> None:
        print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)

    def note(self, text: str) -> None:
        print(f"\r\x1b[K{text}", flush=True)

    def close(self) -> None:
        super().close()
        if self._last > -math.inf:
            print(flush=True)


class Notebook(Progress):
    """Updates one line in place, which survives in the saved notebook."""

    interval = 1.0
    _handle: Any = None

    def _show(self, line: str) -> None:
        from IPython.display import Pretty, display

        if self._handle is None:
            self._handle = display(Pretty(line), display_id=True)
        else:
            self._handle.update(Pretty(line))


def choose_progress(draw: Callable[[], bytes] | None = None) -> Progress:
    """Returns the form for the output of this process; in a notebook with the curves of `draw`."""
    if environment.RELAY in os.environ:
        return Relayed()
    if platform.in_notebook() and not platform.detect().batch:
        return Live(draw) if draw else Notebook()
    if sys.stdout.isatty():
        return Terminal()
    return Plain()


class Within:
    """Progress of a part, such as a validation, shown in the line of the whole."""

    def __init__(self, whole: Progress, done: int, total: int):
        self.whole = whole
        self.done = done
        self.total = total

    def update(self, done: int, total: int, text: Text) -> None:
        def line() -> str:
            shown = text() if callable(text) else text
            return f"{done:,}/{total:,} {shown}"

        self.whole.update(self.done, self.total, line)


def time_left(name: str) -> Callable[[int, int], str]:
    """Returns a function of (done, total) that writes the time left since this call."""
    begin = time.monotonic()

    def text(done: int, total: int) -> str:
        seconds_per_item = (time.monotonic() - begin) / max(done, 1)
        return f"{name}, {duration(seconds_per_item * (total - done))} left"

    return text


def counted(items: Iterable[Item], name: str, total: int = 0) -> Iterator[Item]:
    """Yields the items, and shows their number and the time left; `total` if they have no length."""
    progress = choose_progress()
    text = time_left(name)
    total = len(items) if isinstance(items, Sized) else total
    for number, item in enumerate(items, 1):
        yield item
        progress.update(number, total, partial(text, number, total))
    progress.close()


@contextlib.contextmanager
def working(name: str) -> Iterator[None]:
    """Prints `name` if the block takes longer than a second, for work without steps."""
    timer = threading.Timer(1.0, print, (f"{name} ...",), {"flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Live(Notebook):
    """Updates a line and the PNG of `draw` below it; both stay in a saved notebook."""

    interval = 3.0
    _picture: Any = None
    _next = -math.inf  # when it is drawn again

    def __init__(self, draw: Callable[[], bytes]):
        super().__init__()
        self._draw = draw

    def _show(self, line: str) -> None:
        super()._show(line)
        if time.perf_counter() >= self._next:
            self._show_picture()

    def close(self) -> None:
        super().close()
        with self._guard:
            if self._handle is not None:
                self._show_picture()

    def _show_picture(self) -> None:
        from IPython.display import Image, display

        begin = time.perf_counter()
        try:
            image = Image(self._draw(), format="png")
            if self._picture is None:
                self._picture = display(image, display_id=True)
            else:
                self._picture.update(image)
        finally:  # so long that drawing takes less than its share, with a table of any length
            self._next = time.perf_counter() + 1.2 * (time.perf_counter() - begin) / _SHARE
