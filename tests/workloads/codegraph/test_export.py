"""A graph in the formats of other programs, as independent readers read it."""

import csv
import json
import math
import xml.etree.ElementTree as ElementTree

import networkx
import pytest

from lib.errors import BadInput
from tests.workloads.codegraph.files import tree
from workloads.codegraph import export, graph, records
from workloads.codegraph.export import Predicted
from workloads.codegraph.records import Entity, Graph, Triple

ODD = 'name::<&"quoted", with; all\uffff'


@pytest.fixture
def built(tmp_path):
    """A small graph with a name that every format must escape."""
    made = graph.build(tree(tmp_path / "tree", m="import os\ndef f(a): g(a)\ndef g(a): os.stat(a)\n"))
    made.entities[ODD] = Entity(ODD, "Name")
    return Graph(sorted([*made.triples, triple("m.f", "calls", ODD)], key=lambda one: one.key), made.entities)


def triple(*key):
    return Triple(*key, "python", "m.py", "m", 2)


@pytest.fixture
def predicted():
    return [Predicted(triple("m.g", "calls", "m.f"), 0.25), Predicted(triple("m.f", "calls", "os.stat"), 1.0)]


def test_graphml_has_every_node_and_edge_for_networkx(built, predicted, tmp_path):
    export.write(built, tmp_path / "out", predicted)
    read = networkx.read_graphml(tmp_path / "out" / export.GRAPHML, force_multigraph=True)
    names = {node: data["entity"] for node, data in read.nodes(data=True)}
    assert set(names.values()) == {name.replace("\uffff", "\ufffd") for name in built.entities}
    edges = {(names[a], data["relation"], names[b]): data for a, b, data in read.edges(data=True)}
    keys = {(h, r, t.replace("\uffff", "\ufffd")) for h, r, t in (one.key for one in built.triples)}
    assert edges.keys() == keys | {one.triple.key for one in predicted}
    assert len(edges) == read.number_of_edges()
    guess, given = edges["m.g", "calls", "m.f"], edges["m.f", "calls", "m.g"]
    assert (guess["probability"], guess["predicted"], guess["line"]) == (0.25, True, 2)
    assert "probability" not in given and given["predicted"] is False and given["file"] == "m.py"
    functions = {data["entity"]: data for _, data in read.nodes(data=True) if data["type"] == "Function"}
    assert (functions["m.g"]["first_line"], functions["m.g"]["last_line"]) == (3, 3)


def test_graphml_keeps_to_its_schema(built, tmp_path):
    export.write(built, tmp_path / "out")
    space = "{http://graphml.graphdrawing.org/xmlns}"
    root = ElementTree.parse(tmp_path / "out" / export.GRAPHML).getroot()
    keys = {key.get("id"): key.get("for") for key in root.iter(f"{space}key")}
    ids = [one.get("id") for one in root.iter() if one.tag in (f"{space}node", f"{space}edge")]
    assert root.tag == f"{space}graphml" and len(ids) == len(set(ids)) and all(name.isalnum() for name in ids)
    for kind in ("node", "edge"):
        used = {data.get("key") for one in root.iter(f"{space}{kind}") for data in one}
        assert used and all(keys[name] == kind for name in used)


def test_the_files_for_neo4j_have_its_header_and_refer_to_nodes_that_are_there(built, predicted, tmp_path):
    export.write(built, tmp_path / "out", predicted)
    with (tmp_path / "out" / export.NODES).open(newline="", encoding="utf-8") as file:
        nodes = {row["entity:ID"]: row for row in csv.DictReader(file)}
    with (tmp_path / "out" / export.RELATIONSHIPS).open(newline="", encoding="utf-8") as file:
        edges = list(csv.DictReader(file))
    assert nodes.keys() == built.entities.keys() and nodes["m.f"][":LABEL"] == "Function"
    assert (nodes["m.f"]["name"], nodes["m.f"]["first_line:int"], nodes[ODD]["first_line:int"]) == ("f", "2", "")
    assert [nodes[name]["name"] for name in ("file::m.py", "m", "os.stat")] == ["m.py", "m", "stat"]
    found = {(row[":START_ID"], row[":TYPE"], row[":END_ID"]): row for row in edges}
    assert found.keys() == {one.key for one in built.triples} | {one.triple.key for one in predicted}
    assert all(row[":START_ID"] in nodes and row[":END_ID"] in nodes for row in edges)
    assert found["m.g", "calls", "m.f"]["probability:float"] == "0.25"
    assert found["m.g", "calls", "m.f"]["predicted:boolean"] == "true"
    assert found["m.f", "calls", ODD]["probability:float"] == "" and found["m.f", "calls", ODD]["line:int"] == "2"


def test_json_lines_can_be_read_as_a_graph_again(built, predicted, tmp_path):
    export.write(built, tmp_path / "out", predicted)
    again = records.read(tmp_path / "out")
    assert {one.key for one in again.triples} == {one.key for one in built.triples} | {p.triple.key for p in predicted}
    assert again.entities == built.entities
    rows = [json.loads(line) for line in (tmp_path / "out" / "triples.jsonl").read_text("utf-8").split("\n")[:-1]]
    assert [row["probability"] for row in rows if "probability" in row] == [1.0, 0.25]  # by head, relation and tail
    export.write(built, tmp_path / "plain")
    records.write(built, tmp_path / "records")
    for name in ("triples.jsonl", "entities.jsonl"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "records" / name).read_bytes()


def test_the_same_graph_gives_the_same_bytes_in_whatever_order_it_is_held(built, predicted, tmp_path):
    turned = Graph(built.triples, dict(reversed(built.entities.items())))
    files = [export.write(built, tmp_path / "a", predicted), export.write(turned, tmp_path / "b", predicted[::-1])]
    assert len(files[0]) == 5 and all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))


@pytest.mark.parametrize(
    ("fact", "probability", "sentence"),
    [
        (("m.f", "calls", "m.g"), 0.5, "is in the graph already"),
        (("m.f", "calls", "m.none"), 0.5, "m.none is no entity"),
        (("m.g", "calls", "m.f"), 1.5, "which is no probability"),
        (("m.g", "calls", "m.f"), math.nan, "which is no probability"),
    ],
)
def test_a_prediction_that_cannot_be_is_refused_and_nothing_is_written(built, tmp_path, fact, probability, sentence):
    with pytest.raises(BadInput, match=sentence):
        export.write(built, tmp_path / "out", [Predicted(triple(*fact), probability)])
    assert not (tmp_path / "out").exists()


def test_a_type_that_neo4j_would_read_as_two_is_refused(built, tmp_path):
    built.entities["odd"] = Entity("odd", "A;B")
    with pytest.raises(BadInput, match="semicolon"):
        export.write(built, tmp_path / "out")
