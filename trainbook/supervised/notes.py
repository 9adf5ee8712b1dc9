"""Collects the readers' notes on the data: used and ignored files, columns and rows."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_sentences: ContextVar[list[str] | None] = ContextVar("sentences", default=None)


@contextlib.contextmanager
def collecting() -> Iterator[list[str]]:
    """Yields the list that `note` fills inside the block."""
    sentences: list[str] = []
    token = _sentences.set(sentences)
    try:
        yield sentences
    finally:
        _sentences.reset(token)


def note(sentence: str) -> None:
    """Adds a sentence, once, to the description of the data that is being read; prints it if none is being read."""
    sentences = _sentences.get()
    if sentences is None:
        print(sentence)
    elif sentence not in sentences:
        sentences.append(sentence)
