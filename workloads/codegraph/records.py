"""A graph as data: triples and entities."""

from dataclasses import dataclass, field

from lib.errors import printable

_SHOWN = 20  # places that are left out


@dataclass(frozen=True, slots=True)
class Triple:
    """A fact, and where its file states it; lines count from 1."""

    head: str
    relation: str
    tail: str
    file: str
    line: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.head, self.relation, self.tail


@dataclass(frozen=True, slots=True)
class Entity:
    """One node. Lines count from 1 and include decorators; "" and 0: the tree does not define it."""

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
        for place, reason in self.skipped[:_SHOWN]:
            print(printable(f"Left out {place}: {reason}"))
        if len(self.skipped) > _SHOWN:
            print(f"Left out {len(self.skipped) - _SHOWN:,} more")
