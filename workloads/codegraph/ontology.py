"""What a graph may say: entity types, relations with their domains and constraints, and the check of a graph."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from yaml import MappingNode

from lib.config.files import read_text
from lib.config.reader import Reader, option
from lib.errors import BadInput, printable
from workloads.codegraph.records import Graph, Triple

OURS = Path(__file__).with_name("ontology.yaml")
# For ontologies that do not say which relations are structural
_STRUCTURAL = {"contains", "defines", "defined_in", "declares", "overrides", "has_parameter", "has_attribute"}
_FATAL = ("unknown relation", "unknown entity type", "unknown entity")
_EXAMPLES = 5


@dataclass(frozen=True)
class Constraints:
    """What the triples of a relation keep to. Functional: one tail for each head. Acyclic: no circles."""

    functional: bool = False
    acyclic: bool = False


@dataclass(frozen=True)
class Relation:
    """One relation. `domain` holds the entity types of its heads, `range` those of its tails."""

    domain: tuple[str, ...] = option(MISSING, "Give a list of entity types.")
    range: tuple[str, ...] = option(MISSING, "Give a list of entity types.")
    constraints: Constraints = Constraints()
    structural: bool | None = option(None, "Whether a rule on names gives the tail; null: by the relation's name.")

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for key in ("domain", "range"):
            if values[key] == ():
                yield key, f"The {key} is empty. Give a list of entity types."


@dataclass(frozen=True)
class EntityType:
    """A type of entities, of which only the name is read."""


@dataclass(frozen=True)
class Ontology:
    """Entity types and relations by name, and the file that they were read from."""

    entities: dict[str, EntityType | str] = field(metadata={"help": "Give the types of entities by name."})
    relations: dict[str, Relation] = field(metadata={"help": "Give the relations by name."})
    source: str = ""

    @property
    def structural(self) -> frozenset[str]:
        """The names of the relations that a rule on names answers."""
        return frozenset(
            name
            for name, relation in self.relations.items()
            if (name in _STRUCTURAL if relation.structural is None else relation.structural)
        )


@dataclass
class Report:
    """The violations by kind: their number, and sentences on the first few. `strict`: every kind is an error."""

    strict: bool
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, sentence: str, count: int = 1) -> None:
        self.counts[kind] += count
        if len(self.examples[kind]) < _EXAMPLES:
            self.examples[kind].append(printable(sentence, most=500))

    @property
    def warnings(self) -> list[str]:
        """The lines to print: each kind that is no error, with its count and first example."""
        kinds = [kind for kind in sorted(self.counts) if not self._is_error(kind)]
        return [f"{kind}: {self.counts[kind]:,}, the first: {self.examples[kind][0]}" for kind in kinds]

    def raise_if_bad(self) -> None:
        """Raises BadInput with counts and examples of every kind of violation that is an error."""
        kinds = [kind for kind in sorted(self.counts) if self._is_error(kind)]
        if kinds:
            parts = [f"{kind}: {self.counts[kind]:,}\n  " + "\n  ".join(self.examples[kind]) for kind in kinds]
            raise BadInput(
                "\n".join(["The graph does not keep to its ontology. Correct the graph or the ontology.", *parts])
            )

    def _is_error(self, kind: str) -> bool:
        return self.strict or kind in _FATAL


class _Reader(Reader):
    """Passes over keys that no field stands for: an ontology may say more than is read here."""

    def section(self, cls: type, node: MappingNode, key: str, base: Any = MISSING) -> Any:
        names = {f.name for f in fields(cls)}
        known = [pair for pair in node.value if pair[0].value in names]
        return super().section(cls, MappingNode(node.tag, known, node.start_mark), key, base)


def load(path: Path = OURS) -> Ontology:
    """Reads an ontology from a YAML file. Raises BadInput with file, line and column of every mistake."""
    reader = _Reader({})
    root = reader.root(read_text(path), str(path), "Give the keys entities and relations.")
    root.value = [pair for pair in root.value if pair[0].value != "source"]
    names = {key.value: [k.value for k, _ in node.value] for key, node in root.value if isinstance(node, MappingNode)}
    if names.get("entities"):  # domains and ranges hold nothing else
        types = tuple[Literal[tuple(names["entities"])], ...]
        reader.types = {
            f"relations.{r}.{key}": types for r in names.get("relations", ()) for key in ("domain", "range")
        }
    ontology = reader.section(Ontology, root, "")
    reader.finish()
    return replace(ontology, source=str(path))


def find(folder: Path) -> Ontology:
    """Reads the one `*.yaml` beside a graph, or ours where there is none. Raises BadInput where there are several."""
    paths = sorted((folder if folder.is_dir() else folder.parent).glob("*.yaml"))
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise BadInput(f"{folder} holds several ontologies: {names}. Leave one of them there.")
    return load(paths[0] if paths else OURS)


def validate(graph: Graph, ontology: Ontology, strict: bool = True) -> Report:
    """Checks every entity and triple.

    Unknown relations, types and entities are always errors; domain, range, functional and acyclic only when `strict`,
    which is meant for graphs built here.
    """
    report = Report(strict)
    for entity in graph.entities.values():
        if entity.type not in ontology.entities:
            place = _place(graph, entity.id, entity.file, entity.first_line)
            known = ", ".join(sorted(ontology.entities))
            report.add("unknown entity type", f"{place}: {entity.id} is a {entity.type}; known are {known}.")
    by_relation: dict[str, list[Triple]] = defaultdict(list)
    for triple in graph.triples:
        by_relation[triple.relation].append(triple)
    for name, triples in sorted(by_relation.items()):
        relation = ontology.relations.get(name)
        if relation is None:
            known = ", ".join(sorted(ontology.relations))
            sentence = (
                f"{_where(graph, triples[0])}: the relation {name!r} is not in {ontology.source}; known are {known}."
            )
            report.add("unknown relation", sentence, len(triples))
            continue
        for triple in triples:
            _check_types(graph, triple, relation, report)
        if relation.constraints.functional:
            tails: dict[str, str] = {}
            for triple in triples:
                if (first := tails.setdefault(triple.head, triple.tail)) != triple.tail:
                    report.add(
                        "functional", f"{_where(graph, triple)}: {_text(triple)}, but the tail was {first} before."
                    )
        if relation.constraints.acyclic and (rest := in_circles(triples)):
            sentence = f"{_where(graph, rest[0])}: {name} runs in a circle at {_text(rest[0])}."
            report.add("acyclic", sentence, len(rest))
    return report


def _check_types(graph: Graph, triple: Triple, relation: Relation, report: Report) -> None:
    for kind, name, allowed in (("domain", triple.head, relation.domain), ("range", triple.tail, relation.range)):
        entity = graph.entities.get(name)
        if entity is None:
            report.add("unknown entity", f"{_where(graph, triple)}: {name!r} is not among the entities.")
        elif entity.type not in allowed:
            types = ", ".join(sorted(allowed))
            report.add(kind, f"{_where(graph, triple)}: {_text(triple)}: {name} is a {entity.type}, not {types}.")


def in_circles(triples: list[Triple]) -> list[Triple]:
    """Returns the triples that lie on a circle, or between two circles, in their order.

    Removes those whose head is no tail, or whose tail is no head, until none is left to remove.
    """
    while True:
        heads, tails = {triple.head for triple in triples}, {triple.tail for triple in triples}
        rest = [triple for triple in triples if triple.head in tails and triple.tail in heads]
        if len(rest) == len(triples):
            return rest
        triples = rest


def _where(graph: Graph, triple: Triple) -> str:
    return _place(graph, triple.key, triple.file, triple.line)


def _place(graph: Graph, key: object, file: str, line: int) -> str:
    """Returns the JSON line that a triple or entity was read from, or else its line of source."""
    name, number = graph.origins.get(key, (file or "no file", line))
    return f"{name}:{number}"


def _text(triple: Triple) -> str:
    return f"{triple.head} {triple.relation} {triple.tail}"
