"""The two exceptions whose text is written for a person, and what makes other people's text fit to be printed."""

import unicodedata
from collections.abc import Sequence

# Control, direction and other invisible characters, surrogates, line ends
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: object, lines: bool = False, most: int = 0) -> str:
    """Returns a text with escapes in the place of characters that would steer a terminal or hide what is there.

    A name, a key or a value from somebody else's file so stays within its line; `lines` keeps the line ends of a text
    of one's own. Of a text longer than `most` (0: of any length) the end is left out.
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
    """An exception whose text can be printed, whatever names from other people's files stand in it."""

    def __init__(self, text: object = "") -> None:
        super().__init__(printable(text, lines=True))

    def _render_traceback_(self) -> list[str]:
        """Returns what a notebook shows: the text names the line of the user's code, and frames would bury it."""
        return [f"{type(self).__name__}: {self}"]


class BadInput(PrintableError, ValueError):
    """What was given cannot be used: says what is wrong, where, and what to do. On the command line, exit code 2."""


class NotTraceable(BadInput):
    """A step that cannot be traced: what happens in it depends on values, or on more than one card."""


def check_limit(what: str, bad: Sequence[str], limit: int) -> None:
    """Raises BadInput where there are more bad inputs than `workload.bad_input_limit` allows.

    `what` names them in the plural ("Bad lines"); `bad` has one line for each: where it is and what is wrong.
    """
    count = len(bad)
    if count > limit:
        raise BadInput(
            f"{what}: {count:,}; workload.bad_input_limit allows {limit:,}. "
            f"Correct them, or leave them out by workload.bad_input_limit: {count}.\n{first_ten(bad)}"
        )


def first_ten(lines: Sequence[str]) -> str:
    """Returns the first ten lines, indented, and how many more there are."""
    shown = [f"  {printable(line)}" for line in lines[:10]]
    if len(lines) > 10:
        shown.append(f"  and {len(lines) - 10:,} more")
    return "\n".join(shown)


class TrainingFailed(PrintableError, RuntimeError):
    """The run cannot continue; the message names the step, the samples and what to change."""


class OutOfMemory(TrainingFailed):
    """Memory ran out where the step cannot be repeated; a fresh launch may resume in `micro_batch` (0: no smaller).

    `advice` is for whoever has to start it; `before` is the micro-batch that was too large.
    """

    def __init__(self, text: str, micro_batch: int, advice: str = "", before: int = 0):
        super().__init__(f"{text} {advice}".strip())
        self.text = text
        self.micro_batch = micro_batch
        self.advice = advice
        self.before = before
