"""The files of a competition: rows of its tables, and the pictures or sounds that a column names."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from lib.errors import BadInput, printable
from trainbook.supervised import tables
from trainbook.supervised.names import folded, listed
from trainbook.supervised.notes import collecting, note
from trainbook.supervised.places import PICTURES, Form
from trainbook.supervised.sounds import SOUNDS

FORMS = (PICTURES, SOUNDS)


def form_of(pattern: str) -> Form | None:
    """Returns the form of the files of a pattern such as train_images/*.png, by its suffix."""
    suffix = PurePosixPath(pattern).suffix.lower()
    return next((form for form in FORMS if suffix in form.suffixes), None)


def place_of(source: Path, name: str, key: str) -> Path:
    """Returns a file below the data. Raises BadInput if it is missing."""
    path = source / name
    if not path.is_file():
        raise BadInput(
            f"There is no file {printable(name)} in {printable(source)}. Correct workload.{key}, or data.dir."
        )
    return path


def training_rows(source: Path, block: Any) -> list[Mapping[str, Any]]:
    """Returns the rows of the training table. Raises BadInput if a column that the block names is missing."""
    path = place_of(source, block.table, "table")
    rows: list[Mapping[str, Any]] = list(tables.records(path))
    columns = {*rows[0]} if rows else set()
    wanted = {"key": [block.key], "target": block.target, "text": block.text, "words": block.words}
    wanted["group"] = [block.group] if block.group else []
    for setting, names in wanted.items():
        missing = [name for name in names if name not in columns]
        if missing:
            raise BadInput(
                f"{printable(block.table)} has no column {listed(missing)}; its columns are "
                f"{listed(rows[0] if rows else [])}. Correct workload.{setting}."
            )
    return rows


def rows_to_predict(path: Path, block: Any) -> list[Mapping[str, Any]]:
    """Returns the rows of a table to predict; its ids count as used, as a submission is joined by them."""
    rows: list[Mapping[str, Any]] = list(tables.records(path))
    for row in rows[:1]:
        row.get(block.key)
    return rows


def columns_of(path: Path) -> list[str]:
    """Returns the names of a table's columns."""
    with collecting():
        return tables.read(path, printable(path.name)).columns


def index_of(source: Path, paths: Sequence[Path]) -> dict[str, Path]:
    """Returns files by their names below the data, with and without folder and suffix."""
    index: dict[str, Path] = {}
    for path in paths:
        inner = path.relative_to(source)
        for name in (path.stem, path.name, inner.as_posix(), inner.with_suffix("").as_posix()):
            index[folded(name)] = path
    return index


def named(index: Mapping[str, Path], name: str) -> Path | None:
    """Returns the file that a cell names, or None."""
    return index.get(folded(name)) or index.get(folded(PurePosixPath(name).name))


def named_files(
    source: Path, pattern: str, rows: Sequence[Mapping[str, Any]], key: str
) -> list[tuple[Path, Mapping[str, Any]]]:
    """Returns the file of each row by the column of names. Raises BadInput if rows have none, or share one."""
    form = form_of(pattern)
    make = form.path if form else Path
    paths = sorted(path for path in source.glob(pattern) if path.is_file())
    index = index_of(source, paths)
    pairs = []
    lacking: list[str] = []
    first: dict[Path, Any] = {}
    for row in rows:
        name = str(row[key]).strip()
        file = named(index, name)
        if file is None:
            lacking.append(name)
            continue
        if file in first:
            raise BadInput(
                f"{printable(name)} stands in two rows of the table, and a file has one target here. Join "
                "the rows, or write a task of your own."
            )
        first[file] = row
        pairs.append((make(file), row))
    if not pairs:
        raise BadInput(
            f"No file of {printable(pattern)} in {printable(source)} ({len(paths):,} files) is named by the "
            f"column {printable(key)}, such as {printable(lacking[0] if lacking else '')}. Correct "
            "workload.folder, or workload.key."
        )
    if lacking:
        note(f"Rows without a file, which are not used: {len(lacking):,}, such as {lacking[0]}.")
    if len(paths) > len(pairs):
        note(f"Files without a row, which are not used: {len(paths) - len(pairs):,} of {pattern}.")
    return pairs


def new_files(source: Path, pattern: str) -> list[Path]:
    """Returns the files to predict: one file, those of the pattern, or all of its form below a folder."""
    form = form_of(pattern)
    if form is None:
        raise BadInput(
            f"workload.test is {printable(pattern)}, which names no pictures or sounds. Write their "
            "folder and suffix, as test_images/*.png."
        )
    if source.is_file():
        return [form.path(source)]
    paths = [path for path in source.glob(pattern) if path.is_file()]
    if not paths:
        paths = [path for path in source.rglob("*") if path.suffix.lower() in form.suffixes]
    return [form.path(path) for path in sorted(paths)]
