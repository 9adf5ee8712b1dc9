"""Finds the answer of each id: by the names of files, or by a column of the new data. A row number is never an id."""

import contextlib
import csv
import gzip
import io
import json
import math
import random
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas
from torch import Tensor

from lib.config.files import absolute, read_bytes
from lib.errors import BadInput, printable
from lib.supervised.prediction import base_of
from lib.task.contract import canonical
from lib.task.notes import collecting, note

_MOST_BYTES = 2**31  # of a table, unpacked
_MOST_TABLES = 1000  # that are looked at in a folder
_SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet")  # the texts also with .gz
_FEW = 5  # rows: an order of fewer may be another one's by chance
_ENCODINGS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def normal(cell: object) -> str:
    """Returns an id as it is compared: in NFC, as macOS names no files, and without spaces around it."""
    return unicodedata.normalize("NFC", str(cell).strip())


@dataclass(frozen=True)
class Table:
    """A table as text: the cells of each row, and the text that each row was read from."""

    path: Path
    head: list[str]
    rows: list[list[str]]
    texts: list[str]  # of the head, if it has one, then of each row
    encoding: str = "utf-8"
    separator: str = ","  # "[": of a list of JSON objects

    def written(self, order: Sequence[int]) -> bytes:
        """Returns the bytes of the file with these of its rows, in this order."""
        if self.path.suffix == ".parquet":
            return pandas.read_parquet(self.path).iloc[list(order)].to_parquet()
        extra = len(self.texts) - len(self.rows)
        lines = [*self.texts[:extra], *(self.texts[extra + place] for place in order)]
        text = "\n".join(line.rstrip("\r\n") for line in lines) + "\n"
        if self.separator == "[":
            text = f"[{','.join(lines)}]"
        content = text.encode(self.encoding)
        return gzip.compress(content) if self.path.suffix == ".gz" else content

    def column(self, name: str) -> list[str]:
        place = self.head.index(name)
        return [row[place] for row in self.rows]


@dataclass(frozen=True)
class Column:
    """A value for each answer: `name` is a column's, `place` where it was found."""

    name: str
    place: str
    values: list[str]


@dataclass(frozen=True)
class Join:
    """The key of each id's answer, and a sentence on how ids were found."""

    keys: list[str]
    sentence: str


# --- tables as text ---------------------------------------------------------------------------------------------------


