"""The two exceptions whose text is written for a person."""

from collections.abc import Sequence


class BadInput(ValueError):
    """What was given cannot be used: says what is wrong, where, and what to do. On the command line, exit code 2."""


def check_limit(what: str, bad: Sequence[str], limit: int) -> None:
    """Raises BadInput where there are more bad inputs than `workload.bad_input_limit` allows.

    `what` names them in the plural ("Bad lines"); `bad` has one line for each: where it is and what is wrong.
    """
    if len(bad) > limit:
        raise BadInput(
            f"{what}: {len(bad):,}; workload.bad_input_limit allows {limit:,}. "
            f"Correct them, or leave them out by workload.bad_input_limit: {len(bad)}.\n{first_ten(bad)}"
        )


def first_ten(lines: Sequence[str]) -> str:
    """Returns the first ten lines, indented, and how many more there are."""
    more = [f"and {len(lines) - 10:,} more"] if len(lines) > 10 else []
    return "\n".join(f"  {line}" for line in [*lines[:10], *more])


class TrainingFailed(RuntimeError):
    """The run cannot continue; the message names the step, the samples and what to change."""


class OutOfMemory(TrainingFailed):
    """Memory ran out where the step cannot be repeated; a fresh launch may resume in `micro_batch` (0: no smaller).

    `advice` is for whoever has to start it.
    """

    def __init__(self, text: str, micro_batch: int, advice: str = ""):
        super().__init__(f"{text} {advice}".strip())
        self.text, self.micro_batch, self.advice = text, micro_batch, advice
