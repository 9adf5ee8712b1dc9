"""Cuts lines into cells, strictly, and recognises what separates them."""

import contextlib
import csv
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lib.errors import BadInput

NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "|"}
TAB = "\t"
_TABBED = (".tsv", ".tab", ".txt")
_TRIED = 100  # rows from which the separator is recognised
_MARK = '"'
# By default 131,072 letters of a cell. It is a limit of the whole process
csv.field_size_limit(2**31 - 1)


class Dialect(NamedTuple):
    """How cells are separated, whether they may be quoted, and whether a space follows each separator."""

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
    """Yields the cells of each row. Raises BadInput for a quotation mark that does not enclose a cell."""
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
            is_open = "unexpected end" in str(error)
            end = "nothing shuts" if is_open else f"does not end a cell in line {reader.line_num}"
            raise BadInput(
                f"{shown}:{first}: A quotation mark begins a cell here that {end}. "
                'Write "" for a mark inside a quoted cell.'
            ) from None
        yield Line(cells, first, reader.line_num)
        first = reader.line_num + 1


def recognised(texts: Sequence[str], suffix: str, has_head: bool, shown: str) -> Dialect:
    """Returns the dialect in which the first rows have as many cells as the head.

    A head with one cell less than all rows is the second choice, the widest head the last: its wrong line is then
    named. Raises BadInput where two dialects fit alike.
    """
    first = next((text for text in texts if text.strip()), "")
    preferred = usual(suffix)
    marks = (
        NAMES if has_head or preferred == "," else (TAB,)
    )  # a line of one cell may be a text with commas
    dialects = [_dialect(mark, first, suffix, has_head) for mark in marks]
    widths = {dialect: _widths(texts, dialect, shown) for dialect in dialects}
    fitting = [dialect for dialect in dialects if _excess(widths[dialect]) == 0]
    fitting = fitting or [dialect for dialect in dialects if _excess(widths[dialect]) == 1]
    if preferred == TAB:
        tabs = [dialect for dialect in fitting if dialect.separator == TAB]
        fitting = tabs or fitting
    if len(fitting) > 1:
        names = " and by ".join(NAMES[dialect.separator] for dialect in fitting)
        raise BadInput(
            f"{shown}: The rows can be separated by {names}. Quote the cells, or write a .tsv with tabs."
        )
    if fitting:
        return fitting[0]
    return max(dialects, key=lambda dialect: (widths[dialect][:1], dialect.separator == preferred))


def _excess(widths: Sequence[int]) -> int | None:
    """Returns how many cells more all rows have than the head: 0 or 1; None if neither or if there is one cell."""
    if not widths or widths[0] < 2:
        return None
    excess = {width - widths[0] for width in widths[1:]} or {0}
    if excess in ({0}, {1}):
        return excess.pop()
    return None


def _dialect(separator: str, first: str, suffix: str, has_head: bool) -> Dialect:
    """Returns the dialect for a separator. Between tabs nothing is quoted, unless all names in the head are."""
    names = first.rstrip("\r\n").split(separator)
    is_marked = all(len(name) > 1 and name[0] == name[-1] == _MARK for name in names)
    is_quoted = separator != TAB or suffix == ".csv" or (is_marked and has_head)
    number = first.count(separator)
    is_spaced = has_head and number > 0 and first.count(f"{separator} ") == number
    return Dialect(separator, is_quoted, is_spaced)


def _widths(texts: Sequence[str], dialect: Dialect, shown: str) -> list[int]:
    """Returns the numbers of cells of the first rows, up to a wrong quotation mark."""
    widths = list[int]()
    with contextlib.suppress(BadInput):
        for line in itertools.islice(lines(texts, dialect, shown), _TRIED):
            if any(cell.strip() for cell in line.cells):
                widths.append(len(line.cells))
    return widths
