"""Reports how tables were read: rows, other lines, unused columns, unread files."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.errors import BadInput, printable
from trainbook.supervised.names import listed, part_of
from trainbook.supervised.notes import note

_MOST_SENTENCES = 5  # on single files; more are summed up
_MOST_NAMES = 10  # of files in a sentence
_TABLES = (
    ".csv",
    ".tsv",
    ".tab",
    ".txt",
    ".json",
    ".jsonl",
    ".ndjson",
    ".parquet",
    ".xlsx",
    ".xls",
    ".ods",
)
PACKED = (".gz", ".bz2", ".xz", ".zip")


@dataclass
class Report:
    """How a file was read: its rows (None: not a table), lines (0: not counted) and columns."""

    path: Path
    rows: int | None = None
    lines: int = 0
    others: dict[str, int] = field(default_factory=dict)  # other lines by kind
    remarks: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def about(self) -> str:
        if self.rows is None:
            return "; ".join(self.remarks)
        text = _number_of(self.rows, "row")
        if self.lines:
            text += f" of {_number_of(self.lines, 'line')}"
        others = {kind: number for kind, number in self.others.items() if number}
        if others:
            counts = [f"{number:,} {kind}" for kind, number in others.items()]
            text += f" ({', '.join(counts)})"
        return "; ".join([text, *self.remarks])

    def unused(self) -> tuple[str, ...]:
        return tuple(name or "one without a name" for name in self.columns if name not in self.used)

    def absent(self) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.used if name not in self.columns))


def _number_of(number: int, noun: str) -> str:
    if number == 1:
        return f"{number:,} {noun}"
    return f"{number:,} {noun}s"


class Reports:
    """The reports of one reading, by path."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self.by_path: dict[Path, Report] = {}
        self.folders: dict[Path, None] = {}

    def shown(self, path: Path) -> str:
        if self.root is None or path == self.root or not path.is_relative_to(self.root):
            return printable(path.name)
        return printable(path.relative_to(self.root).as_posix())

    def sentences(self) -> Iterator[str]:
        reports = [report for report in self.by_path.values() if report.about()]
        if len(reports) <= _MOST_SENTENCES:
            yield from (f"{self.shown(report.path)}: {report.about()}." for report in reports)
        else:
            yield from self._summed(reports)
        yield from self._columns(reports)
        yield from self._beside()

    def _summed(self, reports: list[Report]) -> Iterator[str]:
        total = Report(Path(), rows=0)
        places: dict[str, list[str]] = {}
        for report in reports:
            total.rows = (total.rows or 0) + (report.rows or 0)
            total.lines += report.lines
            total.others = dict(Counter(total.others) + Counter(report.others))
            for remark in report.remarks:
                places.setdefault(remark, []).append(self.shown(report.path))
        yield f"{len(reports):,} files: {total.about()}."
        for remark, names in places.items():
            yield f"{len(names):,} of the files: {remark}, such as {names[0]}."

    def _columns(self, reports: list[Report]) -> Iterator[str]:
        read = [report for report in reports if report.rows]
        for columns, where in self._alike(read, Report.unused):
            yield f"Columns of {where} that nothing used: {columns}."
        for columns, where in self._alike(read, Report.absent):
            yield f"Columns that were asked for, and are not in {where}: {columns}."

    def _alike(
        self, reports: list[Report], columns_of: Callable[[Report], tuple[str, ...]]
    ) -> Iterator[tuple[str, str]]:
        """Yields columns with the files that share them."""
        files: dict[tuple[str, ...], list[str]] = {}
        for report in reports:
            if columns := columns_of(report):
                files.setdefault(columns, []).append(self.shown(report.path))
        for columns, names in files.items():
            if len(names) > 1:
                more = f" and {len(names) - 1:,} files more"
            else:
                more = ""
            yield listed(columns), f"{names[0]}{more}"

    def _beside(self) -> Iterator[str]:
        """Yields a sentence on unread tables in the folders that were read."""
        paths = {path for folder in self.folders for path in folder.rglob("*")}
        unread = filter(is_table, paths - self.by_path.keys())
        names = sorted(map(self.shown, unread))
        if len(names) > _MOST_NAMES:
            names[_MOST_NAMES:] = [f"and {len(names) - _MOST_NAMES:,} more"]
        if names:
            yield f"Files beside them that were not read: {', '.join(names)}."


def is_table(path: Path) -> bool:
    """Returns whether a file has the suffix of a table, packed or not, and is not hidden."""
    name = path.name.lower()
    for suffix in PACKED:
        name = name.removesuffix(suffix)
    is_hidden = name.startswith(".")
    return not is_hidden and name.endswith(_TABLES) and path.is_file()


_reports: ContextVar[Reports | None] = ContextVar("reports", default=None)


@contextlib.contextmanager
def covering(root: Path | None) -> Iterator[None]:
    """Notes, when the block ends, how each table was read in it. Paths are relative to `root`."""
    reports = Reports(root)
    token = _reports.set(reports)
    try:
        yield
    finally:
        _reports.reset(token)
    for sentence in reports.sentences():
        note(sentence)


def add(report: Report) -> None:
    """Adds a file's report to the block's; notes it at once outside of a block."""
    reports = _reports.get()
    if reports is None:
        if about := report.about():
            note(f"{printable(report.path.name)}: {about}.")
        return
    if before := reports.by_path.get(report.path):
        report.used = before.used
        remarks = [*before.remarks, *report.remarks]
        report.remarks = [*dict.fromkeys(remarks)]
    reports.by_path[report.path] = report


@contextlib.contextmanager
def dealing() -> Iterator[None]:
    """Notes tables read in the block that are named for splits, since their rows are mixed."""
    reports = _reports.get()
    if reports is None:
        yield
        return
    before = {*reports.by_path}
    yield
    fresh = [path for path in reports.by_path if path not in before]
    parts = {path: part_of(path.name) for path in fresh}
    if len({*parts.values()} - {""}) > 1:
        names = listed(reports.shown(path) for path, part in parts.items() if part)
        note(
            f"The rows of {names} are dealt to the splits together, whatever the files are called."
        )


def add_folder(folder: Path) -> None:
    """Adds a folder in which the block names unread tables."""
    if reports := _reports.get():
        reports.folders[folder] = None


class MissingColumn(BadInput, KeyError):
    """A missing column in a row; also a KeyError, for code that expects one."""

    __str__ = BaseException.__str__


class Row(dict[str, Any]):
    """A row of a table that records which columns are used. Raises MissingColumn for others."""

    __slots__ = ("place", "used")

    def __init__(self, cells: dict[str, Any], place: str, used: set[str]) -> None:
        super().__init__(cells)
        self.place = place
        self.used = used

    def __missing__(self, name: str) -> Any:
        columns = listed(super().keys())
        raise MissingColumn(
            f"{self.place}: There is no column {printable(name)!r}. Its columns are: {columns}."
        )

    def __getitem__(self, name: str) -> Any:
        self.used.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.used.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.used.add(name)
        return super().pop(name, *default)

    def whole(self) -> dict[str, Any]:
        """Returns the row as a plain dict; all columns count as used."""
        self.used.update(super().keys())
        return dict(super().items())

    copy = whole  # type: ignore[assignment]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole())

    def keys(self) -> Any:
        return self.whole().keys()

    def values(self) -> Any:
        return self.whole().values()

    def items(self) -> Any:
        return self.whole().items()

    def __or__(self, other: Any) -> Any:
        return self.whole() | other

    def __reduce__(self) -> Any:
        return dict, (self.whole(),)
