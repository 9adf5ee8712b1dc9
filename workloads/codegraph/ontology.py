"""What a graph may say: entity types, relations with their domains and ranges, and the check of a graph."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from workloads.codegraph.records import Graph, Triple

OURS = Path(__file__).with_name("ontology.yaml")
# For ontologies that do not say which relations are structural
_STRUCTURAL = {"contains", "defines", "defined_in", "declares", "overrides", "has_parameter", "has_attribute"}
_FATAL = ("unknown relation", "unknown entity type", "unknown entity")
_EXAMPLES = 5
_MOST_BYTES = 2**20  # of an ontology's file


@dataclass(frozen=True)
class Relation:
    """The entity types of a relation's heads and of its tails."""

    domain: tuple[str, ...]
    range: tuple[str, ...]


@dataclass(frozen=True)
class Ontology:
    """Entity types, relations by name, those whose tails a rule on names gives, and the file they were read from."""

    entities: tuple[str, ...]
    relations: dict[str, Relation]
    structural: frozenset[str]
    source: str


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


def load(path: Path = OURS) -> Ontology:
    """Reads an ontology from a YAML file; keys beside those that are read may say more. Raises BadInput."""
    try:
        content = yaml.safe_load(read_bytes(path, _MOST_BYTES))
        types, given = tuple(content["entities"]), content["relations"]
        relations = {name: Relation(*(_types(relation, key, types) for key in ("domain", "range")))
                     for name, relation in given.items()}  # fmt: skip
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"{path} is no ontology ({printable(error, most=300)}). Give `entities:` by name, and `relations:` by name "
            "with a list of entity types as domain and as range."
        ) from None
    flags = {name: relation.get("structural") for name, relation in given.items()}
    structural = frozenset(n for n, flag in flags.items() if (n in _STRUCTURAL if flag is None else flag))
    return Ontology(types, relations, structural, str(path))


def _types(relation: Mapping[str, Any], key: str, types: Sequence[str]) -> tuple[str, ...]:
    names = relation[key]
    if not isinstance(names, list) or not names or not set(names) <= set(types):
        raise ValueError(f"{key} is {names!r}, and entities are {', '.join(types)}")
    return tuple(names)


def find(folder: Path) -> Ontology:
    """Reads the one `*.yaml` beside a graph, or ours where there is none. Raises BadInput where there are several."""
    paths = sorted((folder if folder.is_dir() else folder.parent).glob("*.yaml"))
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise BadInput(f"{folder} holds several ontologies: {names}. Leave one of them there.")
    return load(paths[0] if paths else OURS)


def validate(graph: Graph, ontology: Ontology, strict: bool = True) -> Report:
    """Checks every entity and triple.

    Unknown relations, types and entities are always errors; domain and range only when `strict`, which is meant for
    graphs built here.
    """
    report = Report(strict)
    for entity in graph.entities.values():
        if entity.type not in ontology.entities:
            place = _place(graph, entity.id, entity.file, entity.first_line)
            known = ", ".join(sorted(ontology.entities))
            report.add("unknown entity type", f"{place}: {entity.id} is a {entity.type}; known are {known}.")
    for triple in graph.triples:
        where = _place(graph, triple.key, triple.file, triple.line)
        relation = ontology.relations.get(triple.relation)
        if relation is None:
            known = ", ".join(sorted(ontology.relations))
            sentence = f"the relation {triple.relation!r} is not in {ontology.source}; known are {known}."
            report.add("unknown relation", f"{where}: {sentence}")
        else:
            _check_types(graph, triple, relation, where, report)
    return report


def _check_types(graph: Graph, triple: Triple, relation: Relation, where: str, report: Report) -> None:
    for kind, name, allowed in (("domain", triple.head, relation.domain), ("range", triple.tail, relation.range)):
        entity = graph.entities.get(name)
        if entity is None:
            report.add("unknown entity", f"{where}: {name!r} is not among the entities.")
        elif entity.type not in allowed:
            types = ", ".join(sorted(allowed))
            report.add(kind, f"{where}: {' '.join(triple.key)}: {name} is a {entity.type}, not {types}.")


def _place(graph: Graph, key: object, file: str, line: int) -> str:
    """Returns the JSON line that a triple or entity was read from, or else its line of source."""
    name, number = graph.origins.get(key, (file or "no file", line))
    return f"{name}:{number}"
