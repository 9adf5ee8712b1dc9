"""Finds the table that lists pictures or sounds: one of its columns has the names of the files."""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from lib.errors import BadInput, first_ten, printable
from trainbook.supervised.names import PARTS, folded, listed, part_of
from trainbook.supervised.notes import note
from trainbook.supervised.places import Form, Place, both, counted, named
from trainbook.supervised.tables import records

_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
_MOST_BYTES = 2**28  # in a table that is not named in the settings


class Data(NamedTuple):
    """The files of a folder: inputs, the usable ones (not masks), their places, other files."""

    source: Path
    form: Form
    inputs: list[Path]
    usable: list[Path]
    places: dict[Path, Place]
    classes: dict[Path, str]  # by folders that may be classes
    others: list[Path]

    def shown(self, path: Path) -> str:
        inner = path.relative_to(self.source) if path.is_relative_to(self.source) else path
        return named(inner.as_posix())


class Listing(NamedTuple):
    """A table that lists inputs: its rows, its column of names, and the file of each row."""

    tables: list[Path]
    rows: list[Mapping[str, Any]]
    key: str
    inputs: list[Path | None]
    others: list[str]  # the other columns
    parts: dict[Path, str]  # splits of inputs, by tables or a column
    split: str = "the folders"  # or the tables or column that give the splits

    @property
    def path(self) -> Path:
        return self.tables[0]

    def pairs(self) -> list[tuple[Mapping[str, Any], Path | None]]:
        """Returns the rows with their files."""
        return [*zip(self.rows, self.inputs, strict=True)]


def find(data: Data, table: str, target: str) -> Listing | None:
    """Returns the table that lists the inputs; None if it is missing or agrees with folders.

    Raises BadInput for several tables, if folders contradict it, or if the named one lists nothing.
    """
    if table:
        paths = [_by_name(data, table)]
    else:
        paths = [path for path in data.others if path.suffix.lower() in _TABLES]
    index = _index(data)
    read = [_read(path, data, index, is_named=bool(table)) for path in paths]
    listings = [listing for listing in read if listing and _covers(listing, data)]
    if not table:
        listings = _without_tests(listings, data)
    if not listings and (table or target):
        raise _no_table(data, paths, table, target)
    if not listings:
        return None
    if len(listings) == 1:
        listing = _by_column(listings[0])
    else:
        listing = _joined(listings, data)
    if table or target or len({*data.classes.values()}) < 2:
        return listing
    if _agrees(listing, data):
        return None
    raise _contradiction(listing, data)


def _without_tests(listings: Sequence[Listing], data: Data) -> list[Listing]:
    """Returns tables without test tables, unless these have the columns of another table."""
    known = [listing for listing in listings if part_of(listing.path.stem) != "test"]
    columns = [{*listing.others} for listing in known]
    usable = [listing for listing in listings if {*listing.others} in columns]
    for listing in listings:
        if listing not in usable:
            note(f"{data.shown(listing.path)} is not used: it is called as a table of a test.")
    return usable


def _joined(listings: Sequence[Listing], data: Data) -> Listing:
    """Returns tables called train, validation and test as one, with splits. Raises BadInput."""
    names = ", ".join(data.shown(listing.path) for listing in listings)
    called = {part_of(listing.path.stem): listing for listing in listings}
    forms = {(listing.key, *sorted(listing.others)) for listing in listings}
    if "" in called or len(called) < len(listings) or len(forms) > 1:
        raise BadInput(
            f"{len(listings)} tables list the {data.form.word}s: {names}. Name one in workload.table."
        )
    parts: dict[Path, str] = {}
    for part, listing in called.items():
        for path in filter(None, {*listing.inputs}):
            if path in parts:
                raise BadInput(f"{named(path.name)} stands in two of {names}. Delete it from one.")
            parts[path] = part
    rows = [row for listing in listings for row in listing.rows]
    inputs = [path for listing in listings for path in listing.inputs]
    tables = [listing.path for listing in listings]
    first = listings[0]
    return first._replace(tables=tables, rows=rows, inputs=inputs, parts=parts, split=names)


