"""The text of a Python file, and the words of it. It imports the standard library alone; see `child`."""

import io
import re
import tokenize
from array import array

# Identifiers, numbers' digits, and the few signs that tell a call from a base from an attribute. Everything else
# (commas, brackets, quotes) would fill a quarter of the window and say little.
_WORD = re.compile(r"[^\W\d]\w*|[(.=@]")
# Encodings that Python decodes in the square of the length, or that are none of a text
_NO_TEXT = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "utf_7", "mbcs", "oem"}


def encoding_of(content: bytes) -> str:
    """Returns the encoding that a source file declares, UTF-8 where it declares none.

    Raises SyntaxError where Python knows no such encoding, and ValueError for one that is not decoded here.
    """
    encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
    if encoding.lower().replace("-", "_") in _NO_TEXT:
        raise ValueError(f"its encoding is {encoding}")
    return encoding


def decode(content: bytes) -> str:
    """Returns the text of a source file by its declared encoding, with line ends as Python counts them."""
    try:
        encoding = encoding_of(content)
    except (SyntaxError, ValueError):
        encoding = "utf-8"
    return io.TextIOWrapper(io.BytesIO(content), encoding, errors="replace").read()


def words(text: str) -> list[str]:
    """Returns the identifiers of a text and the signs ( . = @, in their order."""
    return _WORD.findall(text)


def words_by_line(content: bytes) -> tuple[list[str], array, array]:
    """Returns the different words of a source file as they come, the number of each word, and where lines begin."""
    numbers: dict[str, int] = {}
    text, starts = array("i"), array("i")
    for line in decode(content).split("\n"):
        starts.append(len(text))
        text.extend(numbers.setdefault(word, len(numbers)) for word in words(line))
    starts.append(len(text))
    return list(numbers), text, starts
