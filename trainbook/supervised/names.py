"""Compares names of files and folders, and reads which stand for a part of the data."""

import re
import unicodedata
from collections.abc import Iterable

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
    """Returns a pattern of words, each perhaps in the plural, the longest first."""
    longest = sorted(words, key=len, reverse=True)
    return f"(?:{'|'.join(longest)})s?"


_PART = re.compile(f"(?<![a-z]){any_of(PARTS)}")


def part_of(name: str) -> str:
    """Returns train, validation or test if a word of a name stands for it, else ""."""
    word = _PART.search(spaced(name))
    if not word:
        return ""
    return PARTS.get(word[0]) or PARTS[word[0].removesuffix("s")]


def spaced(name: str) -> str:
    """Returns the words of a name: trainImages and train_images are `train images`."""
    return _BETWEEN_WORDS.sub(" ", name).casefold()


def folded(name: str) -> str:
    """Returns a name as it is compared: in small letters, with each accent in its letter, which macOS parts."""
    return unicodedata.normalize("NFC", name).casefold()
