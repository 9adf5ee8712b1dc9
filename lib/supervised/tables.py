"""Reads users' tables: CSV, TSV, JSON, JSON lines and Parquet, packed or not. What is not certain is refused.

A row has as many cells as the head, a quotation mark is shut, a number is a number: anything else raises BadInput with
file and line. Separators, encodings and spaces are recognised and noted, and so is what was left out.
"""

import contextlib
import csv
import io
import itertools
import json
import math
import re
import unicodedata
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lib.errors import BadInput, printable
from lib.supervised import coverage
from lib.supervised.coverage import Report, Row
from lib.supervised.files import decoded, find_files, lines_of, matching, read_lines, read_text, unpacked

__all__ = ["find_files", "paragraphs", "read_lines", "read_objects", "read_table", "read_text", "records"]
_SEPARATORS = (",", ";", "\t", "|")
_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "|"}
_TABBED = (".tsv", ".tab", ".txt")
_TRIED = 100  # rows from which the separator is recognised
_JSON = (".json", ".jsonl", ".ndjson")
_SPACE = re.compile(r"[ \t\r\n]*")  # of JSON
_SPACE_OR_COMMA = re.compile(r"[ \t\r\n,]*")
# By default 131,072 letters. The limit is that of the process, and of a file here
csv.field_size_limit(2**31 - 1)


@dataclass
class Table:
    """A file's rows as cells by column, the line of each, the lines that are blank, and how it was read."""

    report: Report
    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    blank: list[int] = field(default_factory=list)


class Line(NamedTuple):
    """The cells of a row, and its first and last line."""

    cells: list[str]
    first: int
    last: int


class Dialect(NamedTuple):
    """How a text's cells are separated, whether they may be quoted, and whether a space follows each separator."""

    separator: str
    is_quoted: bool
    is_spaced: bool


def read(path: Path, shown: str, names: Sequence[str] | None = None, comments: bool = False) -> Table:
    """Returns the rows of a file. Raises BadInput.

    `names` are those of the columns of a file without a head (): numbers from 0; None: the file has a head. With
    `comments`, lines that begin with # and have no separator are left out.
    """
    suffix, content = unpacked(path, shown)
    report = Report(path)
    if suffix == ".parquet":
        return _counted(_of_parquet(content, shown, report))
    text, encoding = decoded(content, shown)
    if encoding != "UTF-8":
        report.remarks.append(encoding)
    if "\ufffd" in text:
        report.remarks.append(f"{text.count(chr(0xFFFD)):,} letters were lost before (U+FFFD)")
    if suffix in _JSON:
        return _counted(_of_json(text, shown, suffix, names, report))
    return _counted(_Delimited(text, shown, suffix, names, comments, report).table())


def _counted(table: Table) -> Table:
    table.report.rows = len(table.rows)
    coverage.add(table.report)
    return table


def records(
    source: Path, pattern: str = "*.csv", numbers: Sequence[str] = (), columns: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table as dicts; of a folder those of all files that match, by name.

    A column that a file lacks is not in its rows. Columns in `numbers` become floats. `columns` names those of files
    without a head; the last ones may be missing. Raises BadInput with file and line.
    """
    for table, shown in _tables(source, pattern, columns):
        yield from _rows(table, shown, numbers)


def paragraphs(
    source: Path, pattern: str = "*.tsv", columns: Sequence[str] = ("word", "tag")
) -> Iterator[list[dict[str, Any]]]:
    """Yields lists of rows between blank lines, of files without a head. Lines of # without a tab are comments."""
    for table, shown in _tables(source, pattern, columns, comments=True):
        rows = zip(table.lines, _rows(table, shown), strict=True)
        for _, group in itertools.groupby(rows, key=lambda pair: bisect(table.blank, pair[0])):
            yield [row for _, row in group]


def _tables(source: Path, pattern: str, columns: Sequence[str], comments: bool = False) -> Iterator[tuple[Table, str]]:
    if source.is_dir():
        coverage.add_folder(source)
    for path in matching(source, pattern).values():
        yield read(path, printable(path), columns or None, comments), printable(path)


def _rows(table: Table, shown: str, numbers: Sequence[str] = ()) -> Iterator[Row]:
    for line, cells in zip(table.lines, table.rows, strict=True):
        place = f"{shown}:{line}"
        for name in numbers:
            _make_number(cells, name, place)
        yield Row(cells, place, table.report.used)


def _make_number(cells: dict[str, Any], name: str, place: str) -> None:
    """Makes a float of a cell; leaves out null, which JSON and Parquet have for no value. Raises BadInput."""
    if name in cells and cells[name] is None:
        del cells[name]
    if name not in cells:
        return
    value = cells[name]
    if type(value) is int or (type(value) is float and math.isfinite(value)):  # of JSON
        return
    if isinstance(value, str) and "_" not in value:  # 1_000 is a number in Python alone
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(value)):
                cells[name] = number
                return
    what = f"{place}: {printable(repr(value), most=60)} in the column {printable(name)} is no number"
    raise BadInput(f"{what}. Correct it (1234.5), leave the row out, or write in read() which number it stands for.")


