"""Finds the answer of each id: by the names of files, or by a column of the new data."""

import contextlib
import io
import math
import random
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from torch import Tensor

from lib.config.files import absolute
from lib.errors import BadInput, printable
from trainbook.supervised import coverage, tables
from trainbook.supervised.canonical import canonical
from trainbook.supervised.notes import collecting
from trainbook.supervised.prediction import base_of, new_samples
from trainbook.supervised.tables import Table

_MOST_TABLES = 1000  # that are looked at in a folder
_FEW = 5  # rows: an order of fewer may be another one's by chance
_RELATIVE = 1e-6
_ABSOLUTE = 1e-9  # by which a float may differ: sums depend on the order of rows
_NAME_IT = "Name the column of ids (--id COLUMN, in a notebook ID_COLUMN)"
_NUMBER = re.compile(r"\d{1,30}(\.0{1,9})?")
_Forms = list[dict[str, list[int]]]  # the places of files by each form of their names


@dataclass(frozen=True)
class Wanted:
    """The ids of a sample submission, the name of their column, and the user's name for it in the new data."""

    sample: Path
    column: str
    ids: list[str]
    named: str = ""

    @property
    def about(self) -> str:
        return printable(self.sample)


@dataclass(frozen=True)
class Column:
    """A value for each answer, in their order. `place` is the file that has it."""

    name: str
    place: str
    values: list[str]


@dataclass(frozen=True)
class Join:
    """The key of the answer for each id, and how it was found."""

    keys: list[str]
    way: str


def normal(cell: object) -> str:
    """Returns an id as it is compared: in NFC, which names of files on macOS are not, and stripped."""
    return unicodedata.normalize("NFC", str(cell).strip())


def joined(task: Any, answers: Mapping[str, Any], source: Path, wanted: Wanted) -> Join:
    """Returns the key of the answer for each id. Raises BadInput.

    An id is the exact path or name of a file, else its stem; or a value of a column of the new data. A row number is
    never an id.
    """
    check_once(wanted.ids, f"The column {printable(wanted.column)} of {wanted.about}")
    keys = [*answers]
    forms = _forms(keys, base_of(source))
    if any(forms):
        return _by_file(forms, keys, source, wanted)
    columns, why = _columns_of_rows(task, len(keys), source, wanted.sample)
    column = _chosen(columns, wanted, why)
    if column is None:
        asks = f"{wanted.about} asks for ids such as {_first(wanted.ids)}"
        about = f"The rows of {printable(source)} have no names, and {asks}. {why or _lacking(columns, wanted)}"
        raise BadInput(f"{about} {_NAME_IT}, or let read_new() return the ids in its samples.")
    return _by_column(column, keys, wanted)


def _by_file(forms: _Forms, keys: Sequence[str], source: Path, wanted: Wanted) -> Join:
    places = [_places(forms, each) for each in wanted.ids]
    missing = [each for each, found in zip(wanted.ids, places, strict=True) if len(found) != 1]
    if not missing and not wanted.named:
        return Join([keys[place] for (place,) in places], "by the names of the files")
    columns = _columns_of_files(forms, len(keys), source, wanted.sample)
    if column := _chosen(columns, wanted, ""):
        return _by_column(column, keys, wanted)
    about = (
        f"{len(missing):,} of {len(wanted.ids):,} ids in {wanted.about}, such as {_first(missing)}"
    )
    what = f"{about}, are the name of no predicted file, or of two. A file is {_first(keys)}"
    raise BadInput(f"{what}. Give the folder with the files that the ids name.")


