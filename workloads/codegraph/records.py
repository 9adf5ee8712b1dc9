"""A graph as data: triples and entities, and the JSON lines that store them."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lib.config.files import size_of
from lib.errors import BadInput, check_limit, printable
from lib.machine import disk

TRIPLES, ENTITIES = "triples.jsonl", "entities.jsonl"
_MOST_BYTES = 2**20  # of a line; decoding takes six times as much memory
_MOST_BAD = 100_000  # lines, unless more are allowed: a file of another kind
_MOST_LINES = 2**31  # of a source file
_SHOWN = 20  # places that are left out
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
Item = TypeVar("Item")


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
    """Triples unique and sorted by key, entities by id, and (place, reason) of what was left out."""

    triples: list[Triple]
    entities: dict[str, Entity]
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def print_skipped(self) -> None:
        """Prints what was left out, the first lines of it."""
        for place, reason in self.skipped[:_SHOWN]:
            print(printable(f"Left out {place}: {reason}"))
        if len(self.skipped) > _SHOWN:
            print(f"Left out {len(self.skipped) - _SHOWN:,} more")


def write(graph: Graph, folder: Path, probabilities: Mapping[tuple[str, str, str], float] | None = None) -> None:
    """Writes triples.jsonl and entities.jsonl, with the `probabilities` of predicted triples; always the same bytes."""

    def row(triple: Triple) -> dict[str, Any]:
        place = {name: getattr(triple, name) for name in ("language", "file", "module", "line")}
        chance = {"probability": probabilities[triple.key]} if probabilities and triple.key in probabilities else {}
        return {"head": triple.head, "relation": triple.relation, "tail": triple.tail, "qualifiers": place, **chance}

    entities = (asdict(entity) for _, entity in sorted(graph.entities.items()))
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / TRIPLES, map(row, graph.triples))
    write_lines(folder / ENTITIES, ({name: value for name, value in each.items() if value} for each in entities))


def write_lines(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """Writes rows as JSON lines, whole or not at all."""
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    with disk.whole(path) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(encode(row) + "\n" for row in rows)


def read(path: Path | Sequence[Path], bad_input_limit: int = 0) -> Graph:
    """Reads the graph in a folder, or in one `*.jsonl` with its entities beside it; of several, all as one graph.

    Up to `bad_input_limit` bad lines are left out and listed in `skipped`; with more, raises BadInput that names the
    first of them. Duplicates are dropped.
    """
    bad: list[tuple[str, str]] = []
    most_bad = max(bad_input_limit, _MOST_BAD)
    pairs = [pair for one in ([path] if isinstance(path, Path) else path) for pair in _files(one)]
    entities: dict[str, Entity] = {}
    triples: dict[tuple[str, str, str], Triple] = {}
    for _, file in pairs:
        for place, entity in _items(file, _entity, bad, most_bad):
            before = entities.setdefault(entity.id, entity)
            if before.type != entity.type:
                bad.append((place, printable(f"{entity.id!r} is a {entity.type} here and a {before.type} before")))
    for file, _ in pairs:
        for _, triple in _items(file, _triple, bad, most_bad):
            triples.setdefault(triple.key, triple)
    check_limit("Bad lines", [f"{where}: {reason}" for where, reason in bad], bad_input_limit)
    return Graph([triples[key] for key in sorted(triples)], entities, bad)


def _files(path: Path) -> list[tuple[Path, Path]]:
    """Returns the files (triples, entities) of a folder, or of one file of triples."""
    inside = sorted(path.glob("*.jsonl")) if path.is_dir() else []
    files = [path] if path.is_file() else [file for file in inside if not file.name.endswith(ENTITIES)]
    if not files:
        raise BadInput(f"There is no graph at {path}. Put NAME.jsonl and NAME.entities.jsonl into that folder.")
    pairs = [(f, f.with_name(ENTITIES if f.name == TRIPLES else f"{f.stem}.entities.jsonl")) for f in files]
    if missing := next((pair for pair in pairs if not pair[1].is_file()), None):
        line = '{"id": .., "type": ..}'
        raise BadInput(f"{missing[0]} has no {missing[1].name} beside it. Add that file, with lines {line}.")
    return pairs


def _items(
    path: Path, make: Callable[[dict], Item], bad: list[tuple[str, str]], most_bad: int
) -> Iterator[tuple[str, Item]]:
    """Yields what `make` makes of each line, with its place; notes bad lines, `most_bad` at most. Raises BadInput."""
    number, is_empty = 0, True
    try:
        size_of(path)  # a pipe would be waited for
        with path.open("rb") as file:
            while (line := file.readline(_MOST_BYTES + 1)) and len(bad) <= most_bad:
                number, is_empty = number + 1, is_empty and not line.strip()
                try:
                    if len(line.removesuffix(b"\n")) > _MOST_BYTES:
                        while not line.endswith(b"\n") and (line := file.readline(_MOST_BYTES)):
                            pass
                        raise ValueError(f"this line has more than {_MOST_BYTES:,} bytes")
                    record = json.loads(line.decode("utf-8-sig"))
                    if type(record) is not dict:
                        raise ValueError("this is no JSON object")
                    yield f"{path}:{number}", make(record)
                except json.JSONDecodeError as error:
                    bad.append((f"{path}:{number}", f"malformed JSON at column {error.colno}: {error.msg}"))
                except (ValueError, RecursionError) as error:
                    bad.append((f"{path}:{number}", printable(error, most=500)))
    except OSError as error:
        raise BadInput(f"{printable(path)} cannot be read ({error.strerror}). Give a file of JSON lines.") from None
    if is_empty:
        raise BadInput(f"{path} is empty. It must hold one JSON object a line.")


def _triple(record: dict) -> Triple:
    if type(place := record.get("qualifiers")) is not dict:
        raise ValueError('"qualifiers" is missing or no object')
    names = [_text(record, name) for name in ("head", "relation", "tail")]
    return Triple(*names, *(_text(place, name) for name in ("language", "file", "module")), _line(place, "line"))


def _entity(record: dict) -> Entity:
    file = _text(record, "file") if "file" in record else ""
    lines = [_line(record, name) for name in ("first_line", "last_line")]
    return Entity(_text(record, "id"), _text(record, "type"), file, *lines)


def _line(record: dict, name: str) -> int:
    """Returns the number of a line, 0 if there is none. Raises ValueError."""
    value = record.get(name, 0)
    if type(value) is not int or not 0 <= value < _MOST_LINES:
        raise ValueError(f'"{name}" is {value!r}, not a whole number from 0')
    return value


def _text(record: dict, name: str) -> str:
    """Returns a text that must be there. Raises ValueError."""
    value = record.get(name)
    if type(value) is not str or not value or _CONTROL.search(value):  # the corpus has a name a line
        raise ValueError(f'"{name}" is {value!r}, not a text of one line' if name in record else f'"{name}" is missing')
    value.encode("utf-8")  # half a surrogate pair would only fail when written or split into tokens
    return value