def _by_column(listing: Listing) -> Listing:
    """Returns a table with splits, if a column has only train, validation and test in it."""
    for name in listing.others:
        cells = [_text(row, name).casefold() for row in listing.rows]
        words = {*cells}
        are_splits = words <= PARTS.keys() and len(words) > 1
        if not are_splits or words.isdisjoint(("train", "training")):
            continue
        pairs = zip(listing.inputs, cells, strict=True)
        parts = {path: PARTS[cell] for path, cell in pairs if path}
        others = [other for other in listing.others if other != name]
        return listing._replace(others=others, parts=parts, split=f"the column {named(name)}")
    return listing


def _text(row: Mapping[str, Any], name: str) -> str:
    return str(row.get(name) or "").strip()


def _by_name(data: Data, name: str) -> Path:
    for path in (data.source / name, Path(name)):
        if path.is_file():
            return path
    raise BadInput(
        f"There is no table {named(name)} in {named(data.source)}. Correct workload.table."
    )


def _no_table(data: Data, paths: Sequence[Path], table: str, target: str) -> BadInput:
    key = f"workload.table is {named(table)}" if table else f"workload.target is {named(target)}"
    names = ", ".join(data.shown(path) for path in paths[:5]) or "a table (the folder has none)"
    where = counted(data.inputs, data.source)
    return BadInput(
        f"{key}, and no column of {names} has the names of the {data.form.word}s ({where})."
    )


def _contradiction(listing: Listing, data: Data) -> BadInput:
    classes = listed(sorted({*data.classes.values()}))
    return BadInput(
        f"The {data.form.word}s lie in folders that may be classes ({classes}), and "
        f"{data.shown(listing.path)} lists them with the columns {listed(listing.others)}. "
        "List the folders in workload.classes, or name the class's column in workload.target."
    )


def _index(data: Data) -> dict[str, list[Path]]:
    """Returns inputs by path, path without suffix, name and stem, all casefolded."""
    index = defaultdict[str, list[Path]](list)
    for path in data.usable:
        inner = PurePosixPath(path.relative_to(data.source).as_posix())
        names = {str(inner), str(inner.with_suffix("")), inner.name, inner.stem}
        for name in names:
            index[folded(name)].append(path)
    return index


def _read(
    path: Path, data: Data, index: Mapping[str, list[Path]], is_named: bool
) -> Listing | None:
    """Returns a table by its column that names most inputs; None for too few, or for a test."""
    rows = _rows(path, data, is_named)
    if not rows or not rows[0]:
        return None
    part = part_of(path.stem)
    inputs = {}
    for name in rows[0]:
        cells = [row.get(name) for row in rows]
        inputs[name] = [_named_by(cell, index, data, part) for cell in cells]
    key = max(inputs, key=lambda name: _distinct(inputs[name]))
    number = _distinct(inputs[key])
    if is_named:
        is_listing = number > 0
    else:
        least = min(len(rows), len(data.usable)) / 2
        is_listing = number >= max(1, least)
        is_listing &= part == "test" or not _is_of_test(inputs[key], data)
    if not is_listing:
        return None
    _check_unique(rows, key, inputs[key], data.form)
    single = [paths[0] if paths else None for paths in inputs[key]]
    # Left out are copies of the names, such as names without suffixes
    others = [name for name in inputs if inputs[name] != inputs[key]]
    return Listing([path], rows, key, single, others, {})


def _rows(path: Path, data: Data, is_named: bool) -> list[Mapping[str, Any]]:
    if is_named:
        return list(records(path))
    if "submission" in path.name.casefold():
        note(f"{data.shown(path)} is not used: it is called as a table of a test.")
        return []
    if path.stat().st_size > _MOST_BYTES:
        note(
            f"{data.shown(path)} is not looked at for names of {data.form.word}s: it is large. "
            "workload.table names it."
        )
        return []
    try:
        return list(records(path))
    except (BadInput, ValueError, csv.Error) as error:
        note(f"{data.shown(path)} is not used ({named(error)}).")
        return []


def _named_by(cell: Any, index: Mapping[str, list[Path]], data: Data, part: str) -> list[Path]:
    """Returns the inputs that a cell names, preferring the table's split, then all but tests."""
    name = str(cell or "").strip().replace("\\", "/").removeprefix("./")
    inner = PurePosixPath(folded(name))
    keys = [str(inner), inner.name]
    if inner.suffix in data.form.suffixes:
        keys.append(inner.stem)
    for key in keys:
        paths = index.get(key, [])
        if len(paths) > 1:
            same = [path for path in paths if part and data.places[path].part == part]
            paths = same or [path for path in paths if data.places[path].part != "test"]
        if paths:
            return paths
    return []


