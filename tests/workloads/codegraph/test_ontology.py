"""Ontologies and the check of a graph."""

import pytest

from lib.errors import BadInput
from tests.conftest import SAMPLES
from tests.workloads.codegraph.files import GOOD, given
from workloads.codegraph import ontology, records

GIVEN = SAMPLES / "graphmer_kg"
SMALL = """
version: 1.0
entities: {T: a thing, U: {}}
relations:
  r: {domain: [T], range: [T, U], inverse: t}
  s: {domain: [U], range: [T], structural: true}
  defines: {domain: [T], range: [T]}
"""
MALFORMED = {
    ("domain: [T]", "domain: [Q]"): r"domain is \['Q'\], and entities are T, U",
    ("relations:", "relation:"): "'relations'",
    ("U: {}", "U: {"): "expected",
}  # fmt: skip


def small(folder, text=SMALL):
    (folder / "o.yaml").write_text(text)
    return ontology.load(folder / "o.yaml")


def test_types_outside_of_domain_and_range_are_counted_and_unknown_names_are_errors(tmp_path):
    entities = {
        name: records.Entity(name, kind) for name, kind in (("a", "T"), ("b", "T"), ("u", "U"))
    }
    keys = (("a", "r", "b"), ("b", "r", "a"), ("a", "r", "u"), ("u", "r", "a"))
    graph = records.Graph(
        [records.Triple(*key, records.Place("x", "f.py", "f", 7)) for key in keys], entities
    )
    assert ontology.check(graph, small(tmp_path)) == [
        "domain: 1, the first: f.py:7: u r a: u is a U, not T."
    ]
    entities = ('{"id": "a", "type": "T"}', '{"id": "c", "type": "Wheel"}')
    graph = records.read([given(tmp_path, GOOD, GOOD.replace('"r"', '"likes"'), entities=entities)])
    with pytest.raises(BadInput) as refusal:
        ontology.check(graph, small(tmp_path))
    text = str(refusal.value)
    assert "3 names are unknown" in text
    assert "  f:0: a likes b: relations are r, s, defines" in text
    assert "  c is a Wheel, and entity types are T, U" in text
    assert "  f:0: a r b: b is not among the entities" in text


def test_a_malformed_ontology_names_the_key(tmp_path):
    for change, reason in MALFORMED.items():
        with pytest.raises(BadInput, match=f"o.yaml is no ontology .*{reason}"):
            small(tmp_path, SMALL.replace(*change))


def test_structural_relations_are_marked_or_go_by_their_names(tmp_path):
    assert small(tmp_path).structural == {"s", "defines"}
    assert small(tmp_path).entities == ("T", "U")
    assert ontology.find(tmp_path / "x").source == str(tmp_path / "o.yaml")
    (tmp_path / "b.yaml").write_text(SMALL)
    with pytest.raises(BadInput, match=r"several ontologies: b\.yaml, o\.yaml"):
        ontology.find(tmp_path)
    (tmp_path / "none").mkdir()
    ours = ontology.find(tmp_path / "none")
    assert ours.structural == {"defines", "contains", "overrides", "has_parameter", "has_attribute"}


@pytest.mark.skipif(not GIVEN.is_dir(), reason="the sample data is not here")
def test_the_given_data_is_read_with_its_known_faults():
    graph = records.read([GIVEN])
    theirs = ontology.find(GIVEN)
    assert len(graph.triples) == 24559
    assert len(graph.entities) == 9291
    assert len(theirs.entities) == 15
    assert len(theirs.relations) == 22
    assert "declares" in theirs.structural
    assert [line.partition(":")[0] for line in ontology.check(graph, theirs)] == ["domain", "range"]
