"""A graph as data: triples and entities, and the JSON lines that store them."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lib.errors import BadInput, check_limit
from lib.machine import disk

TRIPLES, ENTITIES = "triples.jsonl", "entities.jsonl"


@dataclass(frozen=True, slots=True)
class Triple:
    """One edge. `line` counts from 1; 0 is unknown."""

    head: str
    relation: str
    tail: str
    language: str
    file: str
    module: str
    line: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.head, self.relation, self.tail


@dataclass(frozen=True, slots=True)
class Entity:
    """One node. Lines count from 1 and include decorators; "" and 0 are unknown."""

    id: str
    type: str
    file: str = ""
    first_line: int = 0
    last_line: int = 0


@dataclass
class Graph:
    """A graph: triples unique by (head, relation, tail) and sorted by it, and entities by id.

    `skipped` has (file, reason) of what was left out. `origins` has (file, line) of the JSON line that a triple's key
    or an entity's id was read from.
    """

    triples: list[Triple]
    entities: dict[str, Entity]
    skipped: list[tuple[str, str]] = field(default_factory=list)
    duplicates: int = 0
    origins: dict[Any, tuple[str, int]] = field(default_factory=dict, compare=False, repr=False)


def write(graph: Graph, folder: Path) -> None:
    """Writes triples.jsonl and entities.jsonl; the same graph gives the same bytes."""
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    triples = (
        {
            "head": triple.head,
            "relation": triple.relation,
            "tail": triple.tail,
            "qualifiers": {name: getattr(triple, name) for name in ("language", "file", "module", "line")},
        }
        for triple in graph.triples
    )
    entities = (
        {name: value for name, value in asdict(entity).items() if value} for _, entity in sorted(graph.entities.items())
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ((TRIPLES, triples), (ENTITIES, entities)):
        with disk.whole(folder / name) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(encode(row) + "\n" for row in rows)


def read(path: Path, bad_input_limit: int = 0) -> Graph:
    """Reads the graph in a folder, or in one `*.jsonl` with its entities beside it.

    Up to `bad_input_limit` bad lines are left out and listed in `skipped`; with more, raises BadInput that names the
    first of them. Duplicates are dropped and counted.
    """
    scan = _Scan()
    pairs = _files(path)
    for _, entities in pairs:
        scan.file(entities, scan.entity)
    for triples, _ in pairs:
        scan.file(triples, scan.triple)
    check_limit("Bad lines", [f"{where}: {reason}" for where, reason in scan.bad], bad_input_limit)
    skipped = [(where, f"left out: {reason}") for where, reason in scan.bad]
    return Graph(
        [scan.triples[key] for key in sorted(scan.triples)], scan.entities, skipped, scan.duplicates, scan.origins
    )


def _files(path: Path) -> list[tuple[Path, Path]]:
    """Returns the files (triples, entities) of a folder, or of one file of triples."""
    if path.is_dir():
        files = [file for file in sorted(path.glob("*.jsonl")) if not file.name.endswith(ENTITIES)]
        if not files:
            raise BadInput(f"{path} holds no file of triples. Put NAME.jsonl and NAME.entities.jsonl into it.")
    elif path.is_file():
        files = [path]
    else:
        raise BadInput(f"There is no graph at {path}. Give a folder with NAME.jsonl and NAME.entities.jsonl.")
    pairs = [(f, f.with_name(ENTITIES if f.name == TRIPLES else f"{f.stem}.entities.jsonl")) for f in files]
    for triples, entities in pairs:
        if not entities.is_file():
            line = '{"id": .., "type": ..}'
            raise BadInput(f"{triples} has no {entities.name} beside it. Add that file, with lines {line}.")
    return pairs


class _Scan:
    """Collects triples and entities from JSON lines, and every bad line with its place."""

    def __init__(self) -> None:
        self.triples: dict[tuple[str, str, str], Triple] = {}
        self.entities: dict[str, Entity] = {}
        self.origins: dict[Any, tuple[str, int]] = {}
        self.bad: list[tuple[str, str]] = []
        self.duplicates = 0

    def file(self, path: Path, take: Callable[[dict, tuple[str, int]], None]) -> None:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
        if not data.strip():
            raise BadInput(f"{path} is empty. It must hold one JSON object a line.")
        decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
        for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
            try:
                text = line.decode("utf-8")
                if not text.strip():
                    raise ValueError("this line is empty")
                record = decoder.decode(text)
                if type(record) is not dict:
                    raise ValueError("this is no JSON object")
                take(record, (path.name, number))
            except json.JSONDecodeError as error:
                self.bad.append((f"{path}:{number}", f"malformed JSON at column {error.colno}: {error.msg}"))
            except UnicodeDecodeError as error:
                self.bad.append((f"{path}:{number}", f"byte {error.start + 1} is not UTF-8"))
            except (ValueError, RecursionError) as error:
                self.bad.append((f"{path}:{number}", str(error)))

    def triple(self, record: dict, origin: tuple[str, int]) -> None:
        qualifiers = record.get("qualifiers")
        if type(qualifiers) is not dict:
            raise ValueError('"qualifiers" is missing or no object')
        line = qualifiers.get("line", 0)
        if type(line) is not int or line < 0:
            raise ValueError(f'"line" is {line!r}, not a whole number from 0')
        head, relation, tail = _named(record, "head"), _named(record, "relation"), _named(record, "tail")
        place = [_named(qualifiers, name) for name in ("language", "file", "module")]
        key = (head, relation, tail)
        if key in self.triples:
            self.duplicates += 1
            return
        self.triples[key] = Triple(head, relation, tail, *place, line)
        self.origins[key] = origin

    def entity(self, record: dict, origin: tuple[str, int]) -> None:
        lines = [record.get(name, 0) for name in ("first_line", "last_line")]
        if any(type(line) is not int or line < 0 for line in lines):
            raise ValueError(f'"first_line" and "last_line" are {lines}, not whole numbers from 0')
        file = _named(record, "file") if "file" in record else ""
        entity = Entity(_named(record, "id"), _named(record, "type"), file, *lines)
        known = self.entities.setdefault(entity.id, entity)
        if known.type != entity.type:
            name, line = self.origins[entity.id]
            raise ValueError(f"{entity.id!r} is a {entity.type} here and a {known.type} at {name}:{line}")
        self.duplicates += known is not entity
        self.origins.setdefault(entity.id, origin)


def _named(record: dict, name: str) -> str:
    """Returns a text that must be there. Raises ValueError."""
    value = record.get(name)
    if type(value) is not str or not value:
        raise ValueError(f'"{name}" is {value!r}, not a text' if name in record else f'"{name}" is missing')
    if not value.isascii():
        value.encode("utf-8")  # half a surrogate pair would only fail when written or split into tokens
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f'the key "{name}" stands there more than once')
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
