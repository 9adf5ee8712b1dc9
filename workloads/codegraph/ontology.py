"""The vocabulary of a graph: entity types, relations with their domains and ranges, and the check of a graph."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import yaml

from lib.config.files import read_bytes
from lib.errors import BadInput, first_ten, printable
from workloads.codegraph.records import Graph

OURS = Path(__file__).with_name("ontology.yaml")
# For ontologies that do not say which relations are structural
_STRUCTURAL = {
    "contains",
    "defines",
    "defined_in",
    "declares",
    "overrides",
    "has_parameter",
    "has_attribute",
}
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


def load(path: Path = OURS) -> Ontology:
    """Reads an ontology from a YAML file, which may have more keys. Raises BadInput."""
    try:
        content = yaml.safe_load(read_bytes(path, _MOST_BYTES))
        types = tuple(content["entities"])
        relations = {}
        structural = set()
        for name, relation in content["relations"].items():
            for key in ("domain", "range"):
                names = relation[key]
                if not isinstance(names, list) or not names or not set(names) <= set(types):
                    raise ValueError(f"{key} is {names!r}, and entities are {', '.join(types)}")
            relations[name] = Relation(tuple(relation["domain"]), tuple(relation["range"]))
            if relation.get("structural", name in _STRUCTURAL):
                structural.add(name)
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        how = "Give `entities:` by name, and `relations:` by name with lists of entity types as domain and range."
        raise BadInput(f"{path} is no ontology ({printable(error, most=300)}). {how}") from None
    return Ontology(types, relations, frozenset(structural), str(path))


def find(folder: Path) -> Ontology:
    """Reads the one `*.yaml` beside a graph, or the built-in one. Raises BadInput for several."""
    paths = sorted((folder if folder.is_dir() else folder.parent).glob("*.yaml"))
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise BadInput(f"{folder} holds several ontologies: {names}. Leave one of them there.")
    return load(paths[0] if paths else OURS)


def check(graph: Graph, ontology: Ontology) -> list[str]:
    """Returns what lies outside of domains and ranges, with an example. Raises BadInput for unknown names."""
    unknown: list[str] = []
    unusual: dict[str, list[str]] = defaultdict(list)
    for entity in graph.entities.values():
        if entity.type not in ontology.entities:
            unknown.append(
                f"{entity.id} is a {entity.type}, and entity types are {', '.join(ontology.entities)}"
            )
    for triple in graph.triples:
        edge = f"{triple.file}:{triple.line}: {' '.join(triple.key)}"
        relation = ontology.relations.get(triple.relation)
        if relation is None:
            unknown.append(f"{edge}: relations are {', '.join(ontology.relations)}")
            continue
        ends = ("domain", triple.head), ("range", triple.tail)
        for kind, name in ends:
            types = getattr(relation, kind)
            entity = graph.entities.get(name)
            if entity is None:
                unknown.append(f"{edge}: {name} is not among the entities")
            elif entity.type not in types:
                wanted = ", ".join(sorted(types))
                unusual[kind].append(f"{edge}: {name} is a {entity.type}, not {wanted}.")
    if unknown:
        lines = first_ten([printable(line, most=500) for line in unknown])
        raise BadInput(
            f"The graph does not keep to {ontology.source}: {len(unknown):,} names are unknown. "
            f"Correct the graph or the ontology.\n{lines}"
        )
    warnings = []
    for kind, edges in sorted(unusual.items()):
        warnings.append(printable(f"{kind}: {len(edges):,}, the first: {edges[0]}", most=500))
    return warnings