def _distinct(inputs: Sequence[Sequence[Path]]) -> int:
    return len({path for paths in inputs for path in paths})


def _is_of_test(inputs: Sequence[Sequence[Path]], data: Data) -> bool:
    parts = {data.places[path].part for paths in inputs for path in paths}
    return parts == {"test"}


def _check_unique(
    rows: Sequence[Mapping[str, Any]], key: str, inputs: Sequence[Sequence[Path]], form: Form
) -> None:
    """Raises BadInput if a row names several files."""
    for row, paths in zip(rows, inputs, strict=True):
        if len(paths) > 1:
            raise BadInput(
                f"{named(row[key])} is the name of two {form.word}s, {both(paths)}. "
                "Write their folders in the table, or rename one."
            )


def _covers(listing: Listing, data: Data) -> bool:
    """Returns whether a table lists at least half of the files with a class by folders."""
    number = len(data.classes.keys() & {*listing.inputs})
    return 2 * number >= len(data.classes)


def _agrees(listing: Listing, data: Data) -> bool:
    """Returns whether a column of a table has the classes of the folders."""
    pairs = [(row, path) for row, path in listing.pairs() if path in data.classes]
    labels = [data.classes[path] for _, path in pairs]
    return any([row.get(name) for row, _ in pairs] == labels for name in listing.others)


# --- the classes in it ------------------------------------------------------------------------------------------------


def classes(listing: Listing, data: Data, target: str) -> dict[Path, str]:
    """Returns the class of each listed file. Raises BadInput for missing or different ones."""
    target = target or _only_other(listing, data)
    if target not in listing.rows[0]:
        raise BadInput(
            f"{data.shown(listing.path)} has no column {named(target)}. Its columns beside "
            f"{named(listing.key)}: {listed(listing.others)}. Correct workload.target."
        )
    labels: dict[Path, str] = {}
    problems = []
    for row, path in listing.pairs():
        if path is None:
            continue
        label = _text(row, target)
        before = labels.setdefault(path, label)
        start = f"{_line_of(row)}: {named(path.name)}"
        if not label:
            problems.append(f"{start} has no {named(target)}")
        elif label != before:
            problems.append(f"{start} is {label}, and {before} in an earlier row")
    if problems:
        raise BadInput(
            f"{data.shown(listing.path)}: {len(problems):,} rows give no class, or another one "
            f"than an earlier row. A {data.form.word} has one class. Correct or delete the rows.\n"
            f"{first_ten(problems)}"
        )
    _note(listing, data, labels, target)
    return labels


def _line_of(row: Mapping[str, Any]) -> str:
    return named(PurePosixPath(getattr(row, "place", "a row")).name)


def _only_other(listing: Listing, data: Data) -> str:
    if len(listing.others) == 1:
        return listing.others[0]
    raise BadInput(
        f"{data.shown(listing.path)} lists the {data.form.word}s by its column {named(listing.key)}, and "
        f"its other columns are: {listed(listing.others)}. "
        "Name the one of the class in workload.target."
    )


def _note(listing: Listing, data: Data, labels: Mapping[Path, str], target: str) -> None:
    """Notes how many rows and files belong together, and how many do not."""
    word = data.form.word
    rows = len(listing.rows)
    lacking = [row[listing.key] for row, path in listing.pairs() if path is None]
    bare = [path for path in data.inputs if path not in labels]
    repeats = rows - len(lacking) - len(labels)
    unused = [name for name in listing.others if name != target]
    tables = ", ".join(map(data.shown, listing.tables))
    verb = "list" if len(listing.tables) > 1 else "lists"
    number = f"{len(labels):,} {word}s in {rows:,} rows"
    by = f"by the column {named(listing.key)}; {named(target)} is the class."
    sentences = [f"{tables} {verb} the samples: {number}, {by}"]
    if lacking:
        example = printable(lacking[0], most=60)
        sentences.append(f"Rows without a {word}: {len(lacking):,}, such as {example}.")
    if repeats:
        sentences.append(f"Rows that repeat another: {repeats:,}.")
    if bare:
        where = counted(bare, data.source)
        sentences.append(
            f"{word.capitalize()}s without a row, which are not used: {len(bare):,} ({where})."
        )
    if unused:
        sentences.append(f"Columns that are not used: {listed(unused)}.")
    note(" ".join(sentences))
