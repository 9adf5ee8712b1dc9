"""Finds the answer of each id: by the names of files, or by a column of the new data."""

import contextlib
import io
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
from trainbook.supervised.names import listed
from trainbook.supervised.notes import collecting
from trainbook.supervised.prediction import base_of, new_samples
from trainbook.supervised.tables import Table

_MOST_TABLES = 1000  # looked at in a folder
_FEW = 5  # rows: an order of fewer may be another one's by chance
_RELATIVE = 1e-6
_ABSOLUTE = 1e-9  # by which a float may differ: sums depend on the order of rows
_NAME_IT = "Name the column of ids (--id COLUMN, in a notebook ID_COLUMN)"
_NUMBER = re.compile(r"\d{1,30}(\.0{1,9})?")
_Forms = list[dict[str, list[int]]]  # the places of files by each form of their names


@dataclass(frozen=True)
class Wanted:
    """The ids of a sample submission, the name of their column, and the user's name for it."""

    sample: Path
    column: str
    ids: list[str]
    named: str = ""

    @property
    def about(self) -> str:
        return printable(self.sample)


@dataclass(frozen=True)
class Column:
    """A value for each answer, in their order, and the file or samples that have it."""

    name: str
    place: str
    values: list[str]


@dataclass(frozen=True)
class Join:
    """The key of the answer for each id, and how it was found."""

    keys: list[str]
    way: str


def normal(cell: object) -> str:
    """Returns an id in its form for comparison: stripped, in NFC (macOS decomposes file names)."""
    return unicodedata.normalize("NFC", str(cell).strip())


def joined(task: Any, answers: Mapping[str, Any], source: Path, wanted: Wanted) -> Join:
    """Returns the key of the answer for each id. Raises BadInput.

    An id is the exact path or name of a file, or its stem; or a value of a column of the new
    data. A row number is never an id.
    """
    check_once(wanted.ids, f"The column {printable(wanted.column)} of {wanted.about}")
    keys = [*answers]
    forms = _forms(keys, base_of(source))
    if any(forms):
        return _by_file(forms, keys, source, wanted)
    columns, why = _columns_of_rows(task, len(keys), source, wanted.sample)
    column = _chosen(columns, wanted, why)
    if column:
        return _by_column(column, keys, wanted)
    why = why or (
        f"No column of the new data is called {printable(wanted.column)} and has them, "
        f"or has all of them ({_names(columns)})."
    )
    raise BadInput(
        f"The rows of {printable(source)} have no names, and {wanted.about} asks for ids such as "
        f"{_first(wanted.ids)}. {why} {_NAME_IT}, or let read_new() return the ids in its samples."
    )


def _by_file(forms: _Forms, keys: Sequence[str], source: Path, wanted: Wanted) -> Join:
    places = {name: _places(forms, name) for name in wanted.ids}
    missing = [name for name, files in places.items() if len(files) != 1]
    if not missing and not wanted.named:
        return Join([keys[place] for (place,) in places.values()], "by the names of the files")
    columns = _columns_of_files(forms, len(keys), source, wanted.sample)
    if column := _chosen(columns, wanted, ""):
        return _by_column(column, keys, wanted)
    raise BadInput(
        f"{_share(missing, wanted)}, are the name of no predicted file, or of two. "
        f"A file is {_first(keys)}. Give the folder with the files that the ids name."
    )


def _by_column(column: Column, keys: Sequence[str], wanted: Wanted) -> Join:
    """Returns the keys by the values of a column. Raises BadInput for an unknown or repeated id.

    If no id equals a value as text, numbers are compared as numbers: spreadsheets turn 007 into 7,
    and pandas into 7.0.
    """
    where = f"the column {printable(column.name)} of {column.place}"
    check_once(column.values, f"T{where[1:]}")
    values = [*map(normal, column.values)]
    ids = [*map(normal, wanted.ids)]
    are_numbers = all(map(_NUMBER.fullmatch, [*values, *ids]))
    if are_numbers and {*values}.isdisjoint(ids):
        key_of_number = dict(zip(map(Decimal, values), keys, strict=True))
        numbers = [*map(Decimal, ids)]
        are_answers_unique = len(key_of_number) == len(keys)
        are_ids_unique = len({*numbers}) == len(ids)
        if are_answers_unique and are_ids_unique and key_of_number.keys() >= {*numbers}:
            return Join(
                [key_of_number[number] for number in numbers], f"by {where}, compared as numbers"
            )
    key_of = dict(zip(values, keys, strict=True))
    missing = [name for name in wanted.ids if normal(name) not in key_of]
    if missing:
        raise BadInput(
            f"{_share(missing, wanted)}, are no value of {where}, which has "
            f"{_first(column.values)}. Give the new data whose rows the ids name. {_NAME_IT}, "
            "if it is another one."
        )
    return Join([key_of[name] for name in ids], f"by {where}")


