"""Printing that ends no run: on a full disk, into a closed pipe, or letters that a terminal does not have."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


@contextlib.contextmanager
def safe_printing() -> Iterator[None]:
    """Drops what standard output and error cannot take inside the block, and escapes letters that they do not have."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Safe(_opened(sys.stdout, 1)), _Safe(_opened(sys.stderr, 2))  # type: ignore[assignment]
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


def _opened(stream: TextIO | None, number: int) -> TextIO:
    """Returns the stream; for one that was closed at the start, the null device, which takes its number."""
    if stream is not None:
        return stream
    handle = os.open(os.devnull, os.O_WRONLY)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
    return os.fdopen(number, "w", encoding="utf-8", closefd=False)


class _Safe:
    """A stream of text, from whose first failure on all goes to the null device, what child processes print too."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            with contextlib.suppress(OSError):  # it flushes first
                stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except (OSError, ValueError):
            self._give_up()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def _give_up(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            handle = os.open(os.devnull, os.O_WRONLY)
            os.dup2(handle, self._stream.fileno())
            os.close(handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
