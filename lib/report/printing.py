"""Keeps prints, displays, advice and trackers from ending a run."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO

KEY = "WANDB_API_KEY"  # of the environment; no warning shows its value


@contextlib.contextmanager
def safe_printing() -> Iterator[None]:
    """Makes print() survive full disks, closed pipes and narrow encodings in the block."""
    before = sys.stdout, sys.stderr
    # A stream that was closed at the start is None; the null device then takes its number, the
    # lowest free one.
    streams = [stream or Path(os.devnull).open("w", encoding="utf-8") for stream in before]  # noqa: SIM115
    safe: Any = [_Safe(stream) for stream in streams]
    sys.stdout, sys.stderr = safe
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout, sys.stderr = before


class _Safe:
    """A stream of text; after its first failure it is the null device, for child processes too."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            # a terminal shows only letters of its encoding; pipes and files are read as UTF-8,
            # whatever the locale
            is_chosen = stream.isatty() or "PYTHONIOENCODING" in os.environ
            encoding = stream.encoding if is_chosen else "utf-8"
            with contextlib.suppress(OSError):  # it flushes first
                stream.reconfigure(encoding=encoding, errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "flush"):
            return partial(self._tried, name)
        return getattr(self._stream, name)

    def _tried(self, method: str, *text: str) -> int:
        try:
            getattr(self._stream, method)(*text)
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
        return len("".join(text))


class Informing:
    """Lets no error of its blocks end a run; prints the first of them."""

    def __init__(self, name: str, then: str = "Training continues."):
        self.name = name
        self.then = then
        self.failed = False

    def __enter__(self) -> "Informing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        if isinstance(error, Exception) and not self.failed:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            if secret := os.environ.get(KEY):
                reason = reason.replace(secret, f"({KEY})")
            print(f"Warning: {self.name} does not work: {reason}. {self.then}", flush=True)
            self.failed = True
        return isinstance(error, Exception)