def check_once(values: Sequence[str], where: str) -> None:
    """Raises BadInput for an id that comes twice."""
    counts = Counter(map(normal, values))
    doubled = [value for value, number in counts.items() if number > 1]
    if doubled:
        example = printable(repr(doubled[0]), most=60)
        raise BadInput(
            f"{where} has {len(doubled):,} ids more than once, such as {example}. "
            "An id names one row: correct the column, or name another one."
        )


def _share(missing: Sequence[str], wanted: Wanted) -> str:
    """Returns how many ids of the sample are missing, with the first one."""
    share = f"{len(missing):,} of {len(wanted.ids):,}"
    return f"{share} ids in {wanted.about}, such as {_first(missing)}"


def _first(values: Sequence[str]) -> str:
    return printable(values[0], most=60)


# --- names of files ---------------------------------------------------------------------------------------------------


def _forms(keys: Sequence[str], base: Path) -> _Forms:
    """Returns the places of files by path, name, path without suffix and stem, in this order.

    Samples without a file have a number as their key, and are left out.
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
    """Returns the places of the files that a text names, by the most exact form of any."""
    text = normal(name)
    return next((form[text] for form in forms if text in form), [])


# --- columns of the new data ------------------------------------------------------------------------------------------


def _chosen(columns: Sequence[Column], wanted: Wanted, why: str) -> Column | None:
    """Returns the column of the ids, or None. Raises BadInput for several."""
    if wanted.named:
        return _called(columns, wanted.named, why)
    ids = {*map(normal, wanted.ids)}
    for form in (normal, _folded):
        alike = [column for column in columns if form(column.name) == form(wanted.column)]
        fitting = [column for column in alike if ids & {*map(normal, column.values)}]
        if alike:  # and no other column, whose values may be the ids by chance
            return [*fitting, *alike][0]
    fitting = [column for column in columns if _has_once(column, ids)]
    if len({tuple(column.values) for column in fitting}) > 1:
        raise BadInput(
            f"The ids are values of several columns of the new data: {_names(fitting)}. {_NAME_IT}."
        )
    return next(iter(fitting), None)


def _called(columns: Sequence[Column], name: str, why: str) -> Column:
    for column in columns:
        if normal(column.name) == normal(name):
            return column
    raise BadInput(
        f"There is no column {printable(name)} in the new data; "
        f"its columns: {_names(columns)}. {why}".strip()
    )


def _folded(name: str) -> str:
    return normal(name).casefold()


def _has_once(column: Column, ids: set[str]) -> bool:
    values = {*map(normal, column.values)}
    return ids <= values and len(values) == len(column.values)


def _names(columns: Sequence[Column]) -> str:
    return listed(dict.fromkeys(column.name for column in columns))


def _tables(
    source: Path, sample: Path, names: Sequence[str] | None = None
) -> tuple[list[Table], str]:
    """Returns the readable tables in new data except the sample, and the first error."""
    paths = [source] if source.is_file() else sorted(source.rglob("*"))
    paths = [path for path in paths if coverage.is_table(path)]
    paths = [path for path in paths if not path.samefile(sample)]
    readable: list[Table] = []
    error = ""
    for path in paths[:_MOST_TABLES]:
        try:
            with collecting():
                readable.append(tables.read(path, printable(path.name), names))
        except BadInput as refusal:
            error = error or str(refusal)
    return readable, error


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
            columns.append(Column(name, table.shown, values))
    return columns


def _rows_of_files(forms: _Forms, count: int, cells: Sequence[str]) -> dict[int, int]:
    """Returns the row of each file; {} unless a column's cells name each file exactly once."""
    rows: dict[int, int] = {}
    for row, cell in enumerate(cells):
        files = _places(forms, cell)
        if len(files) != 1:
            continue
        if files[0] in rows:
            return {}
        rows[files[0]] = row
    return rows if len(rows) == count else {}


# --- rows -------------------------------------------------------------------------------------------------------------