def read_table(path: Path, what: str = "The table") -> Table:
    """Reads CSV, TSV, JSON or JSON lines, also packed by gzip, and Parquet, as text. Raises BadInput with the line."""
    shown = printable(path)
    if path.suffix == ".parquet":
        return _of_frame(path)
    try:
        content = read_bytes(path, _MOST_BYTES)
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(_MOST_BYTES)
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{what} {shown} cannot be read ({printable(why)}). Give a CSV file.") from None
    text, encoding = _decoded(content, shown)
    suffix = PurePosixPath(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _of_objects(path, text, encoding)
    return _of_lines(path, text, encoding, suffix, what)


def _decoded(content: bytes, shown: str) -> tuple[str, str]:
    """Returns a text and its encoding: UTF-8 or UTF-16 by its mark, UTF-8, or else cp1252, which is said."""
    encoding = next((name for mark, name in _ENCODINGS if content.startswith(mark)), "utf-8")
    with contextlib.suppress(UnicodeDecodeError):
        return content.decode(encoding), encoding
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{shown}, line {line}: The text is neither UTF-8 nor cp1252. Save it as UTF-8.") from None
    note(f"{shown} is no UTF-8 and was read as cp1252.")
    return text, "cp1252"


def _of_lines(path: Path, text: str, encoding: str, suffix: str, what: str) -> Table:
    lines = io.StringIO(text, newline="")
    first = text.partition("\n")[0]
    counts = {separator: first.count(separator) for separator in ",;\t|"}
    separator = "\t" if suffix == ".tsv" else max(counts, key=lambda each: counts[each])
    quoting = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    rows, texts, read = list[list[str]](), list[str](), list[str]()

    def watched() -> Iterator[str]:
        for line in lines:
            read.append(line)
            yield line

    with _any_length():
        try:
            for row in csv.reader(watched(), delimiter=separator, quoting=quoting, strict=True):
                rows += [row] if row else []
                texts += ["".join(read)] if row else []
                read.clear()
        except csv.Error as error:
            line = text.count("\n", 0, lines.tell()) or 1
            raise BadInput(f"{what} {printable(path)}, line {line}: {error}. Correct the line.") from None
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            has = f"row {number} has {len(row)} cells, and the first {len(rows[0])}"
            raise BadInput(f"{what} {printable(path)}: {has}. Correct the row.")
    return Table(path, rows[0] if rows else [], rows[1:], texts, encoding, separator)


@contextlib.contextmanager
def _any_length() -> Iterator[None]:
    """Lets csv read cells above 131,072 letters inside the block."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _of_objects(path: Path, text: str, encoding: str) -> Table:
    """Returns a list of JSON objects, or one object a line, as a table. Raises BadInput for other JSON."""
    is_list = text.lstrip().startswith("[")
    try:
        objects = json.loads(text) if is_list else [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{printable(path)} is no JSON ({printable(error, most=200)}).") from None
    if not all(isinstance(each, dict) for each in objects):
        raise BadInput(f"{printable(path)} has values that are no JSON objects.")
    head = list(dict.fromkeys(key for each in objects for key in each))
    rows = [[str(each.get(key, "")) for key in head] for each in objects]
    texts = [json.dumps(each, ensure_ascii=False) for each in objects]
    return Table(path, head, rows, texts, encoding, "[" if is_list else "")


def _of_frame(path: Path) -> Table:
    try:
        frame = pandas.read_parquet(path)
    except (OSError, ValueError, ImportError) as error:
        raise BadInput(f"{printable(path)} cannot be read ({printable(error, most=200)}).") from None
    rows = [[*map(str, row)] for row in frame.itertuples(index=False)]
    return Table(path, [*map(str, frame.columns)], rows, [])


# --- ids --------------------------------------------------------------------------------------------------------------


def joined(
    task: Any, answers: Mapping[str, Any], source: Path, ids: Sequence[str], column: str, named: str, sample: Path
) -> Join:
    """Returns the answer's key for each id of a sample submission, whose first `column` has them. Raises BadInput.

    An id is a file's exact path or name, then its unique stem, or a value of a column of the new data: the one called
    `named`, else that of the sample's name, else the only one with all ids.
    """
    check_once(ids, f"The column {printable(column)} of {printable(sample)}")
    keys = [*answers]
    forms = _by_name(keys, base_of(source))
    are_files = any(forms)
    if are_files and not named:
        places = [_of_file(forms, each) for each in ids]
        if all(len(matches) == 1 for matches in places):
            return Join([keys[matches[0]] for matches in places], "by the names of the files")
    columns, why = _of_files(forms, keys, source, sample) if are_files else _of_rows(task, keys, source, sample)
    chosen = _chosen(columns, ids, column, named, why)
    if chosen is None and are_files:
        raise _unnamed(ids, places, keys, sample)
    if chosen is None:
        about = f"The rows of {printable(source)} have no names, and {printable(sample)} asks for ids such as"
        raise BadInput(f"{about} {_first(ids)}. {why or _lacking(columns, column)} {_ADVICE}")
    check_once(chosen.values, f"The column {printable(chosen.name)} of {chosen.place}")
    by_value = {normal(value): key for value, key in zip(chosen.values, keys, strict=True)}
    if missing := [each for each in ids if normal(each) not in by_value]:
        about = f"{len(missing):,} of {len(ids):,} ids in {printable(sample)}, such as {_first(missing)}"
        has = (
            f"are no value of the column {printable(chosen.name)} of {chosen.place}, which has {_first(chosen.values)}"
        )
        raise BadInput(f"{about}, {has}. Give the new data whose rows the ids name.")
    keys_of_ids = [by_value[normal(each)] for each in ids]
    return Join(keys_of_ids, f"by the column {printable(chosen.name)} of {chosen.place}")


_ADVICE = "Name its column of ids (--id COLUMN, in a notebook ID_COLUMN), or let read_new() return ids in the samples."


def _first(values: Sequence[str]) -> str:
    return printable(values[0], most=60)


def check_once(values: Sequence[str], where: str) -> None:
    """Raises BadInput for an id that comes twice."""
    counts = Counter(map(normal, values))
    if doubled := [value for value, number in counts.items() if number > 1]:
        about = f"{where} has {len(doubled):,} ids more than once, such as {printable(repr(doubled[0]), most=60)}"
        raise BadInput(f"{about}. An id names one row: correct the column, or name another one.")


def _by_name(keys: Sequence[str], base: Path) -> list[dict[str, list[int]]]:
    """Returns the places of files by each form of a name: its path, its name, and both without the ending.

    A sample without a name has its number as its key, which is left out.
    """
    forms: list[dict[str, list[int]]] = [{}, {}, {}, {}]
    for place, key in enumerate(keys):
        if key == str(place) and not (base / key).is_file():
            continue
        path = PurePosixPath(normal(key))
        bare = path.with_suffix("") if path.suffix == ".gz" else path
        for form, text in zip(forms, (path, path.name, bare.with_suffix(""), bare.stem), strict=True):
            form.setdefault(str(text), []).append(place)
    return forms


def _of_file(forms: Sequence[Mapping[str, list[int]]], wanted: str) -> list[int]:
    """Returns the places of the files that an id names, by the most exact form that any file has."""
    return next((form[normal(wanted)] for form in forms if normal(wanted) in form), [])


def _unnamed(ids: Sequence[str], places: Sequence[Sequence[int]], keys: Sequence[str], sample: Path) -> BadInput:
    missing = [each for each, matches in zip(ids, places, strict=True) if len(matches) != 1]
    about = f"{len(missing):,} of {len(ids):,} ids in {printable(sample)}, such as {_first(missing)}"
    what = f"{about}, are the name of no predicted file, or of two. A file is {_first(keys)}"
    return BadInput(f"{what}. Give the folder with the files that the ids name.")


def _chosen(columns: Sequence[Column], ids: Sequence[str], column: str, named: str, why: str) -> Column | None:
    """Returns the column of the new data that has the ids; None where none has. Raises BadInput where several have."""
    wanted = {*map(normal, ids)}
    if named:
        if matches := [each for each in columns if normal(each.name) == normal(named)]:
            return matches[0]
        names = printable(", ".join(dict.fromkeys(each.name for each in columns)), most=300) or "none"
        raise BadInput(f"There is no column {printable(named)} in the new data; its columns: {names}. {why}".strip())
    for form in (normal, lambda name: normal(name).casefold()):
        same_name = [each for each in columns if form(each.name) == form(column)]
        if fitting := [each for each in same_name if wanted & {*map(normal, each.values)}]:
            return fitting[0]
    values = [[*map(normal, each.values)] for each in columns]
    pairs = zip(columns, values, strict=True)
    fitting = [each for each, some in pairs if wanted <= {*some} and len({*some}) == len(some)]
    if len({tuple(each.values) for each in fitting}) > 1:
        names = ", ".join(printable(each.name) for each in fitting)
        raise BadInput(f"The ids are values of several columns of the new data: {names}. {_ADVICE}")
    return fitting[0] if fitting else None


def _lacking(columns: Sequence[Column], column: str) -> str:
    names = printable(", ".join(dict.fromkeys(each.name for each in columns)), most=300) or "none"
    return f"No column of the new data is called {printable(column)} and has them, or has all of them ({names})."


# --- columns of the new data ------------------------------------------------------------------------------------------


def _tables(source: Path, sample: Path) -> list[Path]:
    """Returns the tables among new data, but the sample submission."""
    paths = [source] if source.is_file() else sorted(source.rglob("*"))
    named = (path for path in paths if path.name.removesuffix(".gz").casefold().endswith(_SUFFIXES))
    tables = [path for path in named if path.is_file() and not path.samefile(sample)]
    return tables[:_MOST_TABLES]


def _readable(paths: Sequence[Path]) -> list[Table]:
    tables = []
    for path in paths:
        with contextlib.suppress(BadInput), collecting():
            tables.append(read_table(path))
    return tables


def _of_files(
    forms: Sequence[Mapping[str, list[int]]], keys: Sequence[str], source: Path, sample: Path
) -> tuple[list[Column], str]:
    """Returns the columns of tables of which one column names each file once."""
    columns = []
    for table in _readable(_tables(source, sample)):
        for name in _unique(table.head):
            matches = [_of_file(forms, value) for value in table.column(name)]
            rows = {found[0]: row for found, row in zip(matches, table.rows, strict=True) if len(found) == 1}
            if len(rows) < len(keys):
                continue
            shown = printable(table.path.name)
            for place, other in enumerate(table.head):
                columns.append(Column(other, shown, [rows[number][place] for number in range(len(keys))]))
            break
    return columns, ""


def _unique(head: Sequence[str]) -> list[str]:
    return [name for name in head if head.count(name) == 1]


def _of_rows(task: Any, keys: Sequence[str], source: Path, sample: Path) -> tuple[list[Column], str]:
    """Returns the columns of samples, and of the tables that they were read from; or why these are not known."""
    if not hasattr(task, "read_new"):
        return [], f"{type(task).__name__} names no rows."
    with contextlib.redirect_stdout(io.StringIO()), collecting():
        samples = list(task.read_new(source))
    if len(samples) != len(keys):
        return [], f"{type(task).__name__} reads {len(samples):,} samples now, and {len(keys):,} were predicted."
    columns, why = _of_samples(samples), "No table was found in the new data."
    tables = _readable(_tables(source, sample))
    for some in _candidates(tables, len(samples)):
        if not _is_in_order(task, samples, source, some):
            names = ", ".join(printable(table.path.name) for table in some[:3])
            why = f"The samples that {type(task).__name__} reads are not the rows of {names}, in their order."
            continue
        place = printable(some[0].path.name) if len(some) == 1 else f"{len(some)} tables"
        columns = [Column(name, place, cells) for name, cells in _columns(some).items()] + columns
        return columns, ""
    if tables and not any(True for _ in _candidates(tables, len(samples))):
        sizes = ", ".join(f"{printable(table.path.name)} {len(table.rows):,}" for table in tables[:3])
        why = f"{type(task).__name__} reads {len(samples):,} samples, and tables have other numbers of rows ({sizes})."
    return columns, why


def _of_samples(samples: Sequence[Any]) -> list[Column]:
    """Returns what each sample has at the same place, if it is a text or a whole number: dicts by their keys."""
    first = samples[0]
    if not isinstance(first, tuple | list | Mapping) or any(len(each) != len(first) for each in samples):
        return []
    names = {key: str(key) for key in first} if isinstance(first, Mapping) else {}
    names = names or {place: f"{place + 1} of a sample" for place in range(len(first))}
    columns = []
    for key, name in names.items():
        with contextlib.suppress(KeyError):
            values = [each[key] for each in samples]
            if all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
                columns.append(Column(name, "the samples", [*map(str, values)]))
    return columns


def _candidates(tables: Sequence[Table], count: int) -> Iterator[list[Table]]:
    """Yields tables that may have been read: one with as many rows, or all of one head that have them together."""
    yield from ([table] for table in tables if len(table.rows) == count)
    headless = (_without_head(table) for table in tables if len(table.texts) == count == len(table.rows) + 1)
    yield from ([table] for table in headless)
    alike = [table for table in tables if table.head == tables[0].head]
    if len(alike) > 1 and sum(len(table.rows) for table in alike) == count:
        yield alike


def _without_head(table: Table) -> Table:
    head = [str(place + 1) for place in range(len(table.head))]
    return Table(table.path, head, [table.head, *table.rows], table.texts, table.encoding, table.separator)


def _columns(tables: Sequence[Table]) -> dict[str, list[str]]:
    names = _unique(tables[0].head)
    return {name: [cell for table in tables for cell in table.column(name)] for name in names}


def _is_in_order(task: Any, samples: Sequence[Any], source: Path, tables: Sequence[Table]) -> bool:
    """Tells whether sample k is row k of the tables: the same rows in another order must give the same samples so."""
    draw, places, texts, first = random.Random(0), list[int](), dict[Path, bytes](), 0
    for table in tables:
        order = [*range(len(table.rows))]
        while order == sorted(order) and len(order) > 1:
            draw.shuffle(order)
        order = order[1:] if len(samples) < _FEW and len(order) > 1 else order
        texts[table.path] = table.written(order)
        places += [first + place for place in order]
        first += len(table.rows)
    with tempfile.TemporaryDirectory() as folder:
        copied = _mirrored(base_of(source), Path(folder), texts)
        root = copied if source.is_dir() else copied / source.name
        try:
            with contextlib.redirect_stdout(io.StringIO()), collecting():
                again = list(task.read_new(root))
        except Exception:  # of a user's code, which may read only what it knows
            return False
        if len(again) != len(places):
            return False
        pairs = zip(again, (samples[place] for place in places), strict=True)
        return all(_is_alike(one, other, root, source) for one, other in pairs)


def _mirrored(base: Path, folder: Path, texts: Mapping[Path, bytes]) -> Path:
    """Returns a copy of a folder, of links, in which some files have other bytes."""
    copied = folder / (base.name or "data")
    copied.mkdir()
    changed = {absolute(path): content for path, content in texts.items()}
    for path in base.iterdir():
        if path in changed:
            (copied / path.name).write_bytes(changed[path])
        elif any(each.is_relative_to(path) for each in changed):
            below = {each: content for each, content in changed.items() if each.is_relative_to(path)}
            _mirrored(path, copied, below)
        else:
            (copied / path.name).symlink_to(path.resolve())
    return copied


def _is_alike(one: Any, other: Any, root: Path, source: Path) -> bool:
    """Tells whether two samples are equal; floats nearly, since a mean over rows depends on their order."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, np.ndarray | Tensor) and isinstance(other, np.ndarray | Tensor):
        arrays = np.asarray(one), np.asarray(other)
        is_float = arrays[0].dtype.kind == arrays[1].dtype.kind == "f"
        if arrays[0].shape != arrays[1].shape or not is_float:
            return bool(np.array_equal(*arrays))
        return bool(np.allclose(*arrays, rtol=1e-6, atol=1e-9, equal_nan=True))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return [*one] == [*other] and all(_is_alike(one[key], other[key], root, source) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_is_alike(*pair, root, source) for pair in pairs)
    with contextlib.suppress(BadInput):
        return canonical(one, root) == canonical(other, source)
    return False