def _by_column(column: Column, keys: Sequence[str], wanted: Wanted) -> Join:
    """Returns the keys by the values of a column. Raises BadInput for an id that is none, or is one twice.

    Where no id is a value as text, and all are numbers, they are compared as numbers: a table program makes 7 of 007,
    and pandas 7.0.
    """
    where = f"the column {printable(column.name)} of {column.place}"
    check_once(column.values, f"T{where[1:]}")
    by_value = dict(zip(map(normal, column.values), keys, strict=True))
    if by_value.keys().isdisjoint(map(normal, wanted.ids)) and _are_numbers(
        wanted.ids, column.values
    ):
        by_number = dict(zip(map(Decimal, map(normal, column.values)), keys, strict=True))
        ids = [Decimal(normal(each)) for each in wanted.ids]
        if len(by_number) == len(keys) and len({*ids}) == len(ids) and by_number.keys() >= {*ids}:
            return Join([by_number[each] for each in ids], f"by {where}, compared as numbers")
    missing = [each for each in wanted.ids if normal(each) not in by_value]
    if missing:
        about = f"{len(missing):,} of {len(wanted.ids):,} ids in {wanted.about}, such as {_first(missing)}"
        has = f"are no value of {where}, which has {_first(column.values)}"
        advice = f"Give the new data whose rows the ids name. {_NAME_IT}, if it is another one"
        raise BadInput(f"{about}, {has}. {advice}.")
    return Join([by_value[normal(each)] for each in wanted.ids], f"by {where}")


def _are_numbers(*columns: Sequence[str]) -> bool:
    return all(_NUMBER.fullmatch(normal(each)) for values in columns for each in values)


def check_once(values: Sequence[str], where: str) -> None:
    """Raises BadInput for an id that comes twice."""
    counts = Counter(map(normal, values))
    doubled = [value for value, number in counts.items() if number > 1]
    if doubled:
        example = printable(repr(doubled[0]), most=60)
        about = f"{where} has {len(doubled):,} ids more than once, such as {example}"
        raise BadInput(f"{about}. An id names one row: correct the column, or name another one.")


def _first(values: Sequence[str]) -> str:
    return printable(values[0], most=60)


# --- names of files ---------------------------------------------------------------------------------------------------


def _forms(keys: Sequence[str], base: Path) -> _Forms:
    """Returns the places of files by their paths, their names, and both without the ending, in this order.

    A sample that is no file has its number as its key, and is left out.
    """
    forms: _Forms = [{}, {}, {}, {}]
    for place, key in enumerate(keys):
        if key == str(place) and not (base / key).is_file():
            continue
        path = PurePosixPath(normal(key))
        bare = path.with_suffix("") if path.suffix == ".gz" else path
        names = (path, path.name, bare.with_suffix(""), bare.stem)
        for form, name in zip(forms, names, strict=True):
            form.setdefault(str(name), []).append(place)
    return forms


def _places(forms: _Forms, name: str) -> list[int]:
    """Returns the places of the files that a text names, by the most exact form that any file has."""
    text = normal(name)
    return next((form[text] for form in forms if text in form), [])


# --- columns of the new data ------------------------------------------------------------------------------------------


def _chosen(columns: Sequence[Column], wanted: Wanted, why: str) -> Column | None:
    """Returns the column that has the ids; None where none has them. Raises BadInput where several have."""
    if wanted.named:
        return _called(columns, wanted.named, why)
    ids = {*map(normal, wanted.ids)}
    for form in (normal, _folded):
        alike = [each for each in columns if form(each.name) == form(wanted.column)]
        fitting = [each for each in alike if ids & {*map(normal, each.values)}]
        if fitting:
            return fitting[0]
        if alike:
            return alike[0]  # and no other column, whose values may be the ids by chance
    fitting = [each for each in columns if _has_once(each, ids)]
    if len({tuple(each.values) for each in fitting}) > 1:
        what = f"The ids are values of several columns of the new data: {_names(fitting)}"
        raise BadInput(f"{what}. {_NAME_IT}.")
    return fitting[0] if fitting else None


def _called(columns: Sequence[Column], name: str, why: str) -> Column:
    for column in columns:
        if normal(column.name) == normal(name):
            return column
    what = f"There is no column {printable(name)} in the new data; its columns: {_names(columns)}"
    raise BadInput(f"{what}. {why}".strip())


