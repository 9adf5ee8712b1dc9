"""Compares and lists names of files, folders and columns, and tells the splits that they name."""

import re
import unicodedata
from collections.abc import Iterable

from lib.errors import printable

_TRAIN = ("train", "training")
_TEST = ("test", "testing", "holdout")
_VALIDATION = ("val", "valid", "validation", "dev", "eval")
PARTS = {
    **dict.fromkeys(_TRAIN, "train"),
    **dict.fromkeys(_TEST, "test"),
    **dict.fromkeys(_VALIDATION, "validation"),
}
_BETWEEN_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|[\W\d_]+")


def any_of(words: Iterable[str]) -> str:
    """Returns a pattern of words, singular or plural, the longest first."""
    longest = sorted(words, key=len, reverse=True)
    return f"(?:{'|'.join(longest)})s?"


_PART = re.compile(f"(?<![a-z]){any_of(PARTS)}")


def part_of(name: str) -> str:
    """Returns the split that a word of a name means, "train", "validation" or "test", or ""."""
    word = _PART.search(spaced(name))
    if not word:
        return ""
    return PARTS.get(word[0]) or PARTS[word[0].removesuffix("s")]


def spaced(name: str) -> str:
    """Returns the words of a name: trainImages and train_images are `train images`."""
    return _BETWEEN_WORDS.sub(" ", name).casefold()


def listed(names: Iterable[object]) -> str:
    """Returns names for a message, joined by commas and cut to 300 letters, or "none"."""
    return printable(", ".join(map(str, names)), most=300) or "none"


def folded(name: str) -> str:
    """Returns a name in its form for comparison: casefolded, in NFC (macOS decomposes names)."""
    return unicodedata.normalize("NFC", name).casefold()