def read_objects(path: Path, shown: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line and the object for each row of JSON, as a list or lines. Raises BadInput with the line."""
    table = read(path, shown)
    yield from zip(table.lines, table.rows, strict=True)


def read_table(path: Path, shown: str, columns: Mapping[str, str], optional: Sequence[str] = ()) -> pd.DataFrame:
    """Returns cells as text under our names for `columns` (or numbers, without a head). Raises BadInput."""
    is_headless = all(column.isdecimal() for name, column in columns.items() if name not in optional)
    table = read(path, shown, () if is_headless else None)
    texts: dict[str, Any] = {}
    for name, column in columns.items():
        if column in table.report.columns:
            table.report.used.add(column)
            texts[name] = [_text(row.get(column), column, shown) for row in table.rows]
            continue
        if name not in optional:
            what = f"{shown} has no column {printable(column)}"
            names = printable(", ".join(table.report.columns), most=300) or "none"
            raise BadInput(f"{what}; its columns are {names}. Name that of the {name} as workload.columns.{name}.")
        texts[name] = ""
    return pd.DataFrame(texts, index=range(1, len(table.rows) + 1))


def _text(value: Any, column: str, shown: str) -> str:
    if isinstance(value, list | dict | np.ndarray):
        raise BadInput(f"{shown}: the column {column} holds lists or objects. Flatten them first.")
    if pd.isna(value):
        return ""
    number = int(value) if isinstance(value, float) and value.is_integer() else value  # 3 in a column with gaps
    text = str(number).encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a letter, out of JSON
    return " ".join(unicodedata.normalize("NFC", text).split())


# --- cells between separators -----------------------------------------------------------------------------------------


class _Delimited:
    """A text of separated cells on its way to a table."""

    def __init__(
        self, text: str, shown: str, suffix: str, names: Sequence[str] | None, comments: bool, report: Report
    ) -> None:
        self.texts = lines_of(text)
        self.shown = shown
        self.suffix = suffix
        self.names = names
        self.comments = comments
        self.report = report
        self.blank: list[int] = []
        self.usual = "\t" if suffix in _TABBED else ","
        self.dialect = self.recognised()

    def table(self) -> Table:
        others: Counter[str] = Counter()
        rows = list[Line]()
        for line in self.lines(self.dialect):
            is_comment = self.comments and len(line.cells) == 1 and line.cells[0].startswith("#")
            if is_comment:
                others["comments"] += 1
            elif not any(line.cells) or (len(line.cells) == 1 and not line.cells[0].strip()):
                others["of empty cells" if len(line.cells) > 1 else "blank"] += 1
                self.blank.append(line.first)
            else:
                rows.append(line)
        columns, below = self.columns(rows)
        others["head"] = len(rows) - len(below)
        rows = below
        self.check(columns, rows)
        self.check_quotes(rows)
        kept = [place for place, name in enumerate(columns) if name is not None]
        names = [str(columns[place]) for place in kept]
        others["inside quoted cells"] = sum(row.last - row.first for row in rows)
        self.report.lines = len(self.texts)
        self.report.others = {what: others[what] for what in ("head", "blank", *sorted(others)) if others[what]}
        self.report.columns = names
        cells = [{name: row.cells[place] for name, place in zip(names, kept, strict=True)} for row in rows]
        return Table(self.report, cells, [row.first for row in rows], self.blank)

    # --- separators ---

    def recognised(self) -> Dialect:
        """Returns the dialect in which the first rows have as many cells as the head. Raises BadInput for two."""
        first = next((text for text in self.texts if text.strip()), "")
        is_known = self.names is not None and self.usual == "\t"  # a line of one cell may be a text with commas
        dialects = [self.dialect_of(mark, first) for mark in ((self.usual,) if is_known else _SEPARATORS)]
        widths = {dialect: self.widths(dialect) for dialect in dialects}
        exact = [dialect for dialect, counts in widths.items() if len({*counts}) == 1 and counts[0] > 1]
        longer = [d for d, counts in widths.items() if counts and counts[0] > 1 and {*counts[1:]} == {counts[0] + 1}]
        fitting = exact or longer
        if self.usual == "\t":
            fitting = [dialect for dialect in fitting if dialect.separator == "\t"] or fitting
        if len(fitting) > 1:
            marks = " and by ".join(_NAMES[dialect.separator] for dialect in fitting)
            raise BadInput(f"{self.shown}: The rows can be separated by {marks}. Quote the cells, or take tabs (.tsv).")
        if not fitting:  # whose wrong line is then named
            is_usual = [dialect.separator == self.usual for dialect in dialects]
            wide = [(widths[d][:1] or [1], usual, d) for d, usual in zip(dialects, is_usual, strict=True)]
            fitting = [max(wide)[2]]
        (dialect,) = fitting
        if dialect.separator != self.usual:
            self.report.remarks.append(f"separated by {_NAMES[dialect.separator]}")
        if dialect.is_spaced:
            self.report.remarks.append("spaces after separators are left out")
        return dialect

    def dialect_of(self, separator: str, first: str) -> Dialect:
        """Returns the dialect for a separator. Cells between tabs are not quoted, unless all names in the head are."""
        names = first.rstrip("\r\n").split(separator)
        has_quotes = all(len(name) > 1 and name[0] == name[-1] == '"' for name in names)
        is_quoted = separator != "\t" or self.suffix == ".csv" or (has_quotes and self.names is None)
        marks = first.count(separator)
        is_spaced = self.names is None and 0 < marks == first.count(f"{separator} ")
        return Dialect(separator, is_quoted, is_spaced)

    def widths(self, dialect: Dialect) -> list[int]:
        """Returns the numbers of cells of the first rows; none where the quotes are wrong."""
        widths = list[int]()
        with contextlib.suppress(BadInput):
            for line in itertools.islice(self.lines(dialect), _TRIED):
                if any(cell.strip() for cell in line.cells):
                    widths.append(len(line.cells))
        return widths

    def lines(self, dialect: Dialect) -> Iterator[Line]:
        return self.quoted(dialect) if dialect.is_quoted else self.unquoted(dialect)

    def unquoted(self, dialect: Dialect) -> Iterator[Line]:
        for number, text in enumerate(self.texts, 1):
            cells = text.rstrip("\r\n").split(dialect.separator)
            yield Line([cell.lstrip(" ") for cell in cells] if dialect.is_spaced else cells, number, number)

    def quoted(self, dialect: Dialect) -> Iterator[Line]:
        reader = csv.reader(self.texts, delimiter=dialect.separator, skipinitialspace=dialect.is_spaced, strict=True)
        first = 1
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                what = f"{self.shown}:{first}: A quotation mark begins a cell here that"
                how = (
                    "nothing shuts"
                    if "unexpected end" in str(error)
                    else f"does not end a cell in line {reader.line_num}"
                )
                raise BadInput(
                    f'{what} {how}. Write "" for a mark inside a quoted cell, or save the file as TSV.'
                ) from None
            yield Line(cells, first, reader.line_num)
            first = reader.line_num + 1

    # --- columns ---

    @property
    def has_head(self) -> bool:
        return self.names is None

    def columns(self, rows: list[Line]) -> tuple[list[str | None], list[Line]]:
        """Returns the names of the columns (None: empty, without a name) and the rows below them. Raises BadInput."""
        if not rows:
            return [*(self.names or ())], rows
        if self.names is not None:
            numbers = [str(number) for number in range(len(rows[0].cells))]
            if self.names or rows[0].cells != numbers:
                return [*(self.names[: len(numbers)] or numbers)], rows
            self.report.remarks.append("the first line numbers the columns")  # as pandas writes a table without names
            return [*numbers], rows[1:]
        head, *below = rows
        columns = [name.strip() for name in head.cells]
        if columns != head.cells:
            self.report.remarks.append("spaces round names of columns are left out")
        if below and {len(row.cells) for row in below} == {len(columns) + 1} and not any(r.cells[-1] for r in below):
            self.report.remarks.append("rows end with one more separator than the head")
            below = [row._replace(cells=row.cells[:-1]) for row in below]
        width = len(columns)
        is_filled = [any(row.cells[place : place + 1] != [""] for row in below) for place in range(width)]
        named = [name if name or filled else None for name, filled in zip(columns, is_filled, strict=True)]
        if empty := named.count(None):
            self.report.remarks.append(f"{empty} empty columns without a name are left out")
        for name, number in Counter(name for name in named if name is not None).items():
            if number > 1:
                places = ", ".join(str(place) for place, other in enumerate(columns, 1) if other == name)
                what = f"called {printable(name)!r}" if name else "without a name"
                raise BadInput(f"{self.shown}:{head.first}: {number} columns are {what} ({places}). Rename them.")
        repeated = next((row for row in below if [cell.strip("\ufeff ") for cell in row.cells] == columns), None)
        if repeated:
            raise BadInput(f"{self.shown}:{repeated.first}: The head stands here again. Delete the line.")
        return named, below

    def check(self, columns: Sequence[str | None], rows: Sequence[Line]) -> None:
        """Raises BadInput for a row with more or fewer cells than there are columns."""
        for row in rows:
            if len(row.cells) == len(columns):
                continue
            what = f"{self.shown}:{row.first}: {len(row.cells)} cells instead of {len(columns)}"
            names = ", ".join(name or "without a name" for name in columns)
            order = f" ({printable(names, most=200)})" if columns else ""
            advice = f"Quote a cell that holds a {_NAMES[self.dialect.separator]}, or correct the line."
            advice = advice if self.dialect.is_quoted else "Correct the line."
            if self.has_head and {len(other.cells) for other in rows} == {len(columns) + 1}:
                advice = "All rows have one cell more than the head: name that column."
            raise BadInput(f"{what}{order}. {advice}")

    # --- quotation marks ---

    def check_quotes(self, rows: Sequence[Line]) -> None:
        """Raises BadInput for quotation marks that may be meant otherwise than they are read."""
        if self.dialect.is_quoted:
            self.check_spaced_quotes(rows)
            self.check_merged(rows)
            return
        wrapped = 0
        for row in rows:
            for cell in row.cells:
                if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"':
                    continue
                wrapped += 1
                inside = cell[1:-1]
                if '""' in inside and '"' not in inside.replace('""', ""):
                    what = f"{self.shown}:{row.first}: {printable(cell, most=60)} is quoted as in CSV"
                    raise BadInput(f"{what}, and TSV has no quotes. Name the file .csv, or write the letters alone.")
        if wrapped:
            self.report.remarks.append(f"{wrapped:,} cells in quotation marks, which are letters in TSV")

    def check_spaced_quotes(self, rows: Sequence[Line]) -> None:
        for row in rows:
            for cell in row.cells:
                if cell[:1] != " " or cell.lstrip(" ")[:1] != '"':
                    continue
                doubled = cell.replace('"', '""')
                if f'"{doubled}"' not in "".join(self.texts[row.first - 1 : row.last]):
                    what = (
                        f"{self.shown}:{row.first}: A quotation mark stands after a space, {printable(cell, most=60)}"
                    )
                    raise BadInput(f"{what}. Delete the space, or quote the whole cell.")

    def check_merged(self, rows: Sequence[Line]) -> None:
        """Raises BadInput for a quoted cell over several lines of which each looks like a row.

        A stray mark at the beginning of a cell swallows rows until another one. Then every line has as many separators
        as a row, and one of the swallowed cells is what other rows have in its column.
        """
        suspects = [(row, pieces) for row in rows if row.last > row.first and (pieces := self.as_rows(row))]
        if not suspects:
            return
        plain = [row.cells for row in rows if row.last == row.first]
        is_usual = [_usual(column) for column in zip(*plain, strict=True)]
        for row, pieces in suspects:
            place = next(n for n, cell in enumerate(row.cells) if "\n" in cell or "\r" in cell)
            inside = [*enumerate(pieces[0][place + 1 :], place + 1), *enumerate(pieces[-1][:place])]
            inside += [pair for middle in pieces[1:-1] for pair in enumerate(middle) if pair[0] != place]
            if is_usual and any(is_usual[column](piece) for column, piece in inside):
                what = f"{self.shown}:{row.first}: A quotation mark begins a cell that ends in line {row.last}"
                advice = 'Delete the mark, or write the lines as one; write "" for a mark inside a quoted cell.'
                raise BadInput(f"{what}, and the lines between look like rows. {advice}")

    def as_rows(self, row: Line) -> list[list[str]]:
        """Returns the lines of a row cut at separators, if each has as many cells as the row; else nothing."""
        texts = self.texts[row.first - 1 : row.last]
        pieces = [text.rstrip("\r\n").split(self.dialect.separator) for text in texts]
        return pieces if {len(piece) for piece in pieces} == {len(row.cells)} else []


def _usual(column: Iterable[str]) -> Callable[[str], bool]:
    """Returns whether a text is what a column has: one of its cells, or a number where all are."""
    cells = {cell for cell in column if cell}
    are_numbers = bool(cells) and all(map(_is_number, cells))
    return lambda text: text in cells or (are_numbers and _is_number(text))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- JSON and Parquet -------------------------------------------------------------------------------------------------


def _of_json(text: str, shown: str, suffix: str, names: Sequence[str] | None, report: Report) -> Table:
    """Reads a list of rows, an object of columns, or rows after each other: objects, or lists if there is no head."""
    values = [*_values(text, shown, 0, _SPACE)]
    if len(values) == 1 and isinstance(values[0][1], list) and _are_rows(values[0][1]):
        begin = text.index("[") + 1
        values = [*_values(text[: text.rindex("]")], shown, begin, _SPACE_OR_COMMA)]
    elif len(values) == 1 and isinstance(values[0][1], dict) and suffix == ".json" and (columns := values[0][1]):
        if rows := _of_columns(columns, shown):
            report.remarks.append("an object of columns")
            values = [(1, row) for row in rows]
    elif values:
        texts = lines_of(text)
        report.lines = len(texts)
        report.others = {"blank": sum(not line.strip() for line in texts)}
    table = Table(report, lines=[line for line, _ in values])
    for line, value in values:
        table.rows.append(_cells(value, names, values[0][1], f"{shown}:{line}"))
    report.columns = [*dict.fromkeys(name for row in table.rows for name in row)]
    return table


def _are_rows(values: Sequence[Any]) -> bool:
    return all(isinstance(value, list | dict) for value in values)


def _cells(value: Any, names: Sequence[str] | None, first: Any, place: str) -> dict[str, Any]:
    """Returns the cells of a row by column. Raises BadInput."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list) or names is None:
        what = f"{place}: it is {printable(repr(value), most=60)} instead of an object"
        raise BadInput(f"{what}. Correct or delete the line.")
    if len(value) != len(first) or (names and len(value) > len(names)):
        raise BadInput(
            f"{place}: {len(value)} cells instead of {len(names) or len(first)}. Correct or delete the line."
        )
    return dict(zip(names or map(str, range(len(value))), value, strict=False))


def _values(text: str, shown: str, begin: int, gap: re.Pattern[str]) -> Iterator[tuple[int, Any]]:
    """Yields the line and the value of each value of JSON that stands in a text from `begin` on."""
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    line, counted = 1, 0
    place = gap.match(text, begin).end()  # type: ignore[union-attr]  # it matches nothing, too
    while place < len(text):
        line += text.count("\n", counted, place)
        counted = place
        try:
            value, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            before = text[place : error.pos].rstrip()  # a line that is cut off is wrong where the next one begins
            line += before.count("\n")
            raise BadInput(f"{shown}:{line}: it is no JSON ({error.msg}). Correct or delete the line.") from None
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{shown}:{line}: it is no JSON that can be read ({error}). Correct it.") from None
        yield line, value
        place = gap.match(text, place).end()  # type: ignore[union-attr]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"an object has the key {printable(name, most=60)!r} twice")
    return values


def _of_columns(columns: Mapping[str, Any], shown: str) -> list[dict[str, Any]]:
    """Returns the rows of an object of lists, or of objects with one key a row; none where it is a row itself."""
    if all(isinstance(column, list) for column in columns.values()):
        if len({len(column) for column in columns.values()}) > 1:
            sizes = ", ".join(f"{printable(name, most=60)} {len(column)}" for name, column in columns.items())
            raise BadInput(f"{shown}: The columns have different lengths ({printable(sizes, most=200)}). Correct them.")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if all(isinstance(column, dict) for column in columns.values()):  # as pandas writes by default
        keys = dict.fromkeys(key for column in columns.values() for key in column)
        return [{name: column[key] for name, column in columns.items() if key in column} for key in keys]
    return []


def _of_parquet(content: bytes, shown: str, report: Report) -> Table:
    try:
        frame = pd.read_parquet(io.BytesIO(content))
    except (OSError, ValueError, TypeError, ImportError) as error:
        why = printable(str(error).strip().split("\n")[0], most=300)
        raise BadInput(f"{shown} cannot be read as parquet ({why}).") from None
    if frame.index.names != [None]:
        frame = frame.reset_index()
    frame.columns = [str(column) for column in frame.columns]
    report.columns = [*frame.columns]
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return Table(report, rows, [*range(1, len(rows) + 1)])