def _folded(name: str) -> str:
    return normal(name).casefold()


def _has_once(column: Column, ids: set[str]) -> bool:
    values = [*map(normal, column.values)]
    return ids <= {*values} and len({*values}) == len(values)


def _names(columns: Sequence[Column]) -> str:
    names = dict.fromkeys(each.name for each in columns)
    return printable(", ".join(names), most=300) or "none"


def _lacking(columns: Sequence[Column], wanted: Wanted) -> str:
    called = f"is called {printable(wanted.column)} and has them"
    return f"No column of the new data {called}, or has all of them ({_names(columns)})."


def _tables(
    source: Path, sample: Path, names: Sequence[str] | None = None
) -> tuple[list[Table], str]:
    """Returns the tables among new data that can be read, but the sample submission; and why one cannot."""
    paths = [source] if source.is_file() else sorted(source.rglob("*"))
    paths = [path for path in paths if coverage.is_table(path) and not path.samefile(sample)]
    read: list[Table] = []
    why = ""
    for path in paths[:_MOST_TABLES]:
        try:
            with collecting():
                read.append(tables.read(path, printable(path.name), names))
        except BadInput as error:
            why = why or str(error)
    return read, why


def _columns_of_files(forms: _Forms, count: int, source: Path, sample: Path) -> list[Column]:
    """Returns the columns of tables in which one column names each file once."""
    columns: list[Column] = []
    for table in _tables(source, sample)[0]:
        by_column = (_rows_of_files(forms, count, table.column(name)) for name in table.columns)
        rows = next(filter(None, by_column), None)
        if rows is None:
            continue
        for name in table.columns:
            cells = table.column(name)
            values = [cells[rows[file]] for file in range(count)]
            columns.append(Column(name, printable(table.path.name), values))
    return columns


def _rows_of_files(forms: _Forms, count: int, cells: Sequence[str]) -> dict[int, int]:
    """Returns the row of each file; none unless a column's cells name each file exactly once."""
    places = [_places(forms, cell) for cell in cells]
    numbers = Counter(found[0] for found in places if len(found) == 1)
    if len(numbers) < count or max(numbers.values()) > 1:
        return {}
    return {files[0]: row for row, files in enumerate(places) if len(files) == 1}


# --- rows -------------------------------------------------------------------------------------------------------------


def _columns_of_rows(task: Any, count: int, source: Path, sample: Path) -> tuple[list[Column], str]:
    """Returns the columns of the tables that samples were read from, and what samples hold; or why none is known."""
    name = type(task).__name__
    if not hasattr(task, "read_new"):
        return [], f"{name} names no rows."
    samples = _read_silently(task, source)
    if len(samples) != count:
        return [], f"{name} reads {len(samples):,} samples now, and {count:,} were predicted."
    columns = _columns_of_samples(samples)
    with_head, refused = _tables(source, sample)
    why = refused or "No table was found in the new data."
    if with_head:
        sizes = ", ".join(
            f"{printable(table.path.name)} {len(table.rows):,}" for table in with_head[:3]
        )
        why = f"{name} reads {count:,} samples, and tables have other numbers of rows ({sizes}). {refused}".strip()
    for some in _candidates(with_head, count, source, sample):
        if _is_in_order(task, samples, source, some):
            return [*_columns_of_tables(some), *columns], ""
        names = ", ".join(printable(table.path.name) for table in some[:3])
        why = f"The samples that {name} reads are not the rows of {names}, in their order."
    return columns, why


def _read_silently(task: Any, source: Path) -> list[Any]:
    """Reads samples again: what readers say of them was said when they were predicted."""
    with contextlib.redirect_stdout(io.StringIO()), collecting():
        return new_samples(task, source)


