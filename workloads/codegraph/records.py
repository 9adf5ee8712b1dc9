"""A graph as data: triples and entities, and how they are read from JSON lines."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from lib import untrusted
from lib.errors import BadInput, check_limit, printable
from lib.untrusted import Natural

_MOST_BYTES = 2**20  # of a line; decoding takes six times as much memory
_MOST_BAD = 100_000  # lines, unless more are allowed: a file of another kind
_SHOWN = 20  # places that are left out
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an edge was found. `line` counts from 1; 0 is unknown."""

    language: str
    file: str
    module: str
    line: Natural = 0


@dataclass(frozen=True, slots=True)
class Triple:
    head: str
    relation: str
    tail: str
    qualifiers: Place

    @property
    def key(self) -> tuple[str, str, str]:
        return self.head, self.relation, self.tail

    @property
    def file(self) -> str:
        return self.qualifiers.file

    @property
    def line(self) -> int:
        return self.qualifiers.line


@dataclass(frozen=True, slots=True)
class Entity:
    """One node. Lines count from 1 and include decorators; "" and 0 are unknown."""

    id: str
    type: str
    file: str = ""
    first_line: Natural = 0
    last_line: Natural = 0


@dataclass
class Graph:
    """Triples unique and sorted by key, entities by id, and (place, reason) of omitted records."""

    triples: list[Triple]
    entities: dict[str, Entity]
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def print_skipped(self) -> None:
        for place, reason in self.skipped[:_SHOWN]:
            print(printable(f"Left out {place}: {reason}"))
        if len(self.skipped) > _SHOWN:
            print(f"Left out {len(self.skipped) - _SHOWN:,} more")


def read(paths: Sequence[Path], bad_input_limit: int = 0) -> Graph:
    """Reads the graphs in folders, or in `*.jsonl` with their entities beside them, as one.

    Up to `bad_input_limit` bad lines are left out and listed in `skipped`; with more, raises BadInput that names the
    first of them. Duplicates are dropped.
    """
    bad: list[tuple[str, str]] = []
    most = max(bad_input_limit, _MOST_BAD)
    pairs = [pair for path in paths for pair in _files(path)]
    entities: dict[str, Entity] = {}
    triples: dict[tuple[str, str, str], Triple] = {}
    for _, file in pairs:
        for place, entity in _parsed(file, Entity, bad, most):
            before = entities.setdefault(entity.id, entity)
            if before.type != entity.type:
                reason = f"{entity.id!r} is a {entity.type} here and a {before.type} before"
                bad.append((place, printable(reason)))
    for file, _ in pairs:
        for _, triple in _parsed(file, Triple, bad, most):
            triples.setdefault(triple.key, triple)
    check_limit("Bad lines", [f"{where}: {reason}" for where, reason in bad], bad_input_limit)
    return Graph([triples[key] for key in sorted(triples)], entities, bad)


def _files(path: Path) -> list[tuple[Path, Path]]:
    """Returns the files (triples, entities) of a folder, or of one file of triples."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    files = [file for file in files if not file.name.endswith("entities.jsonl")]
    if not files:
        raise BadInput(
            f"There is no graph at {path}. Put NAME.jsonl and NAME.entities.jsonl into that folder."
        )
    return [(f, f.with_name(f"{f.stem}.entities.jsonl".removeprefix("triples."))) for f in files]


def _parsed(
    path: Path, kind: type, bad: list[tuple[str, str]], most_bad: int
) -> Iterator[tuple[str, Any]]:
    """Yields the value of each line, with its place; notes bad lines, `most_bad` at most. Raises BadInput."""
    number = 0
    try:
        untrusted.size_of(path)  # a pipe would be waited for
        with path.open("rb") as file:
            while (line := file.readline(_MOST_BYTES)) and len(bad) <= most_bad:
                number = number + 1
                rest = line
                while not rest.endswith(b"\n") and (rest := file.readline(_MOST_BYTES)):
                    line = b""  # which is too long
                try:
                    if not line:
                        raise ValueError(f"this line has more than {_MOST_BYTES:,} bytes")
                    item = _checked(untrusted.parse(line.decode("utf-8-sig"), kind))
                    yield f"{path}:{number}", item
                except ValueError as error:
                    bad.append((f"{path}:{number}", printable(error, most=500)))
    except OSError as error:
        raise BadInput(
            f"{printable(path)} cannot be read ({error.strerror}). Give a file of JSON lines."
        ) from None
    if not number:
        raise BadInput(f"{path} is empty. It must hold one JSON object a line.")


def _checked(item: Any) -> Any:
    """Returns the item of a line. Raises ValueError for a name that is not text of one line."""
    values = list(astuple(item))
    if isinstance(values[-1], tuple):  # the place of a triple
        values += values.pop()
    for text in values:
        if not isinstance(text, str):
            continue
        if _CONTROL.search(text):  # the corpus has a name a line
            raise ValueError(f"{untrusted.shown(text)} is no text of one line")
        # half a surrogate pair would only fail when written or split into tokens
        text.encode("utf-8")
    return item