def _columns_of_rows(task: Any, count: int, source: Path, sample: Path) -> tuple[list[Column], str]:
    """Returns the columns of predicted tables and samples, or why they are unknown."""
    name = type(task).__name__
    if not hasattr(task, "read_new"):
        return [], f"{name} names no rows."
    samples = _read_silently(task, source)
    if len(samples) != count:
        return [], f"{name} reads {len(samples):,} samples now, and {count:,} were predicted."
    columns = _columns_of_samples(samples)
    with_head, error = _tables(source, sample)
    why = error or "No table was found in the new data."
    if with_head:
        sizes = [f"{table.shown} {len(table.rows):,}" for table in with_head[:3]]
        why = (
            f"{name} reads {count:,} samples, and tables have other numbers of rows "
            f"({', '.join(sizes)}). {error}".strip()
        )
    for group in _candidates(with_head, count, source, sample):
        if _is_in_order(task, samples, source, group):
            return [*_columns_of_tables(group), *columns], ""
        names = ", ".join(table.shown for table in group[:3])
        why = f"The samples that {name} reads are not the rows of {names}, in their order."
    return columns, why


def _read_silently(task: Any, source: Path) -> list[Any]:
    """Reads samples again without output: readers have printed their notes at the prediction."""
    with contextlib.redirect_stdout(io.StringIO()), collecting():
        return new_samples(task, source)


def _columns_of_samples(samples: Sequence[Any]) -> list[Column]:
    """Returns the texts and whole numbers that each sample has at the same place or key."""
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
    """Yields tables with `count` rows: single ones, all of one head, headless ones."""
    yield from ([table] for table in with_head if len(table.rows) == count)
    alike = [table for table in with_head if table.columns == with_head[0].columns]
    total = sum(len(table.rows) for table in alike)
    if len(alike) > 1 and total == count:
        yield alike
    without_head, _ = _tables(source, sample, ())
    yield from ([table] for table in without_head if table.separator and len(table.rows) == count)


def _columns_of_tables(group: Sequence[Table]) -> list[Column]:
    if len(group) == 1:
        place = group[0].shown
    else:
        place = f"{len(group)} tables"
    columns = []
    for name in group[0].columns:
        values = [cell for table in group for cell in table.column(name)]
        columns.append(Column(name, place, values))
    return columns


def _is_in_order(task: Any, samples: Sequence[Any], source: Path, group: Sequence[Table]) -> bool:
    """Returns whether sample k is row k of the tables: shuffled rows must give shuffled samples."""
    generator = random.Random(0)
    expected: list[Any] = []
    contents: dict[Path, bytes] = {}
    first = 0
    for table in group:
        order = _shuffled(len(table.rows), generator)
        if len(samples) < _FEW and len(order) > 1:
            order.pop()  # an order of few rows may be undone by a wrong one
        contents[absolute(table.path)] = tables.reordered(table, order)
        expected += [samples[first + place] for place in order]
        first += len(table.rows)
    with tempfile.TemporaryDirectory() as folder:
        copied = _mirrored(base_of(source), Path(folder), contents)
        root = copied if source.is_dir() else copied / source.name
        try:
            again = _read_silently(task, root)
        except Exception:  # in a user's code, which may read only the files that it knows
            return False
        return _is_alike([*again], expected, (root, source))


def _shuffled(count: int, generator: random.Random) -> list[int]:
    order = [*range(count)]
    while order == sorted(order) and count > 1:
        generator.shuffle(order)
    return order


def _mirrored(base: Path, folder: Path, contents: Mapping[Path, bytes]) -> Path:
    """Copies a folder into another, with new contents for some files; the rest are links."""
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
    """Returns whether two values are equal, floats nearly; paths are relative to `roots`."""
    numeric = (float, np.ndarray, Tensor)
    if isinstance(one, numeric) and isinstance(other, numeric):
        return _are_near(np.asarray(one), np.asarray(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _is_alike([*one.items()], [*other.items()], roots)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        are_alike = (_is_alike(*pair, roots) for pair in zip(one, other, strict=False))
        return len(one) == len(other) and all(are_alike)
    with contextlib.suppress(BadInput):
        return canonical(one, roots[0]) == canonical(other, roots[1])
    return False


def _are_near(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind == other.dtype.kind == "f":
        return bool(np.allclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True))
    return bool(np.array_equal(one, other))
