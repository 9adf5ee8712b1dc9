"""What a graph may say: entity types, relations with their domains and constraints, and the check of a graph."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from lib.errors import BadInput
from lib.tasks.graphmer.code.records import Graph, Triple

OURS = Path(__file__).with_name("ontology.yaml")
# For ontologies that do not say which relations are structural
_STRUCTURAL = {"contains", "defines", "defined_in", "declares", "overrides", "has_parameter", "has_attribute"}
_FATAL = ("unknown relation", "unknown entity type", "unknown entity")
_EXAMPLES = 5


@dataclass(frozen=True)
class Relation:
    """One relation. `domain` and `range` hold entity types; a functional relation has one tail for each head."""

    name: str
    domain: frozenset[str]
    range: frozenset[str]
    functional: bool = False
    inverse: str = ""
    acyclic: bool = False
    structural: bool = False


@dataclass(frozen=True)
class Ontology:
    """Entity types and relations by name, and the file that they were read from."""

    entities: frozenset[str]
    relations: dict[str, Relation]
    source: str

    @property
    def structural(self) -> frozenset[str]:
        """The names of the relations that a rule on names answers."""
        return frozenset(name for name, relation in self.relations.items() if relation.structural)


@dataclass
class Report:
    """Violations by kind: how many, and the first few as sentences. `strict`: all kinds are errors."""

    strict: bool
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, sentence: str, count: int = 1) -> None:
        self.counts[kind] += count
        if len(self.examples[kind]) < _EXAMPLES:
            self.examples[kind].append(sentence)

    @property
    def warnings(self) -> list[str]:
        """One line for each kind that is no error, with its count and first example."""
        kinds = [kind for kind in sorted(self.counts) if not self._is_error(kind)]
        return [f"{kind}: {self.counts[kind]:,}, the first: {self.examples[kind][0]}" for kind in kinds]

    def raise_if_bad(self) -> None:
        """BadInput with counts and examples of every kind of violation that is an error."""
        kinds = [kind for kind in sorted(self.counts) if self._is_error(kind)]
        if kinds:
            parts = [f"{kind}: {self.counts[kind]:,}\n  " + "\n  ".join(self.examples[kind]) for kind in kinds]
            told = "\n".join(parts)
            raise BadInput(f"The graph does not keep to its ontology. Mend the graph or the ontology.\n{told}")

    def _is_error(self, kind: str) -> bool:
        return self.strict or kind in _FATAL


def load(path: Path = OURS) -> Ontology:
    """The ontology in a YAML file; BadInput names the line of what is wrong."""
    try:
        root = yaml.compose(path.read_text("utf-8"), yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The ontology {path} cannot be read: {error}.") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise BadInput(f"{path}:{line}: this is no YAML: {error.problem}. Mend that line.") from None
    reader = _Nodes(path)
    top = reader.mapping(root, "the ontology")
    if "entities" not in top or "relations" not in top:
        raise BadInput(f"{path} must have the keys `entities` and `relations`.")
    entities = frozenset(reader.mapping(top["entities"], "`entities`"))
    nodes = reader.mapping(top["relations"], "`relations`")
    relations = {name: reader.relation(name, node, entities, nodes) for name, node in nodes.items()}
    return Ontology(entities, relations, str(path))


def find(folder: Path) -> Ontology:
    """The one `*.yaml` beside given data, ours where there is none."""
    found = sorted((folder if folder.is_dir() else folder.parent).glob("*.yaml"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BadInput(f"{folder} holds several ontologies: {names}. Leave one of them there.")
    return load(found[0] if found else OURS)


class _Nodes:
    """Reads YAML nodes, which know their lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def bad(self, node: yaml.Node | None, sentence: str) -> BadInput:
        line = node.start_mark.line + 1 if node is not None else 1
        return BadInput(f"{self.path}:{line}: {sentence}")

    def mapping(self, node: yaml.Node | None, what: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self.bad(node, f"{what} must be a mapping of names.")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in found:
                raise self.bad(key, f"{what} has a key that is no text or stands there twice. Leave it out.")
            found[key.value] = value
        return found

    def relation(
        self, name: str, node: yaml.Node, entities: frozenset[str], relations: dict[str, yaml.Node]
    ) -> Relation:
        parts = self.mapping(node, f"the relation {name}")
        limits = self.mapping(parts["constraints"], f"`constraints` of {name}") if "constraints" in parts else {}
        domain, range_ = [self.types(name, node, parts, key, entities) for key in ("domain", "range")]
        inverse = getattr(limits.get("inverse"), "value", "")
        if inverse and (not isinstance(inverse, str) or inverse not in relations):
            raise self.bad(limits["inverse"], f"{name} has the inverse {inverse!r}, which is no relation here.")
        functional, acyclic = [self.flag(name, limits, key, False) for key in ("functional", "acyclic")]
        structural = self.flag(name, parts, "structural", name in _STRUCTURAL)
        return Relation(name, domain, range_, functional, inverse, acyclic, structural)

    def types(
        self, name: str, node: yaml.Node, parts: dict[str, yaml.Node], key: str, entities: frozenset[str]
    ) -> frozenset[str]:
        given = parts.get(key)
        if not isinstance(given, yaml.SequenceNode) or not given.value:
            raise self.bad(given or node, f"{name} needs `{key}`, a list of entity types.")
        for item in given.value:
            if not isinstance(item, yaml.ScalarNode) or item.value not in entities:
                wanted = ", ".join(sorted(entities))
                raise self.bad(item, f"`{key}` of {name} holds {item.value!r}, which is none of {wanted}.")
        return frozenset(item.value for item in given.value)

    def flag(self, name: str, parts: dict[str, yaml.Node], key: str, default: bool) -> bool:
        if key not in parts:
            return default
        if parts[key].tag != "tag:yaml.org,2002:bool":
            raise self.bad(parts[key], f"`{key}` of {name} must be true or false.")
        return parts[key].value.lower() in ("true", "yes", "on")


def validate(graph: Graph, ontology: Ontology, strict: bool = True) -> Report:
    """Checks every entity and triple. Unknown relations, types and entities are always errors; domain, range,
    functional and acyclic only when `strict`, which is meant for graphs built here."""
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
            place = _where(graph, triples[0])
            sentence = f"{place}: the relation {name!r} is not in {ontology.source}; known are {known}."
            report.add("unknown relation", sentence, len(triples))
            continue
        for triple in triples:
            _check(graph, triple, relation, report)
        if relation.functional:
            _check_functional(graph, triples, report)
        if relation.acyclic:
            _check_acyclic(graph, name, triples, report)
    return report


def _check(graph: Graph, triple: Triple, relation: Relation, report: Report) -> None:
    for kind, name, allowed in (("domain", triple.head, relation.domain), ("range", triple.tail, relation.range)):
        entity = graph.entities.get(name)
        if entity is None:
            report.add("unknown entity", f"{_where(graph, triple)}: {name!r} is not among the entities.")
        elif entity.type not in allowed:
            wanted = ", ".join(sorted(allowed))
            report.add(kind, f"{_where(graph, triple)}: {_text(triple)}: {name} is a {entity.type}, not {wanted}.")


def _check_functional(graph: Graph, triples: Iterable[Triple], report: Report) -> None:
    first: dict[str, str] = {}
    for triple in triples:
        if first.setdefault(triple.head, triple.tail) != triple.tail:
            text = f"{_where(graph, triple)}: {_text(triple)}, but the tail was {first[triple.head]} before."
            report.add("functional", text)


def _check_acyclic(graph: Graph, name: str, triples: list[Triple], report: Report) -> None:
    """Takes away triples whose head is no tail, or whose tail is no head, until only circles are left (and what joins
    two of them)."""
    rest = triples
    while True:
        heads, tails = {triple.head for triple in rest}, {triple.tail for triple in rest}
        kept = [triple for triple in rest if triple.head in tails and triple.tail in heads]
        if len(kept) == len(rest):
            break
        rest = kept
    if rest:
        report.add("acyclic", f"{_where(graph, rest[0])}: {name} runs in a circle at {_text(rest[0])}.", len(rest))


def _where(graph: Graph, triple: Triple) -> str:
    return _place(graph, triple.key, triple.file, triple.line)


def _place(graph: Graph, key: object, file: str, line: int) -> str:
    """The JSON line where the graph was read from one, the line of source otherwise."""
    name, number = graph.origins.get(key, (file or "no file", line))
    return f"{name}:{number}"


def _text(triple: Triple) -> str:
    return f"{triple.head} {triple.relation} {triple.tail}"
