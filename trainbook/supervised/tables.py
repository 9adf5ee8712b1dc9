"""Reads users' tables: CSV, TSV, JSON, JSON lines and Parquet, packed or not. Refuses ambiguity.

A row has as many cells as the head, a quotation mark is shut, a number is a number: anything else
raises BadInput with file and line. Notes name separators, encodings, spaces and omissions.
"""

import codecs
import contextlib
import io
import itertools
import math
import unicodedata
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lib.errors import BadInput, printable
from trainbook.supervised import coverage, delimited, json_rows
from trainbook.supervised.coverage import Report, Row
from trainbook.supervised.files import (
    decoded,
    find_files,
    lines_of,
    matching,
    packed,
    read_lines,
    read_text,
    unpacked,
)
from trainbook.supervised.names import listed

__all__ = [
    "find_files",
    "paragraphs",
    "read_lines",
    "read_table",
    "read_text",
    "records",
]
_JSON = (".json", ".jsonl", ".ndjson")
_LOST = "\ufffd"  # in the place of a letter that an earlier reader could not decode


class Table(NamedTuple):
    """A file's report, rows (cells by column) with their lines, blank lines and separator."""

    report: Report
    rows: list[dict[str, Any]]
    lines: list[int]
    blank: list[int]
    separator: str = ""  # of cells; "" for JSON and Parquet

    @property
    def columns(self) -> list[str]:
        return self.report.columns

    @property
    def path(self) -> Path:
        return self.report.path

    @property
    def shown(self) -> str:
        return printable(self.path.name)

    def column(self, name: str) -> list[str]:
        """Returns the cells of a column as text, missing ones as ""."""
        cells = [row.get(name) for row in self.rows]
        return ["" if cell is None else str(cell) for cell in cells]


def read(
    path: Path, shown: str, names: Sequence[str] | None = None, comments: bool = False
) -> Table:
    """Returns the rows of a file. Raises BadInput.

    `names` are the columns of a file without a head, (): numbers from 0; None: the file has a head.
    `comments` leaves out lines that begin with # and have no separator.
    """
    suffix, content = unpacked(path, shown)
    report = Report(path)
    if suffix == ".parquet":
        table = _of_parquet(content, shown, report)
    else:
        text, encoding = decoded(content, shown)
        report.remarks += [encoding] if encoding != "UTF-8" else []
        if lost := text.count(_LOST):
            report.remarks.append(f"{lost:,} letters were lost before (U+FFFD)")
        if suffix in _JSON:
            table = _of_json(text, shown, suffix, names, report)
        else:
            table = _of_cells(text, shown, suffix, names, comments, report)
    report.rows = len(table.rows)
    coverage.add(report)
    return table


def _of_cells(
    text: str, shown: str, suffix: str, names: Sequence[str] | None, comments: bool, report: Report
) -> Table:
    rows = delimited.read(text, shown, suffix, names, comments, report)
    report.columns = [name for name in rows.names if name is not None]
    cells: list[dict[Any, str]]
    cells = [dict(zip(rows.names, line.cells, strict=True)) for line in rows.lines]
    for row in cells:
        row.pop(None, None)  # an empty column without a name
    firsts = [line.first for line in rows.lines]
    return Table(report, cells, firsts, rows.blank, rows.separator)


def _of_json(
    text: str, shown: str, suffix: str, names: Sequence[str] | None, report: Report
) -> Table:
    lines, rows = json_rows.read(text, shown, suffix, names, report)
    report.columns = [*dict.fromkeys(name for row in rows for name in row)]
    return Table(report, rows, lines, [])


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
    frame = frame.astype(object).where(frame.notna(), None)
    numbers = [*range(1, len(frame) + 1)]
    return Table(report, frame.to_dict("records"), numbers, [])


def reordered(table: Table, order: Sequence[int]) -> bytes:
    """Returns the bytes of a table's file with some of its rows, in another order. Raises BadInput.

    The lines above the first row stay, and blank lines stay behind their row; so do encoding and
    packing.
    """
    shown = printable(table.path)
    suffix, content = unpacked(table.path, shown)
    if suffix == ".parquet":
        frame = pd.read_parquet(io.BytesIO(content))
        return frame.iloc[[*order]].to_parquet()
    text, encoding = decoded(content, shown)
    if content.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    if table.separator:
        text = _reordered(text, table.lines, order)
    else:
        rows = [table.rows[place] for place in order]
        text = json_rows.written(rows, text, suffix)
    return packed(text.encode(encoding), table.path)


