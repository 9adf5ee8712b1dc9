"""Reads rows of separated cells, with or without a head. Raises BadInput for ambiguous rows."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from lib.errors import BadInput, printable
from trainbook.supervised import dialects
from trainbook.supervised.coverage import Report
from trainbook.supervised.dialects import Dialect, Line
from trainbook.supervised.files import lines_of
from trainbook.supervised.names import listed

_MARK = '"'
_TOTALS = (
    "total",
    "totals",
    "grand total",
    "subtotal",
    "sum",
    "average",
    "mean",
    "gesamt",
    "summe",
    "total general",
)
_EXCEL = re.compile("sep=.")


class Sheet(NamedTuple):
    """A text being read as a table: its lines, dialect, name in messages, and report."""

    texts: list[str]
    dialect: Dialect
    shown: str
    report: Report


class Rows(NamedTuple):
    """Names of columns (None: empty and unnamed), rows, numbers of blank lines, separator."""

    names: list[str | None]
    lines: list[Line]
    blank: list[int]
    separator: str


def read(
    text: str, shown: str, suffix: str, names: Sequence[str] | None, comments: bool, report: Report
) -> Rows:
    """Returns the rows of a text, with a cell for each column. Raises BadInput.

    `names` are the columns: (): numbers from 0; None: the first line has them. `comments` leaves
    out lines that begin with # and have one cell.
    """
    texts = lines_of(text)
    if texts and _EXCEL.fullmatch(texts[0].strip()):  # the rows show it, too
        report.remarks.append("the first line names the separator")
        texts[0] = "\n"
    dialect = dialects.recognised(texts, suffix, names is None, shown)
    if dialect.separator != dialects.usual(suffix):
        report.remarks.append(f"separated by {dialects.NAMES[dialect.separator]}")
    if dialect.is_spaced:
        report.remarks.append("spaces after separators are left out")
    sheet = Sheet(texts, dialect, shown, report)
    lines, blank, others = _sorted(sheet, comments)
    if names is None:
        columns, rows = _below_head(sheet, lines)
    else:
        columns, rows = _without_head(sheet, lines, names)
    others["head"] = len(lines) - len(rows)
    others["inside quoted cells"] = sum(row.last - row.first for row in rows)
    _check_widths(sheet, columns, rows, names is None)
    if dialect.is_quoted:
        _check_spaced_marks(sheet, rows)
        _check_merged(sheet, rows)
    else:
        _check_letters(sheet, rows)
    _note_total(sheet, rows)
    report.lines = len(texts)
    order = ("head", "blank", *sorted(others))
    report.others = {what: others[what] for what in order if others[what]}
    return Rows(columns, rows, blank, dialect.separator)


def _sorted(sheet: Sheet, comments: bool) -> tuple[list[Line], list[int], Counter[str]]:
    """Returns lines with content, the numbers of blank lines, and counts of other lines."""
    rows = list[Line]()
    blank = list[int]()
    others = Counter[str]()
    for line in dialects.lines(sheet.texts, sheet.dialect, sheet.shown):
        is_single = len(line.cells) < 2
        first = line.cells[0] if line.cells else ""
        if comments and is_single and first.startswith("#"):
            others["comments"] += 1
        elif is_single and not first.strip():
            others["blank"] += 1
            blank.append(line.first)
        elif not any(line.cells):
            others["of empty cells"] += 1
            blank.append(line.first)
        else:
            rows.append(line)
    return rows, blank, others


# --- columns ----------------------------------------------------------------------------------------------------------


def _without_head(
    sheet: Sheet, lines: list[Line], names: Sequence[str]
) -> tuple[list[str | None], list[Line]]:
    """Returns the given names, or numbers, for the cells of the first row."""
    if not lines:
        return [*names], lines
    width = len(lines[0].cells)
    numbers = [str(number) for number in range(width)]
    if names:
        return [*names[:width]], lines
    if lines[0].cells == numbers:  # as pandas writes a table without names
        sheet.report.remarks.append("the first line numbers the columns")
        return [*numbers], lines[1:]
    return [*numbers], lines


def _below_head(sheet: Sheet, lines: list[Line]) -> tuple[list[str | None], list[Line]]:
    """Returns the names in the first line, and the rows below it. Raises BadInput."""
    if not lines:
        return [], lines
    head, *rows = lines
    names = [name.strip() for name in head.cells]
    if names != head.cells:
        sheet.report.remarks.append("spaces round names of columns are left out")
    lasts = [row.cells[-1] for row in rows]
    if _have_one_more(rows, names) and not any(lasts):
        sheet.report.remarks.append("rows end with one more separator than the head")
        rows = [row._replace(cells=row.cells[:-1]) for row in rows]
    columns = _named(sheet, names, rows)
    _check_names(sheet, columns, head.first)
    for row in rows:
        if [cell.strip("\ufeff ") for cell in row.cells] == names:
            where = f"{sheet.shown}:{row.first}"
            raise BadInput(f"{where}: The head stands here again. Delete the line.")
    return columns, rows


def _have_one_more(rows: Sequence[Line], names: Sequence[str | None]) -> bool:
    return {len(row.cells) for row in rows} == {len(names) + 1}


def _named(sheet: Sheet, names: Sequence[str], rows: Sequence[Line]) -> list[str | None]:
    """Returns the names, None for a column without a name and without content."""
    columns: list[str | None] = [*names]
    for place, name in enumerate(names):
        if name:
            continue
        cells = [row.cells[place : place + 1] for row in rows]
        if all(cell == [""] for cell in cells):
            columns[place] = None
    if number := columns.count(None):
        sheet.report.remarks.append(f"{number} empty columns without a name are left out")
    return columns


def _check_names(sheet: Sheet, columns: Sequence[str | None], line: int) -> None:
    places: dict[str, list[str]] = {}
    for place, name in enumerate(columns, 1):
        if name is not None:
            places.setdefault(name, []).append(str(place))
    for name, numbers in places.items():
        if len(numbers) < 2:
            continue
        what = f"called {printable(name)!r}" if name else "without a name"
        shown = ", ".join(numbers)
        raise BadInput(
            f"{sheet.shown}:{line}: {len(numbers)} columns are {what} ({shown}). Rename them."
        )


def _check_widths(
    sheet: Sheet, columns: Sequence[str | None], rows: Sequence[Line], has_head: bool
) -> None:
    """Raises BadInput for a row with more or fewer cells than columns."""
    wrong = next((row for row in rows if len(row.cells) != len(columns)), None)
    if wrong is None:
        return
    number = len(wrong.cells)
    cells = "1 cell" if number == 1 else f"{number} cells"
    names = [name or "without a name" for name in columns]
    if has_head and (columns[0] or "").startswith("#"):
        advice = "If the first line is a comment, delete it."
    elif has_head and len(rows) > 1 and _have_one_more(rows, columns):
        advice = "All rows have one cell more than the head: name that column."
    elif sheet.dialect.is_quoted:
        separator = dialects.NAMES[sheet.dialect.separator]
        advice = f"Quote a cell that holds a {separator}, or correct the line."
    else:
        advice = "Correct the line."
    where = f"{sheet.shown}:{wrong.first}"
    raise BadInput(f"{where}: {cells} instead of {len(columns)} ({listed(names)}). {advice}")


def _note_total(sheet: Sheet, rows: Sequence[Line]) -> None:
    """Notes a last row with a word such as Total in a cell, which no other row has."""
    if len(rows) < 2:
        return
    *others, last = rows
    words = [cell for cell in last.cells if cell.strip().casefold().rstrip(":") in _TOTALS]
    if not words or any(words[0] in row.cells for row in others):
        return
    word = printable(words[0].strip(), most=60)
    sheet.report.remarks.append(
        f"the last row (line {last.first}) has {word!r}: delete it if it sums the others"
    )


# --- quotation marks --------------------------------------------------------------------------------------------------


def _check_letters(sheet: Sheet, rows: Sequence[Line]) -> None:
    """Notes quotation marks that are letters. Raises BadInput for doubled ones in a cell."""
    number = 0
    for row in rows:
        for cell in row.cells:
            if len(cell) < 2 or not cell.startswith(_MARK) or not cell.endswith(_MARK):
                continue
            number += 1
            inside = cell[1:-1]
            if '""' in inside and _MARK not in inside.replace('""', ""):
                text = printable(cell, most=60)
                raise BadInput(
                    f"{sheet.shown}:{row.first}: {text} is quoted as in CSV, and TSV has no "
                    "quotes. Name the file .csv, or write the letters alone."
                )
    if number:
        sheet.report.remarks.append(
            f"{number:,} cells in quotation marks, which are letters in TSV"
        )


def _check_spaced_marks(sheet: Sheet, rows: Sequence[Line]) -> None:
    """Raises BadInput for a space before a quotation mark, which makes the mark a letter."""
    for row in rows:
        for cell in row.cells:
            if not cell.startswith(" ") or not cell.lstrip(" ").startswith(_MARK):
                continue
            doubled = cell.replace(_MARK, '""')
            line = "".join(sheet.texts[row.first - 1 : row.last])
            if f'"{doubled}"' not in line:
                text = printable(cell, most=60)
                raise BadInput(
                    f"{sheet.shown}:{row.first}: A quotation mark stands after a space, {text}. "
                    "Delete the space, or quote the whole cell."
                )


def _check_merged(sheet: Sheet, rows: Sequence[Line]) -> None:
    """Raises BadInput for a quoted cell over several lines that all look like rows.

    A stray mark at the beginning of a cell swallows rows until the next mark. Then every line has
    as many separators as a row, and a swallowed cell resembles the cells of its column in other
    rows.
    """
    merged = [row for row in rows if row.last > row.first]
    suspects = [row for row in merged if _looks_like_rows(sheet, row)]
    cells = [row.cells for row in rows if row.last == row.first]
    if not suspects or not cells:
        return
    columns = [{*column} - {""} for column in zip(*cells, strict=True)]
    are_numbers = [bool(column) and all(map(_is_number, column)) for column in columns]
    for row in suspects:
        for place, piece in _swallowed(sheet, row):
            if piece in columns[place] or (are_numbers[place] and _is_number(piece)):
                raise BadInput(
                    f"{sheet.shown}:{row.first}: A quotation mark begins a cell that ends in line "
                    f"{row.last}, and the lines between look like rows. Delete the mark, or write "
                    'the cell in one line; write "" for a mark inside a quoted cell.'
                )


def _pieces(sheet: Sheet, row: Line) -> list[list[str]]:
    """Returns the lines of a row cut at every separator, quoted or not."""
    texts = sheet.texts[row.first - 1 : row.last]
    return [text.rstrip("\r\n").split(sheet.dialect.separator) for text in texts]


def _looks_like_rows(sheet: Sheet, row: Line) -> bool:
    widths = {*map(len, _pieces(sheet, row))}
    return widths == {len(row.cells)}


def _swallowed(sheet: Sheet, row: Line) -> list[tuple[int, str]]:
    """Returns the pieces inside the quoted cell with their columns, without the cell's column."""
    first, *middle, last = _pieces(sheet, row)
    is_broken = ["\n" in cell or "\r" in cell for cell in row.cells]
    own = is_broken.index(True)
    pieces = [*enumerate(first)][own + 1 :]
    for line in middle:
        pieces += enumerate(line)
    pieces += [*enumerate(last)][:own]
    return [(column, piece) for column, piece in pieces if column != own]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
