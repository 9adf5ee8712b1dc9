"""Bounds a trace: a loop that waits for a value has no end if nothing is computed, and a branch is followed once."""

import functools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from lib.errors import NotTraceable

# Of a forward pass, a backward pass, or the optimizer: half a minute. XLNet runs some thousand operators.
MOST_OPERATORS = 500_000
_SHOWN = 5  # lines

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_HELPERS = ("contextlib.py", "functools.py", "_ops.py")


def users_frame() -> tuple[str, int] | None:
    """Returns file and number of the innermost line on the stack that is neither torch's nor the planner's."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else None


def users_line() -> str:
    """Returns that line as text: "FILE, line N"."""
    frame = users_frame()
    return f"{frame[0]}, line {frame[1]}" if frame else "a line of torch"


@functools.cache
def is_users(file: str) -> bool:
    return not (file.startswith((_TORCH, _HERE, "<")) or file.endswith(_HELPERS))


class Watch:
    """Counts operators since `begin`, and what unknown values were taken as."""

    def __init__(self) -> None:
        self.taken: Counter[tuple[str, str]] = Counter()  # (line, what was taken), of the whole trace
        self.begin()

    def begin(self) -> None:
        """Begins a stretch: a forward pass, a backward pass, or the optimizer."""
        self._operators = 0

    def operator(self) -> None:
        """Counts an operator. Raises NotTraceable where a stretch has no end."""
        self._operators += 1
        if self._operators > MOST_OPERATORS:
            raise NotTraceable(
                f"The traced step ran more than {MOST_OPERATORS:,} operators and goes on ({users_line()}). A "
                "prediction computes no values and takes each as False or 1, so a loop that waits for one has no end: "
                "give it a fixed number of turns in the step that is predicted."
            )

    def sentences(self) -> list[str]:
        """Returns what was taken where, as sentences: at most five of them, the most frequent first."""
        lines = [
            f"a value read into Python ({line}) was taken as {value} ({times} times): only what follows from that was "
            "traced, and another value may need more memory."
            for (line, value), times in self.taken.most_common(_SHOWN)
        ]
        more = len(self.taken) - len(lines)
        return lines + ([f"values read into Python at {more} more lines, taken in the same way."] if more else [])
