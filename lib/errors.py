"""The exceptions whose text is for the user, and the escapes that make untrusted text printable."""

import unicodedata
from collections.abc import Sequence

# Control, direction and other invisible characters, surrogates, line ends
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: object, lines: bool = False, most: int = 0) -> str:
    """Escapes the characters of a text that would steer a terminal or hide others.

    An untrusted name, key or value so stays within its line; `lines` keeps the line ends of a
    trusted text. A text longer than `most` (0: no limit) is cut.
    """
    text = str(text)
    if most and len(text) > most:
        text = f"{text[: most - 3]}..."
    if text.isprintable():
        return text
    return "".join(letter if lines and letter == "\n" else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    if unicodedata.category(letter) in _UNSEEN:
        return ascii(letter)[1:-1]
    return letter


class PrintableError(Exception):
    """An exception whose text can be printed, whatever untrusted names it contains."""

    def __init__(self, text: object = "") -> None:
        super().__init__(printable(text, lines=True))

    def _render_traceback_(self) -> list[str]:
        """Returns the text without frames, for a notebook: it names the line itself."""
        return [f"{type(self).__name__}: {self}"]


class BadInput(PrintableError, ValueError):
    """Unusable input.

    The text names the fault, its place and the mend. On the command line, exit code 2.
    """


class NotTraceable(BadInput):
    """A step that cannot be traced: what happens in it depends on values, or on more than one card."""


def check_limit(what: str, bad: Sequence[str], limit: int) -> None:
    """Raises BadInput for more bad inputs than `workload.bad_input_limit` allows.

    `what` names them in the plural ("Bad lines"); `bad` has a line for each: its place and fault.
    """
    count = len(bad)
    if count > limit:
        raise BadInput(
            f"{what}: {count:,}; workload.bad_input_limit allows {limit:,}. "
            f"Correct them, or leave them out by workload.bad_input_limit: {count}.\n{first_ten(bad)}"
        )


def first_ten(lines: Sequence[str]) -> str:
    """Returns the first ten lines, indented, and the number of the others."""
    shown = [f"  {printable(line)}" for line in lines[:10]]
    if len(lines) > 10:
        shown.append(f"  and {len(lines) - 10:,} more")
    return "\n".join(shown)


class TrainingFailed(PrintableError, RuntimeError):
    """The run cannot continue; the message names the step, the samples and what to change."""


class OutOfMemory(TrainingFailed):
    """Memory ran out in a step that cannot be repeated.

    A new launch may resume in `micro_batch` (0: no smaller). `advice` is for the user who starts
    it; `before` is the micro-batch that was too large.
    """

    def __init__(self, text: str, micro_batch: int, advice: str = "", before: int = 0):
        super().__init__(f"{text} {advice}".strip())
        self.text = text
        self.micro_batch = micro_batch
        self.advice = advice
        self.before = before