def _columns_of_samples(samples: Sequence[Any]) -> list[Column]:
    """Returns the texts and whole numbers that each sample has at the same place, or under the same key."""
    first = samples[0]
    if isinstance(first, Mapping):
        names = {key: str(key) for key in first}
    elif isinstance(first, tuple | list):
        names = {place: f"{place + 1} of a sample" for place in range(len(first))}
    else:
        return []
    columns = []
    for key, name in names.items():
        with contextlib.suppress(KeyError, IndexError):
            values = [sample[key] for sample in samples]
            if all(type(value) in (str, int) for value in values):
                columns.append(Column(name, "the samples", [*map(str, values)]))
    return columns


def _candidates(
    with_head: Sequence[Table], count: int, source: Path, sample: Path
) -> Iterator[list[Table]]:
    """Yields tables that may have been read: one with as many rows, all of one head together, or one without a head."""
    yield from ([table] for table in with_head if len(table.rows) == count)
    alike = [table for table in with_head if table.columns == with_head[0].columns]
    if len(alike) > 1 and sum(len(table.rows) for table in alike) == count:
        yield alike
    without_head, _ = _tables(source, sample, ())
    yield from ([table] for table in without_head if table.separator and len(table.rows) == count)


def _columns_of_tables(some: Sequence[Table]) -> list[Column]:
    if len(some) == 1:
        place = printable(some[0].path.name)
    else:
        place = f"{len(some)} tables"
    columns = []
    for name in some[0].columns:
        values = [cell for table in some for cell in table.column(name)]
        columns.append(Column(name, place, values))
    return columns


def _is_in_order(task: Any, samples: Sequence[Any], source: Path, some: Sequence[Table]) -> bool:
    """Tells whether sample k is row k of the tables: rows in another order must give the samples in that order."""
    draw = random.Random(0)
    places: list[int] = []
    contents: dict[Path, bytes] = {}
    before = 0
    for table in some:
        order = _shuffled(len(table.rows), draw)
        if len(samples) < _FEW and len(order) > 1:
            order.pop()  # an order of few rows may be undone by a wrong one
        contents[absolute(table.path)] = tables.reordered(table, order)
        places += [before + place for place in order]
        before += len(table.rows)
    with tempfile.TemporaryDirectory() as folder:
        copied = _mirrored(base_of(source), Path(folder), contents)
        root = copied if source.is_dir() else copied / source.name
        try:
            again = _read_silently(task, root)
        except Exception:  # of a user's code, which may read only what it knows
            return False
        expected = [samples[place] for place in places]
        return len(again) == len(expected) and _is_alike(again, expected, (root, source))


def _shuffled(count: int, draw: random.Random) -> list[int]:
    order = [*range(count)]
    while order == sorted(order) and count > 1:
        draw.shuffle(order)
    return order


def _mirrored(base: Path, folder: Path, contents: Mapping[Path, bytes]) -> Path:
    """Copies a folder as links, but for files that have other contents; returns the copy."""
    copied = folder / (base.name or "data")
    copied.mkdir()
    for path in base.iterdir():
        if path in contents:
            (copied / path.name).write_bytes(contents[path])
        elif any(changed.is_relative_to(path) for changed in contents):
            _mirrored(path, copied, contents)
        else:
            (copied / path.name).symlink_to(path.resolve())
    return copied


def _is_alike(one: Any, other: Any, roots: tuple[Path, Path]) -> bool:
    """Tells whether two values of samples are equal, floats nearly; paths count from their root."""
    if isinstance(one, float) and isinstance(other, float):
        is_near = math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
        return is_near or (math.isnan(one) and math.isnan(other))
    if isinstance(one, np.ndarray | Tensor) and isinstance(other, np.ndarray | Tensor):
        return _are_near(np.asarray(one), np.asarray(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _is_alike([*one.items()], [*other.items()], roots)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_is_alike(*pair, roots) for pair in pairs)
    with contextlib.suppress(BadInput):
        return canonical(one, roots[0]) == canonical(other, roots[1])
    return False


def _are_near(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind == other.dtype.kind == "f":
        return bool(np.allclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True))
    return bool(np.array_equal(one, other))
