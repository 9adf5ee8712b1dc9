"""Writes a graph, and facts that were predicted for it, for other programs: JSON lines, GraphML, CSV for Neo4j.

The same graph gives the same bytes. A fact at a time is written, so a graph takes no more memory than it has.
"""

import csv
import heapq
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from lib.errors import BadInput
from lib.machine import disk
from workloads.codegraph.records import ENTITIES, TRIPLES, Entity, Graph, Triple, entity_row, triple_row

GRAPHML, NODES, RELATIONSHIPS = "graph.graphml", "neo4j_nodes.csv", "neo4j_relationships.csv"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2
_NODE_KEYS = {"entity": "string", "type": "string", "file": "string", "first_line": "int", "last_line": "int"}
_EDGE_KEYS = {
    "relation": "string", "language": "string", "file": "string", "module": "string", "line": "int",
    "predicted": "boolean", "probability": "double",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Predicted:
    """A fact that the graph lacks, and the probability that it holds."""

    triple: Triple
    probability: float


_Fact = tuple[Triple, float | None]  # with its probability; None for one of the graph itself


def write(graph: Graph, folder: Path, predicted: Iterable[Predicted] = ()) -> list[Path]:
    """Writes a graph in every format into a folder, completed by what was predicted; returns the files.

    Raises BadInput for a predicted fact that is in the graph already, or that is about no entity of it.
    """
    more = sorted(predicted, key=lambda one: one.triple.key)
    _check(graph, more)
    folder.mkdir(parents=True, exist_ok=True)
    writers: dict[str, Callable[[Graph, list[Predicted], Any], None]] = {
        ENTITIES: _entities, TRIPLES: _triples, GRAPHML: _graphml, NODES: _nodes, RELATIONSHIPS: _relationships,
    }  # fmt: skip
    for name, writer in writers.items():
        with disk.whole(folder / name) as aside, aside.open("w", encoding="utf-8", newline="") as file:
            writer(graph, more, file)
    return [folder / name for name in writers]


def _check(graph: Graph, predicted: list[Predicted]) -> None:
    known = {triple.key for triple in graph.triples}
    for one in predicted:
        head, relation, tail = one.triple.key
        missing = [name for name in (head, tail) if name not in graph.entities]
        if missing:
            raise BadInput(f"{head} {relation} {tail} was predicted, and {missing[0]} is no entity of the graph.")
        if one.triple.key in known:
            raise BadInput(f"{head} {relation} {tail} was predicted twice, or is in the graph already.")
        if not (math.isfinite(one.probability) and 0 <= one.probability <= 1):
            raise BadInput(f"{head} {relation} {tail} was predicted with {one.probability}, which is no probability.")
        known.add(one.triple.key)


def _facts(graph: Graph, predicted: list[Predicted]) -> Iterator[_Fact]:
    """Yields all facts by head, relation and tail."""
    given: Iterator[_Fact] = ((triple, None) for triple in graph.triples)
    more: Iterator[_Fact] = ((one.triple, one.probability) for one in predicted)
    return heapq.merge(given, more, key=lambda fact: fact[0].key)


def _in_order(graph: Graph) -> Iterator[Entity]:
    return (graph.entities[name] for name in sorted(graph.entities))


def _entities(graph: Graph, predicted: list[Predicted], file: Any) -> None:
    for entity in _in_order(graph):
        file.write(_json(entity_row(entity)))


def _triples(graph: Graph, predicted: list[Predicted], file: Any) -> None:
    """Writes lines that can be read as a graph again; one that was predicted says its probability beside."""
    for triple, probability in _facts(graph, predicted):
        file.write(_json(triple_row(triple) | ({} if probability is None else {"probability": probability})))


def _json(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


# --- GraphML: graphml.graphdrawing.org, read by networkx, Gephi, yEd, igraph ------------------------------------------


def _graphml(graph: Graph, predicted: list[Predicted], file: Any) -> None:
    """Writes nodes n0, n1, ... and edges e0, e1, ..., whose ids may hold no sign of an entity's name."""
    file.write('<?xml version="1.0" encoding="UTF-8"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n')
    for kind, keys in (("node", _NODE_KEYS), ("edge", _EDGE_KEYS)):
        for name, type_ in keys.items():
            file.write(f'<key id="{kind}_{name}" for="{kind}" attr.name="{name}" attr.type="{type_}"/>\n')
    file.write('<graph id="code" edgedefault="directed">\n')
    numbers: dict[str, int] = {}
    for entity in _in_order(graph):
        numbers[entity.id] = number = len(numbers)
        values = {"entity": entity.id, **{name: getattr(entity, name) for name in _NODE_KEYS if name != "entity"}}
        file.write(f'<node id="n{number}">{_data("node", values)}</node>\n')
    for number, (triple, probability) in enumerate(_facts(graph, predicted)):
        values = _values(triple, probability)
        ends = f'source="n{numbers[triple.head]}" target="n{numbers[triple.tail]}"'
        file.write(f'<edge id="e{number}" {ends}>{_data("edge", values)}</edge>\n')
    file.write("</graph>\n</graphml>\n")


def _data(kind: str, values: Mapping[str, Any]) -> str:
    return "".join(
        f'<data key="{kind}_{name}">{escape(_NOT_XML.sub("�", str(value)))}</data>'
        for name, value in values.items()
        if value not in ("", 0) or isinstance(value, float)  # "" and 0 are unknown
    )


def _values(triple: Triple, probability: float | None) -> dict[str, Any]:
    """Returns the values of an edge by the keys of _EDGE_KEYS; a probability where there is one."""
    values = {name: getattr(triple, name) for name in ("relation", "language", "file", "module", "line")}
    values["predicted"] = "false" if probability is None else "true"
    return values if probability is None else {**values, "probability": float(probability)}


# --- Neo4j: neo4j.com/docs/operations-manual/current/import -----------------------------------------------------------


def _nodes(graph: Graph, predicted: list[Predicted], file: Any) -> None:
    """Writes what `neo4j-admin database import full --nodes=` takes: the type of an entity is its label."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["entity:ID", "name", ":LABEL", "file", "first_line:int", "last_line:int"])
    for one in _in_order(graph):
        kind, _, rest = one.id.partition("::")
        name = rest or kind.rpartition(".")[2]  # file::a/b.py, json.decoder.scan
        rows.writerow([one.id, name, _one_word(one.type), one.file, one.first_line or "", one.last_line or ""])


def _relationships(graph: Graph, predicted: list[Predicted], file: Any) -> None:
    """Writes what `--relationships=` takes: a relation is the type."""
    rows = csv.writer(file, lineterminator="\n")
    names = ["language", "file", "module", "line:int", "predicted:boolean", "probability:float"]
    rows.writerow([":START_ID", ":TYPE", ":END_ID", *names])
    for triple, probability in _facts(graph, predicted):
        values = {"probability": "", **_values(triple, probability)}
        line = values["line"] or ""
        others = [values["language"], values["file"], values["module"], line, values["predicted"]]
        rows.writerow([triple.head, values["relation"], triple.tail, *others, values["probability"]])


def _one_word(label: str) -> str:
    if ";" in label:  # Neo4j would read two labels
        raise BadInput(f"The entity type {label!r} has a semicolon, at which Neo4j parts labels. Rename it.")
    return label
