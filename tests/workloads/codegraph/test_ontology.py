"""Ontologies and the check of a graph."""

from pathlib import Path

import pytest

from lib.errors import BadInput
from tests.conftest import SAMPLES
from tests.workloads.codegraph.files import GOOD, given
from workloads.codegraph import ontology, records

GIVEN = SAMPLES / "graphmer_kg"
SMALL = """
entities: {T: {}, U: {}}
relations:
  r: {domain: [T], range: [T, U], inverse: s}
  s: {domain: [U], range: [T], structural: true}
"""


def small(folder: Path, text: str = SMALL) -> ontology.Ontology:
    (folder / "o.yaml").write_text(text)
    return ontology.load(folder / "o.yaml")


def triple(head: str, relation: str, tail: str) -> records.Triple:
    return records.Triple(head, relation, tail, "x", "f.py", "f", 7)


def test_violations_are_counted_by_kind_with_file_and_line(tmp_path):
    entities = {name: records.Entity(name, kind) for name, kind in (("a", "T"), ("b", "T"), ("u", "U"))}
    triples = [triple("a", "r", "b"), triple("b", "r", "a"), triple("a", "r", "u"), triple("u", "r", "a")]
    report = ontology.validate(records.Graph(triples, entities), small(tmp_path))
    assert report.counts == {"domain": 1}
    assert report.examples["domain"] == ["f.py:7: u r a: u is a U, not T."]
    with pytest.raises(BadInput, match="domain: 1"):
        report.raise_if_bad()
    lenient = ontology.validate(records.Graph(triples, entities), small(tmp_path), strict=False)
    lenient.raise_if_bad()
    assert len(lenient.warnings) == 1


def test_an_unknown_relation_is_an_error_that_names_the_line_and_the_known_ones(tmp_path):
    given(tmp_path, GOOD.replace('"r"', '"s"'), GOOD.replace('"r"', '"likes"'))
    report = ontology.validate(records.read(tmp_path), small(tmp_path), strict=False)
    with pytest.raises(BadInput, match=r"x\.jsonl:2: the relation 'likes' is not in .*; known are r, s\."):
        report.raise_if_bad()
    assert report.counts["unknown entity"] == 1  # b is nowhere declared; an unknown relation is not looked into


def test_an_unknown_entity_type_is_an_error_that_names_the_line(tmp_path):
    entities = ('{"id": "a", "type": "T"}', '{"id": "b", "type": "Wheel"}')
    read = records.read(given(tmp_path, GOOD, entities=entities))
    with pytest.raises(BadInput, match=r"x\.entities\.jsonl:2: b is a Wheel; known are T, U\."):
        ontology.validate(read, small(tmp_path), strict=False).raise_if_bad()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("domain: [T]", "domain: [Q]"), r"domain is \['Q'\], and entities are T, U"),
        (("domain: [U]", "domain: U"), "domain is 'U'"),
        (("domain: [U]", "domain: []"), r"domain is \[\]"),
        (("domain: [U], ", ""), "'domain'"),
        (("relations:", "relation:"), "'relations'"),
        (("{T: {}", "{T: {"), "expected"),
    ],
)
def test_a_malformed_ontology_names_the_key(tmp_path, change, reason):
    with pytest.raises(BadInput, match=f"o.yaml is no ontology .*{reason}"):
        small(tmp_path, SMALL.replace(*change))


def test_an_ontology_may_say_more_than_is_read(tmp_path):
    more = SMALL.replace("{T: {}, U: {}}", "{T: a thing, U: {attributes: [name]}}").replace("inverse: s", "inverse: t")
    read = small(tmp_path, "version: 1.0\nsource: {by: hand}\n" + more)
    assert read.entities == ("T", "U") and read.source == str(tmp_path / "o.yaml")
    assert read.structural == {"s"}


def test_an_unnamed_structural_goes_by_the_relations_name(tmp_path):
    text = "entities: {T: {}}\nrelations:\n  defines: {domain: [T], range: [T]}\n  calls: {domain: [T], range: [T]}\n"
    assert small(tmp_path, text).structural == {"defines"}


def test_our_ontology_says_which_relations_are_structural():
    ours = ontology.load()
    assert ours.structural == {"defines", "contains", "overrides", "has_parameter", "has_attribute"}


@pytest.mark.skipif(not GIVEN.is_dir(), reason="the sample data is not here")
def test_the_given_data_is_read_with_its_known_faults():
    read = records.read(GIVEN)
    assert (len(read.triples), read.duplicates, len(read.entities)) == (24559, 28867 - 24559, 9291)
    theirs = ontology.find(GIVEN)
    assert (len(theirs.entities), len(theirs.relations)) == (15, 22)
    assert "declares" in theirs.structural
    report = ontology.validate(read, theirs, strict=False)
    report.raise_if_bad()
    assert set(report.counts) == {"domain", "range"}
    defined = {t.tail for t in read.triples if t.relation in ("contains", "declares")}
    assert not any(t.relation == "calls" and t.tail in defined for t in read.triples)


def test_several_ontologies_beside_a_graph_are_refused(tmp_path):
    assert ontology.find(tmp_path).source == str(ontology.OURS)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(SMALL)
    with pytest.raises(BadInput, match=r"several ontologies: a\.yaml, b\.yaml"):
        ontology.find(tmp_path)
