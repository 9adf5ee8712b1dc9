"""A graph as data: triples, entities, figures about it, and the JSON lines that it is kept in."""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lib.errors import BadInput, check_limit

TRIPLES, ENTITIES = "triples.jsonl", "entities.jsonl"
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Triple:
    """One edge; `line` counts from 1, 0 where it is not known."""

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
    """One node; the lines count from 1 and include decorators. File "" and lines 0 where they are not known."""

    id: str
    type: str
    file: str = ""
    first_line: int = 0
    last_line: int = 0


@dataclass
class Graph:
    """Triples unique by (head, relation, tail) and sorted by it. `skipped`: (file, reason) of what was left out.
    `origins`: (file, line) of the JSON line that a triple's key or an entity's id was read from."""

    triples: list[Triple]
    entities: dict[str, Entity]
    skipped: list[tuple[str, str]] = field(default_factory=list)
    duplicates: int = 0
    origins: dict[Any, tuple[str, int]] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Statistics:
    """Shares are between 0 and 1, of unique edges whose tail is defined in the tree (0 where there are no such edges).
    Calls are `calls` and `instantiates` together; `two_hop_paths` counts distinct a -> b -> c of them with c != a."""

    triples: int
    entities: int
    relations: dict[str, int]
    calls_resolved: float
    bases_resolved: float
    two_hop_paths: int


def statistics(graph: Graph) -> Statistics:
    """The figures that a report prints."""
    counts = Counter(triple.relation for triple in graph.triples)
    defined = {triple.tail for triple in graph.triples if triple.relation in ("defines", "contains", "declares")}
    calls = [triple for triple in graph.triples if triple.relation in ("calls", "instantiates")]
    bases = [triple for triple in graph.triples if triple.relation == "inherits_from"]
    following: dict[str, set[str]] = defaultdict(set)
    for triple in calls:
        if triple.tail in defined:
            following[triple.head].add(triple.tail)
    paths = sum(len(following.get(b, set()) - {a}) for a, targets in following.items() for b in targets)
    shares = [sum(one.tail in defined for one in some) / max(1, len(some)) for some in (calls, bases)]
    relations = dict(sorted(counts.items()))
    return Statistics(len(graph.triples), len(graph.entities), relations, shares[0], shares[1], paths)


def write(graph: Graph, folder: Path) -> None:
    """Writes triples.jsonl and entities.jsonl, each aside and renamed; the same graph gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / TRIPLES, map(_triple_line, graph.triples))
    _replace(folder / ENTITIES, (_entity_line(graph.entities[name]) for name in sorted(graph.entities)))


def _triple_line(triple: Triple) -> str:
    place = {"language": triple.language, "file": triple.file, "module": triple.module, "line": triple.line}
    return _encode({"head": triple.head, "relation": triple.relation, "tail": triple.tail, "qualifiers": place})


def _entity_line(entity: Entity) -> str:
    return _encode({name: value for name, value in asdict(entity).items() if value})


def _replace(path: Path, lines: Iterator[str]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def read(path: Path, bad_input_limit: int = 0) -> Graph:
    """The graph in a folder or in one `*.jsonl` with its entities beside it. Up to `bad_input_limit` bad lines are left
    out and told in `skipped`; with more, BadInput names the first of them. Duplicates are dropped and counted."""
    scan = _Scan()
    pairs = _files(path)
    for _, entities in pairs:
        scan.file(entities, scan.entity)
    for triples, _ in pairs:
        scan.file(triples, scan.triple)
    check_limit("Bad lines", [f"{where}: {reason}" for where, reason in scan.bad], bad_input_limit)
    ordered = [scan.triples[key] for key in sorted(scan.triples)]
    skipped = [(where, f"left out: {reason}") for where, reason in scan.bad]
    return Graph(ordered, scan.entities, skipped, scan.duplicates, scan.origins)


def _files(path: Path) -> list[tuple[Path, Path]]:
    """(triples, entities) of a folder or of one file."""
    if path.is_dir():
        found = [one for one in sorted(path.glob("*.jsonl")) if not one.name.endswith(ENTITIES)]
        if not found:
            raise BadInput(f"{path} holds no file of triples. Put NAME.jsonl and NAME.entities.jsonl into it.")
    elif path.is_file():
        found = [path]
    else:
        raise BadInput(f"There is no graph at {path}. Give a folder with NAME.jsonl and NAME.entities.jsonl.")
    pairs = [(one, one.with_name(ENTITIES if one.name == TRIPLES else f"{one.stem}.entities.jsonl")) for one in found]
    for triples, entities in pairs:
        if not entities.is_file():
            wanted = '{"id": .., "type": ..}'
            raise BadInput(f"{triples} has no {entities.name} beside it. Each line of that must be {wanted}.")
    return pairs


class _Scan:
    """Reads JSON lines, collects what is good and notes every line that is not."""

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
        decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
        for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
            try:
                record = decoder.decode(_text(line))
                if type(record) is not dict:
                    raise ValueError("this is no JSON object")
                take(record, (path.name, number))
            except (ValueError, RecursionError) as error:
                self.bad.append((f"{path}:{number}", _reason(error)))

    def triple(self, record: dict, origin: tuple[str, int]) -> None:
        place = record.get("qualifiers")
        if type(place) is not dict:
            raise ValueError('"qualifiers" is missing or no object')
        line = place.get("line", 0)
        if type(line) is not int or line < 0:
            raise ValueError(f'"line" is {line!r}, not a whole number from 0')
        head, relation, tail = _named(record, "head"), _named(record, "relation"), _named(record, "tail")
        places = [_named(place, name) for name in ("language", "file", "module")]
        key = (head, relation, tail)
        if key in self.triples:
            self.duplicates += 1
            return
        self.triples[key] = Triple(head, relation, tail, *places, line)
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


def _text(line: bytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8") from None
    if not text.strip():
        raise ValueError("this line is empty")
    return text


def _named(record: dict, name: str) -> str:
    value = record.get(name)
    if type(value) is not str or not value:
        raise ValueError(f'"{name}" is {value!r}, not a text' if name in record else f'"{name}" is missing')
    if not value.isascii():
        value.encode("utf-8")  # half a surrogate pair would only fail when written or split into tokens
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"malformed JSON at column {error.colno}: {error.msg}"
    return str(error)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f'the key "{name}" stands there more than once')
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
