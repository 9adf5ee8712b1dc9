"""Files as rows of values by column: CSV with any separator, JSON however nested, JSON a line."""

import codecs
import csv
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from lib.training.splits import part_of

FORMS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt")
_ABOUT = re.compile(r"(readme|licen[sc]e).*|sources?|requirements|citation|dataset-metadata")
_MOST_BYTES = 2**30  # of a file
_FILE_NAMES = ("file_name", "filename", "image_name", "img_name", "name", "path", "image")
_IDS = ("id", "image_id", "img_id")
_IDS_OF_QUESTIONS = ("question_id", "qid")  # of an object that has the answers and not the question
NAME = "image_file"  # the column with what a file's own list of pictures calls one
KEY = "key"  # the column with the key under which a row stands in an object


@dataclass(frozen=True)
class Table:
    """The rows of a file, each with its line or entry; columns without names are called 0, 1, ..."""

    file: str  # as messages name it
    part: str  # train, validation or test, where file or folder is named for it
    unit: str
    rows: list[tuple[int, dict[str, Any]]]
    problems: list[str] = field(default_factory=list)

    def place(self, number: int) -> str:
        return f"{self.file}, {self.unit} {number}"

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for _, row in self.rows[:1000] for name in row))

    @property
    def is_named(self) -> bool:
        return not all(name.isdecimal() for name in self.columns)


def plain(name: object) -> str:
    """Returns the name of a column in small letters, with _ for what is neither letter nor number."""
    return re.sub(r"[\W_]+", "_", str(name).strip().casefold()).strip("_")


def tables(source: Path, asked: Collection[str], answered: Collection[str]) -> list[Table]:
    """Returns the tables of a file, or of all files below a folder. Raises BadInput for one that cannot be read.

    `asked` and `answered` are names of columns of questions and answers, by which rows and heads are recognised.
    """
    root = source if source.is_dir() else source.parent
    found = []
    for path in [source] if source.is_file() else sorted(source.rglob("*")):
        inside = path.relative_to(root)
        hidden = any(part.startswith((".", "__MACOSX")) for part in inside.parts)
        if path.suffix.lower() not in FORMS or hidden or _ABOUT.fullmatch(path.stem.lower()) or not path.is_file():
            continue
        shown = printable(inside.as_posix())
        text, suffix, part = _text(path, shown), path.suffix.lower(), part_of(inside)
        if suffix in (".csv", ".tsv", ".txt"):
            table = _separated(text, {*asked, *answered, *_IDS_OF_QUESTIONS}, Table(shown, part, "line", []))
        elif suffix == ".json":
            rows = _rows_of(_json(text, shown, 1), asked)
            table = Table(shown, part, "entry", list(enumerate(rows, 1)))
        else:
            table = _json_lines(text, asked, Table(shown, part, "line", []))
        if table.rows or (table.problems and suffix != ".txt"):
            found.append(table)
    return found


def _text(path: Path, shown: str) -> str:
    try:
        content = read_bytes(path, _MOST_BYTES)
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise BadInput(f"{shown}: The file is UTF-16. Save it as UTF-8.")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{shown} cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{shown}, line {line}: Byte 0x{content[error.start]:02x} is not UTF-8. Save it so.") from None


def _json_lines(text: str, asked: Collection[str], table: Table) -> Table:
    for number, line in enumerate(text.split("\n"), 1):
        try:
            found = _rows_of([_json(line, table.file, number)], asked) if line.strip() else ()
            table.rows.extend((number, row) for row in found)
        except BadInput as error:
            table.problems.append(str(error))
    return table


def _json(text: str, shown: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{shown}, line {line + error.lineno - 1}: This is no JSON ({error.msg}).") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
        raise BadInput(f"{shown}, line {line}: This is no JSON of questions ({error}).") from None


# --- separated values -------------------------------------------------------------------------------------------------


def _separated(text: str, known: Collection[str], table: Table) -> Table:
    """Returns a table with the rows of a CSV; the separator is that of which its first line has most."""
    first = text.split("\n", 1)[0]
    separator = max(",\t;|", key=first.count)
    if not first.count(separator):
        return table
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    names: list[str] = []
    before = 0
    try:
        for cells in reader:
            number, before = before + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if not names:
                names = [plain(cell) for cell in cells]
                if {*names} & {*known}:
                    continue
                names = [str(place) for place in range(len(cells))]
            if len(cells) == len(names):
                table.rows.append((number, dict(zip(names, cells, strict=True))))
            else:
                table.problems.append(
                    f"{table.place(number)}: There are {len(cells)} cells, and the head {len(names)}."
                )
    except csv.Error as error:
        table.problems.append(f"{table.place(before + 1)}: This is no CSV ({error}). Look for an open quotation mark.")
    return table


# --- JSON -------------------------------------------------------------------------------------------------------------


def _rows_of(value: Any, asked: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a value of JSON, with the pictures' names where it lists them beside.

    Of a list, an object without a question is a row too, so that it is missed.
    """
    names = _picture_names(value)
    for entry in value if isinstance(value, list) else [value]:
        rows = list(_rows([entry], {}, asked))
        if not rows and isinstance(value, list) and isinstance(entry, dict):
            rows = [{plain(key): inner for key, inner in entry.items()}]
        for row in rows:
            ids = [str(row[key]) for key in ("image_id", "img_id", "image") if str(row.get(key)) in names]
            yield {**row, NAME: names[ids[0]]} if ids else row


def _rows(value: Any, given: Mapping[str, Any], asked: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields objects and lists that stand for a row each; `given` is what the objects around them say."""
    if isinstance(value, list):
        for inner in value:
            if isinstance(inner, list) and any(isinstance(cell, str) for cell in inner):
                yield {str(place): cell for place, cell in enumerate(inner)}
            else:
                yield from _rows(inner, given, asked)
    elif isinstance(value, dict):
        named = {plain(key): inner for key, inner in value.items()}
        if any(isinstance(named.get(name), str | int | float) for name in (*asked, *_IDS_OF_QUESTIONS)):
            yield {**given, **named}
            return
        around = {**given, **{key: inner for key, inner in named.items() if not isinstance(inner, list | dict)}}
        if columns := _columns(named, asked):
            yield from ({**around, **row} for row in columns)
            return
        for key, inner in value.items():
            if isinstance(inner, list | dict):
                yield from _rows(inner, {**around, KEY: key}, asked)


def _columns(value: Mapping[str, Any], asked: Collection[str]) -> list[dict[str, Any]]:
    """Returns the rows of an object of columns, {"question": [...], "answer": [...]}; none for another."""
    lists = {key: list(one.values()) if isinstance(one, dict) else one for key, one in value.items()}
    length = next((len(lists[key]) for key in asked if _are_texts(lists.get(key))), 0)
    whole = {key: one for key, one in lists.items() if isinstance(one, list) and len(one) == length}
    if not length or len(whole) < 2:
        return []
    return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str | int | float) for one in value)


def _picture_names(value: Any) -> dict[str, str]:
    """Returns the names of files by the ids of pictures that an object lists under `images`."""
    listed = value.get("images") if isinstance(value, dict) else None
    if isinstance(listed, dict):
        found = {key: _first(one, _FILE_NAMES) if isinstance(one, dict) else one for key, one in listed.items()}
    elif isinstance(listed, list):
        entries = [one for one in listed if isinstance(one, dict)]
        found = {str(_first(one, _IDS)): _first(one, _FILE_NAMES) for one in entries}
    else:
        return {}
    return {key: name for key, name in found.items() if isinstance(name, str)}


def _first(value: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), None)
