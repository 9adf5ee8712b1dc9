"""What the targets of a task are, one class a kind: its loss, guess, shapes, metrics and rows of answers.

A task names one by its short name, `kind = "numbers"`, or gives a class that derives from one of these.
"""

from functools import cache
from typing import Any

from trainbook.supervised.kinds.base import Kind
from trainbook.supervised.kinds.bits import Bits
from trainbook.supervised.kinds.classes import Classes
from trainbook.supervised.kinds.labels import Labels
from trainbook.supervised.kinds.next_tokens import NextTokens
from trainbook.supervised.kinds.numbers import Numbers
from trainbook.supervised.kinds.text import Text
from trainbook.supervised.kinds.tokens import Tokens

__all__ = [
    "Bits",
    "Classes",
    "Kind",
    "Labels",
    "NextTokens",
    "Numbers",
    "Text",
    "Tokens",
    "is_kind",
    "of",
]

BY_NAME: dict[str, type[Kind]] = {
    kind.name: kind for kind in (Classes, Numbers, Tokens, NextTokens, Bits, Labels, Text)
}


def is_kind(kind: Any) -> bool:
    """Returns whether `kind` is a short name or a class of a kind."""
    if isinstance(kind, str):
        return kind in BY_NAME
    return isinstance(kind, type) and issubclass(kind, Kind)


def of(kind: str | type[Kind]) -> Kind:
    """Returns the kind for a task's `kind`, one of `is_kind`."""
    chosen: Any = BY_NAME[kind] if isinstance(kind, str) else kind
    return _made(chosen)


@cache
def _made(kind: Any) -> Kind:
    made: Kind = kind()
    made.name = made.name or kind.__name__
    return made


def name_of(task: Any) -> str:
    """Returns the short name of a task's kind; "" for a task without a kind."""
    kind = getattr(task, "kind", None)
    if kind is None or not is_kind(kind):
        return ""
    return of(kind).name
