"""Bounds a trace: a loop that waits for a value has no end if nothing is computed, and a branch is followed once."""

import functools
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lib.errors import BadInput
from lib.task import Task
from lib.task.place import place_of

# Of a forward pass, a backward pass, or the optimizer. XLNet runs some thousand operators, 2,000 steps in time 100,000.
MOST_OPERATORS = 1_000_000
MOST_SECONDS = 60  # of this thread's CPU, so that a busy machine refuses nothing
MOST_READS = 10_000  # at one line; a loop over the samples of a batch reads one value of each
_OFTEN = 256  # operators between two looks at the clock
_SHOWN = 5  # lines

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_HELPERS = ("contextlib.py", "functools.py", "_ops.py")


class NotTraceable(BadInput):
    """A step that cannot be traced: what happens in it depends on values, or on more than one card."""


def model_on_meta(task: Task) -> nn.Module:
    """Builds a task's model without memory. Raises NotTraceable where it loads published weights by itself."""
    try:
        with torch.device("meta"):
            return task.model()
    except RuntimeError as error:
        if "`from_pretrained` with a meta device" not in str(error):
            raise
        raise NotTraceable(
            f"{type(task).__name__}.model() calls from_pretrained ({place_of(error)}), which loads weights where "
            "shapes alone are needed. Write self.pretrained(FOLDER_OR_NAME, AutoModel) there, with your own class."
        ) from None


def users_line() -> str:
    """Returns the innermost line on the stack that is neither torch's nor the planner's: "FILE, line N"."""
    frame = users_frame()
    return f"{frame[0]}, line {frame[1]}" if frame else "a line of torch"


def users_frame() -> tuple[str, int, str] | None:
    """Returns file, number and function of the innermost line that is neither torch's nor the planner's."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame else None


@functools.cache
def is_users(file: str) -> bool:
    return not (file.startswith((_TORCH, _HERE, "<")) or file.endswith(_HELPERS))


class Watch:
    """Counts operators, seconds and reads of values since `begin`, and what unknown values were taken as."""

    def __init__(self) -> None:
        self.taken: Counter[tuple[str, str]] = Counter()  # (line, what was taken), of the whole trace
        self.begin()

    def begin(self) -> None:
        self._operators, self._since = 0, time.thread_time()
        self._reads: Counter[str] = Counter()

    def operator(self) -> None:
        """Counts an operator. Raises NotTraceable where a stretch has no end."""
        self._operators += 1
        if self._operators > MOST_OPERATORS:
            self._refuse(f"ran more than {MOST_OPERATORS:,} operators")
        if self._operators % _OFTEN == 0 and time.thread_time() - self._since > MOST_SECONDS:
            self._refuse(f"took more than {MOST_SECONDS} seconds of a CPU")

    def read(self, value: Any) -> None:
        """Notes a value that is not known and was read into Python. Raises NotTraceable where a loop waits for it."""
        line = users_line()
        self.taken[line, str(value)] += 1
        self._reads[line] += 1
        if self._reads[line] > MOST_READS:
            self._refuse(f"read more than {MOST_READS:,} values into Python at one line")

    def _refuse(self, what: str) -> None:
        line = self._reads.most_common(1)[0][0] if self._reads else users_line()
        raise NotTraceable(
            f"The traced step {what} and goes on ({line}). A prediction computes no values and takes each as False or "
            "1, so a loop that waits for one has no end: give it a fixed number of turns in the step that is predicted."
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
