"""Keeps what only informs from ending a run: prints on full disks and closed pipes, displays, advice, trackers."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

KEY = "WANDB_API_KEY"  # of the environment; no warning shows its value


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


class Informing:
    """Lets no error of its blocks end a run; prints the first of them."""

    def __init__(self, name: str, then: str = "Training continues."):
        self.name, self.then, self.failed = name, then, False

    def __enter__(self) -> "Informing":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self.failed:
            why = " ".join(f"{type(error).__name__}: {error}".split()).replace(os.environ.get(KEY) or "\0", f"({KEY})")
            print(f"Warning: {self.name} does not work: {why}. {self.then}", flush=True)
        self.failed = True
        return True


class _Safe:
    """A stream of text; from its first failure on all goes to the null device, also the output of child processes."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            with contextlib.suppress(OSError):  # it flushes first
                stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call: Any, *arguments: str) -> None:
        try:
            call(*arguments)
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                handle = os.open(os.devnull, os.O_WRONLY)
                os.dup2(handle, self._stream.fileno())
                os.close(handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
