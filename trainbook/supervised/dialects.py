"""Splits lines into cells, strictly, and recognises their separator."""

import contextlib
import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lib.errors import BadInput

NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "|"}
TAB = "\t"
_TABBED = (".tsv", ".tab", ".txt")
_TRIED = 100  # rows from which the separator is recognised
_QUOTED = re.compile('".*"', re.DOTALL)
# The default is 131,072 letters a cell. It is a limit of the whole process
csv.field_size_limit(2**31 - 1)


class Dialect(NamedTuple):
    """The separator, whether cells may be quoted, whether a space follows each separator."""

    separator: str
    is_quoted: bool
    is_spaced: bool


class Line(NamedTuple):
    """The cells of a row, and its first and last line."""

    cells: list[str]
    first: int
    last: int


def usual(suffix: str) -> str:
    return TAB if suffix in _TABBED else ","


def lines(texts: Sequence[str], dialect: Dialect, shown: str) -> Iterator[Line]:
    """Yields the cells of each row. Raises BadInput for a quotation mark inside a cell."""
    if dialect.is_quoted:
        return _quoted(texts, dialect, shown)
    return _unquoted(texts, dialect)


def _unquoted(texts: Sequence[str], dialect: Dialect) -> Iterator[Line]:
    for number, text in enumerate(texts, 1):
        cells = text.rstrip("\r\n").split(dialect.separator)
        if dialect.is_spaced:
            cells = [cell.lstrip(" ") for cell in cells]
        yield Line(cells, number, number)


def _quoted(texts: Sequence[str], dialect: Dialect, shown: str) -> Iterator[Line]:
    reader = csv.reader(
        texts, delimiter=dialect.separator, skipinitialspace=dialect.is_spaced, strict=True
    )
    first = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                end = "nothing shuts"
            else:
                end = f"does not end a cell in line {reader.line_num}"
            raise BadInput(
                f"{shown}:{first}: A quotation mark begins a cell here that {end}. "
                'Write "" for a mark inside a quoted cell.'
            ) from None
        yield Line(cells, first, reader.line_num)
        first = reader.line_num + 1


def recognised(texts: Sequence[str], suffix: str, has_head: bool, shown: str) -> Dialect:
    """Returns the dialect in which the first rows have as many cells as the head.

    The second choice is a head with one cell less than all rows, the last the widest head, so that
    its wrong line is named. Raises BadInput if two dialects fit alike.
    """
    first = next((text for text in texts if text.strip()), "")
    preferred = usual(suffix)
    if has_head or preferred == ",":
        separators = [*NAMES]
    else:
        separators = [TAB]  # a line of one cell may be a text with commas
    widths = {}
    for separator in separators:
        dialect = _dialect(separator, first, suffix, has_head)
        widths[dialect] = _widths(texts, dialect, shown)
    excess = {dialect: _excess(numbers) for dialect, numbers in widths.items()}
    fitting = [dialect for dialect in widths if excess[dialect] == 0]
    fitting = fitting or [dialect for dialect in widths if excess[dialect] == 1]
    if preferred == TAB:
        tabs = [dialect for dialect in fitting if dialect.separator == TAB]
        fitting = tabs or fitting
    if len(fitting) > 1:
        names = " and by ".join(NAMES[dialect.separator] for dialect in fitting)
        raise BadInput(
            f"{shown}: The rows can be separated by {names}. "
            "Quote the cells, or write a .tsv with tabs."
        )
    if fitting:
        return fitting[0]

    def rank(dialect: Dialect) -> tuple[list[int], bool]:
        return widths[dialect][:1], dialect.separator == preferred

    return max(widths, key=rank)


def _excess(widths: Sequence[int]) -> int | None:
    """Returns how many cells all rows have beyond the head, 0 or 1; None otherwise."""
    if not widths or widths[0] < 2:
        return None
    excess = {width - widths[0] for width in widths[1:]} or {0}
    if excess in ({0}, {1}):
        return excess.pop()
    return None


def _dialect(separator: str, first: str, suffix: str, has_head: bool) -> Dialect:
    """Returns the dialect for a separator. Tabs have quoted cells only if the whole head is."""
    names = first.rstrip("\r\n").split(separator)
    is_head_quoted = has_head and all(map(_QUOTED.fullmatch, names))
    is_quoted = separator != TAB or suffix == ".csv" or is_head_quoted
    number = first.count(separator)
    is_spaced = has_head and number > 0 and first.count(f"{separator} ") == number
    return Dialect(separator, is_quoted, is_spaced)


def _widths(texts: Sequence[str], dialect: Dialect, shown: str) -> list[int]:
    """Returns how many cells the first rows have, up to a wrong quotation mark."""
    widths = list[int]()
    with contextlib.suppress(BadInput):
        for line in itertools.islice(lines(texts, dialect, shown), _TRIED):
            if any(cell.strip() for cell in line.cells):
                widths.append(len(line.cells))
    return widths
