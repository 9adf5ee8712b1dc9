"""A graph as data: triples and entities, and the JSON lines that store them."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lib.config.files import size_of
from lib.errors import BadInput, check_limit, printable
from lib.machine import disk

TRIPLES, ENTITIES = "triples.jsonl", "entities.jsonl"
_MOST_BYTES = 2**20  # of a line; decoding takes six times as much memory
_MOST_BAD = 100_000  # lines, unless more are allowed
_MOST_LINES = 2**31  # of a source file
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


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


def triple_row(triple: Triple) -> dict[str, Any]:
    """Returns a triple as its JSON line has it."""
    return {
        "head": triple.head,
        "relation": triple.relation,
        "tail": triple.tail,
        "qualifiers": {name: getattr(triple, name) for name in ("language", "file", "module", "line")},
    }


def entity_row(entity: Entity) -> dict[str, Any]:
    """Returns an entity as its JSON line has it, without what is unknown."""
    return {name: value for name, value in asdict(entity).items() if value}


def write(graph: Graph, folder: Path, probabilities: Mapping[tuple[str, str, str], float] | None = None) -> None:
    """Writes triples.jsonl and entities.jsonl; the same graph gives the same bytes.

    `probabilities` are those of predicted triples, by their keys.
    """
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    chances = {key: {"probability": value} for key, value in (probabilities or {}).items()}
    triples = (triple_row(triple) | chances.get(triple.key, {}) for triple in graph.triples)
    entities = (entity_row(entity) for _, entity in sorted(graph.entities.items()))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ((TRIPLES, triples), (ENTITIES, entities)):
        with disk.whole(folder / name) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(encode(row) + "\n" for row in rows)


def read(path: Path | Sequence[Path], bad_input_limit: int = 0) -> Graph:
    """Reads the graph in a folder, or in one `*.jsonl` with its entities beside it; of several, all as one graph.

    Up to `bad_input_limit` bad lines are left out and listed in `skipped`; with more, raises BadInput that names the
    first of them. Duplicates are dropped and counted.
    """
    scan = _Scan(max(bad_input_limit, _MOST_BAD))
    paths = [path] if isinstance(path, Path) else path
    pairs = [pair for one in paths for pair in _files(one)]
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

    def __init__(self, most_bad: int) -> None:
        self.most_bad = most_bad
        self.triples: dict[tuple[str, str, str], Triple] = {}
        self.entities: dict[str, Entity] = {}
        self.origins: dict[Any, tuple[str, int]] = {}
        self.bad: list[tuple[str, str]] = []
        self.duplicates = 0

    def file(self, path: Path, take: Callable[[dict, tuple[str, int]], None]) -> None:
        decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
        is_empty = True
        for number, line in enumerate(_lines(path), 1):
            is_empty = is_empty and not line.strip()
            try:
                if len(line) > _MOST_BYTES:
                    raise ValueError(f"this line has more than {_MOST_BYTES:,} bytes")
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
                self.bad.append((f"{path}:{number}", printable(error, most=500)))
            if len(self.bad) > self.most_bad:
                break  # a file of another kind, whose bad lines alone would fill the memory
        if is_empty:
            raise BadInput(f"{path} is empty. It must hold one JSON object a line.")

    def triple(self, record: dict, origin: tuple[str, int]) -> None:
        qualifiers = record.get("qualifiers")
        if type(qualifiers) is not dict:
            raise ValueError('"qualifiers" is missing or no object')
        line = qualifiers.get("line", 0)
        if type(line) is not int or not 0 <= line < _MOST_LINES:
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
        if any(type(line) is not int or not 0 <= line < _MOST_LINES for line in lines):
            raise ValueError(f'"first_line" and "last_line" are {lines}, not whole numbers from 0')
        file = _named(record, "file") if "file" in record else ""
        entity = Entity(_named(record, "id"), _named(record, "type"), file, *lines)
        known = self.entities.setdefault(entity.id, entity)
        if known.type != entity.type:
            name, line = self.origins[entity.id]
            raise ValueError(f"{entity.id!r} is a {entity.type} here and a {known.type} at {name}:{line}")
        self.duplicates += known is not entity
        self.origins.setdefault(entity.id, origin)


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file without their ends, of one that is too long its beginning. Raises BadInput."""
    try:
        size_of(path)  # a pipe would be waited for
        with path.open("rb") as file:
            line = file.readline(_MOST_BYTES + 1).removeprefix(b"\xef\xbb\xbf")
            while line:
                yield line.removesuffix(b"\n")
                while not line.endswith(b"\n") and (line := file.readline(_MOST_BYTES)):
                    pass  # the rest of a line that is too long
                line = file.readline(_MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{printable(path)} cannot be read ({error.strerror}). Give a file of JSON lines.") from None


def _named(record: dict, name: str) -> str:
    """Returns a text that must be there. Raises ValueError."""
    value = record.get(name)
    if type(value) is not str or not value:
        raise ValueError(f'"{name}" is {value!r}, not a text' if name in record else f'"{name}" is missing')
    if not value.isascii():
        value.encode("utf-8")  # half a surrogate pair would only fail when written or split into tokens
    if _CONTROL.search(value):
        raise ValueError(f'"{name}" is {value!r}, which has a control character')  # the corpus has a name a line
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f'the key "{name}" stands there more than once')
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