def _reordered(text: str, firsts: Sequence[int], order: Sequence[int]) -> str:
    """Returns a text with its rows, which begin in the lines `firsts`, in another order."""
    lines = lines_of(text.rstrip("\r\n") + "\n")
    bounds = [*(first - 1 for first in firsts), len(lines)]
    blocks = [lines[begin:end] for begin, end in itertools.pairwise(bounds)]
    ordered = [lines[: bounds[0]], *(blocks[place] for place in order)]
    return "".join(itertools.chain(*ordered))


def records(
    source: Path, pattern: str = "*.csv", numbers: Sequence[str] = (), columns: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table as dicts; for a folder, the rows of all matching files, by name.

    Rows lack the columns that their file lacks. Columns in `numbers` become floats. `columns` are
    the names for files without a head; the last ones may be missing. Raises BadInput with file
    and line.
    """
    for table, shown in _tables(source, pattern, columns):
        yield from _rows(table, shown, numbers)


def paragraphs(
    source: Path, pattern: str = "*.tsv", columns: Sequence[str] = ("word", "tag")
) -> Iterator[list[dict[str, Any]]]:
    """Yields lists of rows between blank lines, from files without a head. `# ...` is a comment."""
    for table, shown in _tables(source, pattern, columns, comments=True):
        numbers = [bisect(table.blank, line) for line in table.lines]
        pairs = zip(numbers, _rows(table, shown), strict=True)
        for _, group in itertools.groupby(pairs, key=itemgetter(0)):
            yield [row for _, row in group]


def _tables(
    source: Path, pattern: str, columns: Sequence[str], comments: bool = False
) -> Iterator[tuple[Table, str]]:
    if source.is_dir():
        coverage.add_folder(source)
    for path in matching(source, pattern).values():
        shown = printable(path)
        yield read(path, shown, columns or None, comments), shown


def _rows(table: Table, shown: str, numbers: Sequence[str] = ()) -> Iterator[Row]:
    for line, cells in zip(table.lines, table.rows, strict=True):
        place = f"{shown}:{line}"
        for name in numbers:
            _make_number(cells, name, place)
        yield Row(cells, place, table.report.used)


def _make_number(cells: dict[str, Any], name: str, place: str) -> None:
    """Converts a cell to float; removes null, a missing value. Raises BadInput."""
    value = cells.get(name)
    if value is None:
        cells.pop(name, None)
        return
    if type(value) is int:
        return
    number = number_of(value)
    if not math.isfinite(number):
        cell = printable(repr(value), most=60)
        raise BadInput(
            f"{place}: {cell} in the column {printable(name)} is no number. "
            "Write it as 1234.5, leave the row out, or replace it in read()."
        )
    cells[name] = number


def number_of(value: Any) -> float:
    """Returns a number, or a text that is one, as a float; NaN for anything else."""
    if type(value) in (int, float):
        return float(value)
    if not isinstance(value, str) or "_" in value:  # only Python reads 1_000
        return math.nan
    with contextlib.suppress(ValueError):
        return float(value)
    return math.nan


def read_table(
    path: Path, shown: str, columns: Mapping[str, str], optional: Sequence[str] = ()
) -> pd.DataFrame:
    """Returns cells as text under our names for `columns` (numbers: no head). Raises BadInput."""
    needed = [column for name, column in columns.items() if name not in optional]
    is_headless = all(map(str.isdecimal, needed))
    table = read(path, shown, () if is_headless else None)
    texts: dict[str, Any] = {}
    for name, column in columns.items():
        if column in table.columns:
            table.report.used.add(column)
            cells = [row.get(column) for row in table.rows]
            texts[name] = [_text(cell, column, shown) for cell in cells]
            continue
        if name not in optional:
            names = listed(table.columns)
            raise BadInput(
                f"{shown} has no column {printable(column)}; its columns are {names}. "
                f"Name the column of the {name} as workload.columns.{name}."
            )
        texts[name] = ""
    return pd.DataFrame(texts, index=range(1, len(table.rows) + 1))


def _text(value: Any, column: str, shown: str) -> str:
    if isinstance(value, list | dict | np.ndarray):
        raise BadInput(f"{shown}: the column {column} holds lists or objects. Flatten them first.")
    if pd.isna(value):
        return ""
    if isinstance(value, float) and value.is_integer():  # 3 in a column with gaps
        value = int(value)
    # JSON may escape half a letter, which cannot be written
    text = str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return " ".join(unicodedata.normalize("NFC", text).split())
