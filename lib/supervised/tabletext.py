"""Tables as text: the cells of each row and the text it was read from, to write its rows again."""

import contextlib
import csv
import gzip
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pandas

from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from lib.task.notes import note

SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet")
_MOST_BYTES = 2**31  # of a table, unpacked
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


@dataclass(frozen=True)
class Table:
    """The cells of a table's rows, and the text of each. A Parquet file has no texts."""

    path: Path
    head: list[str]
    rows: list[list[str]]
    texts: list[str]  # of the head, if the file has one, then of each row
    encoding: str = "utf-8"
    separator: str = ","  # "" of JSON lines, "[" of a list of JSON objects

    def column(self, name: str) -> list[str]:
        place = self.head.index(name)
        return [row[place] for row in self.rows]

    def without_head(self) -> "Table":
        """Returns the same table with its first line as a row and numbers as names of columns."""
        head = [str(place + 1) for place in range(len(self.head))]
        rows = [self.head, *self.rows]
        return Table(self.path, head, rows, self.texts, self.encoding, self.separator)

    def content(self, order: Sequence[int]) -> bytes:
        """Returns the bytes of the file with these of its rows, in this order."""
        if self.path.suffix == ".parquet":
            return pandas.read_parquet(self.path).iloc[list(order)].to_parquet()
        first = len(self.texts) - len(self.rows)
        lines = self.texts[:first]
        lines += [self.texts[first + place] for place in order]
        text = "".join(f"{line}\n" for line in lines)
        if self.separator == "[":
            text = f"[{','.join(lines)}]"
        content = text.encode(self.encoding)
        return gzip.compress(content) if self.path.suffix == ".gz" else content


def is_table(path: Path) -> bool:
    return path.name.casefold().removesuffix(".gz").endswith(SUFFIXES)


def read(path: Path, what: str = "The table") -> Table:
    """Reads CSV, TSV, JSON or JSON lines, also packed by gzip, and Parquet. Raises BadInput."""
    if path.suffix == ".parquet":
        return _of_parquet(path)
    shown = f"{what} {printable(path)}"
    text, encoding = _decoded(_unpacked(path, shown), shown)
    suffix = PurePosixPath(path.name.casefold().removesuffix(".gz")).suffix
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _of_objects(path, text, encoding)
    separator = _separator(text, suffix)
    rows, texts = _of_lines(text, separator, shown)
    head = rows[0] if rows else []
    return Table(path, head, rows[1:], texts, encoding, separator)


def _unpacked(path: Path, shown: str) -> bytes:
    try:
        content = read_bytes(path, _MOST_BYTES)
        if path.suffix != ".gz":
            return content
        with gzip.open(io.BytesIO(content)) as file:
            return file.read(_MOST_BYTES)
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{shown} cannot be read ({printable(why)}). Give a CSV file.") from None


def _decoded(content: bytes, shown: str) -> tuple[str, str]:
    """Returns the text and its encoding: by its mark, else UTF-8, else cp1252 with a note."""
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    with contextlib.suppress(UnicodeDecodeError):
        return content.decode(encoding), encoding
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"{shown}, line {line}: The text is neither UTF-8 nor cp1252"
        raise BadInput(f"{what}. Save it as UTF-8.") from None
    note(f"{shown} is no UTF-8 and was read as cp1252.")
    return text, "cp1252"


def _separator(text: str, suffix: str) -> str:
    if suffix == ".tsv":
        return "\t"
    first = text.partition("\n")[0]
    return max(",;\t|", key=first.count)


def _of_lines(text: str, separator: str, shown: str) -> tuple[list[list[str]], list[str]]:
    """Returns the cells and the text of each row. Raises BadInput with the line."""
    quoting: Any = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    rows: list[list[str]] = []
    texts: list[str] = []
    lines: list[str] = []  # of the row that is read
    number = 0

    def watched() -> Iterator[str]:
        nonlocal number
        for line in io.StringIO(text, newline=""):
            number += 1
            lines.append(line)
            yield line

    with _any_length():
        reader = csv.reader(watched(), delimiter=separator, quoting=quoting, strict=True)
        try:
            for row in reader:
                if row:
                    _check_width(row, rows, f"{shown}, line {number}")
                    rows.append(row)
                    texts.append("".join(lines).rstrip("\r\n"))
                lines.clear()
        except csv.Error as error:
            raise BadInput(f"{shown}, line {number}: {error}. Correct the line.") from None
    return rows, texts


def _check_width(row: Sequence[str], rows: Sequence[Sequence[str]], place: str) -> None:
    if rows and len(row) != len(rows[0]):
        has = f"It has {len(row)} cells, and the first line has {len(rows[0])}"
        raise BadInput(f"{place}: {has}. Correct the line.")


@contextlib.contextmanager
def _any_length() -> Iterator[None]:
    """Lets csv read cells above 131,072 letters inside the block."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _of_objects(path: Path, text: str, encoding: str) -> Table:
    """Returns a list of JSON objects, or one object a line. Raises BadInput for other JSON."""
    is_list = text.lstrip().startswith("[")
    lines = [text] if is_list else [line for line in text.split("\n") if line.strip()]
    try:
        values = [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        why = printable(error, most=200)
        raise BadInput(f"{printable(path)} is no JSON ({why}). Correct or leave out the file.") from None
    objects = values[0] if is_list else values
    if not all(isinstance(each, dict) for each in objects):
        what = f"{printable(path)} has values that are no JSON objects"
        raise BadInput(f"{what}. Write an object for each row.")
    head = list(dict.fromkeys(key for each in objects for key in each))
    rows = [[str(each.get(key, "")) for key in head] for each in objects]
    texts = [json.dumps(each, ensure_ascii=False) for each in objects]
    return Table(path, head, rows, texts, encoding, "[" if is_list else "")


def _of_parquet(path: Path) -> Table:
    try:
        frame = pandas.read_parquet(path)
    except (OSError, ValueError, ImportError) as error:
        why = printable(error, most=200)
        raise BadInput(f"{printable(path)} cannot be read ({why}). Give a CSV file.") from None
    rows = [[*map(str, row)] for row in frame.itertuples(index=False)]
    return Table(path, [*map(str, frame.columns)], rows, [])
