"""The graph of code: what resolves to what, that it is always the same, and what is said of bad input."""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from lib.errors import BadInput
from lib.tasks.graphmer.code import graph, ontology, records
from tests.conftest import ROOT

REPOSITORY = ROOT
GIVEN = Path(os.environ.get("TRAINBOOK_DATA", REPOSITORY / "../shared/data")) / "graphmer_kg"
STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
given_data = pytest.mark.skipif(not GIVEN.is_dir(), reason="the sample data is not here")


def tree(root: Path, **sources: str) -> Path:
    """Writes files; `a__b` is a/b.py and `a__` is a/__init__.py."""
    for name, source in sources.items():
        path = root / (name.replace("__", "/") + ("__init__.py" if name.endswith("__") else ".py")).lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return root


def edges(root: Path, *relations: str, **sources: str) -> set[tuple[str, str, str]]:
    """The keys of a tree's triples, checked against the ontology; of some relations where they are given."""
    built = graph.build(tree(root, **sources))
    ontology.validate(built, ontology.load()).raise_if_bad()
    return {triple.key for triple in built.triples if not relations or triple.relation in relations}


def test_every_relation_of_a_small_module(tmp_path):
    source = """
import os
import functools

class Base:
    def run(self, speed): pass

class Child(Base):
    limit = 3
    def __init__(self):
        self.wheels = []
    @functools.cache
    def run(self, speed) -> str:
        return "x"

def work():
    try:
        Child().run(1)
        len([])
    except ValueError:
        raise KeyError("no")
"""
    found = edges(tmp_path, m=source)
    assert found == {
        ("file::m.py", "defines", "m"),
        ("m", "defines", "m.Base"), ("m", "defines", "m.Child"), ("m", "defines", "m.work"),
        ("m", "imports", "os"), ("m", "imports", "functools"),
        ("m.Base", "contains", "m.Base.run"), ("m.Child", "contains", "m.Child.run"),
        ("m.Child", "contains", "m.Child.__init__"), ("m.Child", "inherits_from", "m.Base"),
        ("m.Child.run", "overrides", "m.Base.run"), ("m.Child.run", "annotated_with", "functools.cache"),
        ("m.Child.run", "returns", "builtins.str"),
        ("m.Base.run", "has_parameter", "param::speed"), ("m.Child.run", "has_parameter", "param::speed"),
        ("m.Child", "has_attribute", "attr::wheels"), ("m.Child", "has_attribute", "attr::limit"),
        ("m.work", "instantiates", "m.Child"), ("m.work", "calls", "m.Child.run"), ("m.work", "calls", "builtins.len"),
        ("m.work", "catches", "builtins.ValueError"), ("m.work", "raises", "builtins.KeyError"),
        ("m.work", "instantiates", "builtins.KeyError"),
    }  # fmt: skip


def test_entities_know_their_file_and_lines_with_decorators(tmp_path):
    built = graph.build(tree(tmp_path, m="import x\n@x.y\ndef f():\n    pass\n"))
    assert built.entities["m.f"] == records.Entity("m.f", "Function", "m.py", 2, 4)
    assert built.entities["m"] == records.Entity("m", "Module", "m.py", 1, 4)
    assert built.entities["x.y"] == records.Entity("x.y", "API")
    triple = next(t for t in built.triples if t.relation == "annotated_with")
    assert triple == records.Triple("m.f", "annotated_with", "x.y", "python", "m.py", "m", 2)


def test_imports_through_aliases_re_exports_and_stars(tmp_path):
    found = edges(
        tmp_path,
        "calls",
        package__="from .inner import f as g\nfrom .inner import *",
        package__inner="__all__ = ['h', '_k']\ndef f(): pass\ndef h(): pass\ndef _k(): pass\ndef hidden(): pass",
        user="import package as p\nfrom package import g as z\nfrom package import h, _k, hidden\n"
        "def a(): p.g()\ndef b(): z()\ndef c(): h()\ndef d(): _k()\ndef e(): hidden()",
    )
    assert ("user.a", "calls", "package.inner.f") in found
    assert ("user.b", "calls", "package.inner.f") in found
    assert ("user.c", "calls", "package.inner.h") in found
    assert ("user.d", "calls", "package.inner._k") in found
    assert ("user.e", "calls", "name::hidden") in found


def test_relative_imports_of_several_levels(tmp_path):
    found = edges(
        tmp_path,
        a__="",
        a__b__="from . import near",
        a__b__near="def f(): pass",
        a__b__user="from .. import far\nfrom .near import f\nfrom ... import beyond\ndef g():\n    far.h()\n    f()",
        a__far="def h(): pass",
    )
    assert {("a.b.user.g", "calls", "a.far.h"), ("a.b.user.g", "calls", "a.b.near.f")} <= found
    assert {("a.b.user", "imports", "a.far"), ("a.b", "imports", "a.b.near"), ("a", "contains", "a.b")} <= found


def test_a_src_folder_and_a_root_that_is_a_package_are_found_by_absolute_imports(tmp_path):
    sources = {"src__pack__": "", "src__pack__x": "def f(): pass", "src__pack__y": "from pack.x import f\nf()"}
    assert ("src.pack.y", "calls", "src.pack.x.f") in edges(tmp_path / "one", **sources)
    root = tmp_path / "pack"
    assert ("pack.y", "calls", "pack.x.f") in edges(root, __="", x="def f(): pass", y="from pack.x import f\nf()")


def test_methods_through_super_and_the_resolution_order(tmp_path):
    source = """
class A:
    def f(self): pass
    def g(self): pass
class B(A):
    def f(self): super().f()
class C(A):
    def f(self): pass
    def g(self): pass
class D(B, C):
    def f(self):
        super(D, self).f()
        self.g()
        self.nothing()
"""
    found = edges(tmp_path, "calls", "overrides", m=source)
    assert {("m.B.f", "calls", "m.A.f"), ("m.D.f", "calls", "m.B.f")} <= found
    assert ("m.D.f", "calls", "m.C.g") in found  # C stands before A
    assert ("m.D.f", "calls", "name::nothing") in found
    assert {t for _, relation, t in found if relation == "overrides"} == {"m.A.f", "m.A.g", "m.B.f"}


def test_an_unknown_base_hides_what_comes_after_it(tmp_path):
    source = "import x\nclass A:\n    def f(self): pass\nclass B(x.Y, A):\n    def g(self): self.f()"
    assert edges(tmp_path, "calls", m=source) == {("m.B.g", "calls", "name::f")}


def test_types_of_variables_attributes_and_results(tmp_path):
    source = """
class Engine:
    def start(self): return self
    def __enter__(self): return self
class Car:
    def __init__(self, spare: "Engine | None" = None):
        self.engine = None
        self.engine = Engine()
        self.spare = spare
    @property
    def main(self): return self.engine
    @classmethod
    def new(cls): return cls()
def a(): Car().engine.start()
def b(car: Car): car.spare.start()
def c():
    with Engine() as e: e.start()
def d(): Car.new().main.start().start()
def e():
    x = Engine
    x().start()
"""
    found = edges(tmp_path, "calls", m=source)
    assert {(f"m.{name}", "calls", "m.Engine.start") for name in "abcde"} <= found
    assert ("m.d", "calls", "m.Car.new") in found


def test_what_is_not_certain_stays_unresolved(tmp_path):
    source = """
class A:
    def f(self): pass
class B:
    def f(self): pass
def g(): pass
def one(flag):
    x = A()
    if flag: x = B()
    x.f()
def two(g): g()
def three(): [g() for g in []]
def four(): (lambda g: g())(1)
def five(parameter):
    x = parameter
    x = A()
    x.f()
"""
    found = edges(tmp_path, "calls", m=source)
    assert {tail for head, _, tail in found} == {"name::f", "name::g"}


def test_accelerators_and_platform_branches_resolve_into_the_tree(tmp_path):
    source = """
def heap(): pass
try:
    from _c import heap
except ImportError:
    pass
try:
    import fast as way
except ImportError:
    import slow as way
def use():
    heap()
    way.go()
"""
    found = edges(tmp_path, "calls", m=source, slow="def go(): pass")
    assert found == {("m.use", "calls", "m.heap"), ("m.use", "calls", "slow.go")}


def test_nested_functions_and_decorators(tmp_path):
    source = """
def deco(f):
    def wrapper(): return f()
    return wrapper
@deco
def outer():
    def inner(): pass
    inner()
class P:
    @property
    def x(self): pass
    @x.setter
    def x(self, value): pass
"""
    found = edges(tmp_path, m=source)
    assert {("m.outer", "annotated_with", "m.deco"), ("m.outer", "contains", "m.outer.inner")} <= found
    assert {("m.outer", "calls", "m.outer.inner"), ("m.P.x", "annotated_with", "builtins.property")} <= found
    assert ("m.deco.wrapper", "calls", "name::f") in found


def test_names_of_submodules_and_of_other_kinds_do_not_collide(tmp_path):
    package = "def q(): pass\nif q:\n    class r: pass\nelse:\n    def r(): pass"
    built = graph.build(tree(tmp_path, p__=package, p__q=""))
    kinds = {name: built.entities[name].type for name in ("p.q", "p.__init__.q", "p.r", "p.r#Function")}
    assert kinds == {"p.q": "Module", "p.__init__.q": "Function", "p.r": "Class", "p.r#Function": "Function"}


def test_circles_of_imports_bases_and_values_end(tmp_path):
    one = "from b import x\nfrom b import Y\nclass Z(Y): pass\nx()\na = a.b\na()"
    two = "from a import x\nfrom a import Z\nclass Y(Z): pass"
    found = edges(tmp_path, a=one, b=two)
    assert ("a", "calls", "name::x") in found
    assert not any(relation == "inherits_from" for _, relation, _ in found)


def test_files_that_cannot_be_parsed_are_told_and_left_out(tmp_path):
    tree(tmp_path, good="def f(): pass", syntax="def f(:\n", double="x = 1", double__="")
    (tmp_path / "bytes.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "null.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "deep.py").write_text("x = " + "-" * 5000 + "1\n")
    built = graph.build(tmp_path)
    reasons = dict(built.skipped)
    assert set(reasons) == {"syntax.py", "bytes.py", "null.py", "deep.py", "double.py"}
    assert "line 1" in reasons["syntax.py"] and "double/__init__.py" in reasons["double.py"]
    assert {t.file for t in built.triples} == {"good.py", "double/__init__.py"}


def test_duplicates_are_dropped_and_excluded_folders_left_out(tmp_path):
    root = tree(tmp_path, m="def f(): pass\nf()\nf()\n", tests__t="x()", idlelib__i="x()")
    built = graph.build(root)
    assert [t.line for t in built.triples if t.relation == "calls"] == [2] and built.duplicates == 1
    assert graph.files(root) == ["m.py"]
    assert graph.files(root, excluded=("idlelib",)) == ["m.py", "tests/t.py"]


def test_an_empty_or_missing_folder_says_what_to_do(tmp_path):
    with pytest.raises(BadInput, match=r"no \.py file under"):
        graph.build(tmp_path)
    with pytest.raises(BadInput, match="There is no folder"):
        graph.build(tmp_path / "missing")


def test_the_same_bytes_for_any_hash_seed_and_number_of_processes(tmp_path, monkeypatch):
    root = STANDARD_LIBRARY / "json"
    code = (
        "import sys, pathlib; from lib.tasks.graphmer.code import graph, records; "
        "records.write(graph.build(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2]))"
    )
    for seed in ("0", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code, str(root), str(tmp_path / seed)]
        subprocess.run(command, check=True, env=environment, cwd=REPOSITORY)
    monkeypatch.setattr(graph, "_WORTH_PROCESSES", 0)
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda top: ((a, b, sorted(c, reverse=True)) for a, b, c in walk(top)))
    for processes in (1, 2):
        records.write(graph.build(root, processes), tmp_path / f"processes{processes}")
    assert len({digest(tmp_path / name) for name in ("0", "77", "processes1", "processes2")}) == 1


def digest(folder: Path) -> str:
    return hashlib.sha256(b"".join((folder / n).read_bytes() for n in ("triples.jsonl", "entities.jsonl"))).hexdigest()


def test_progress_is_told_for_every_file(tmp_path):
    told = []
    graph.build(tree(tmp_path, a="", b=""), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_real_packages_keep_to_the_ontology_and_resolve(tmp_path):
    for package in ("json", "collections"):
        (tmp_path / package).symlink_to(STANDARD_LIBRARY / package)  # os.walk does not follow links ...
    with pytest.raises(BadInput):
        graph.build(tmp_path)
    for package in ("json", "collections"):  # ... so each is built by itself, as a root that is a package
        built = graph.build(STANDARD_LIBRARY / package)
        ontology.validate(built, ontology.load()).raise_if_bad()
        assert not built.skipped
    found = {triple.key for triple in graph.build(STANDARD_LIBRARY / "json").triples}
    assert {("json.load", "calls", "json.loads"), ("json.loads", "calls", "json.decoder.JSONDecoder.decode")} <= found
    assert ("json.decoder.JSONDecodeError", "inherits_from", "builtins.ValueError") in found


def test_what_is_written_is_read_back(tmp_path):
    built = graph.build(STANDARD_LIBRARY / "json")
    records.write(built, tmp_path)
    back = records.read(tmp_path)
    assert back.triples == built.triples and back.entities == built.entities
    assert records.read(tmp_path / "triples.jsonl").triples == built.triples
    first = json.loads((tmp_path / "triples.jsonl").read_text().splitlines()[0])
    assert list(first) == ["head", "relation", "tail", "qualifiers"]
    assert list(first["qualifiers"]) == ["language", "file", "module", "line"]


def test_a_cached_build_equals_a_fresh_one_and_a_damaged_one_is_built_again(tmp_path):
    root, cache = tree(tmp_path / "tree", m="def f(): pass\nf()", broken="("), tmp_path / "cache"
    fresh = graph.build(root)
    assert graph.build_cached(root, cache) == fresh == graph.build_cached(root, cache)
    (kept,) = cache.iterdir()
    for name in ("triples.jsonl", "manifest.json"):
        before = (kept / name).read_bytes()
        (kept / name).write_bytes(before[:-9] + b"000000000")
        assert graph.build_cached(root, cache) == fresh
        assert (kept / name).read_bytes() == before
    (root / "m.py").write_text("def g(): pass")
    assert graph.build_cached(root, cache) != fresh
    assert len(list(cache.iterdir())) == 2


GOOD = '{"head": "a", "relation": "r", "tail": "b", "qualifiers": {"language": "x", "file": "f", "module": "m"}}'
BAD_LINES = {
    "not json": "malformed JSON",
    '{"head": NaN}': "NaN is not JSON",
    "[1]": "no JSON object",
    "": "empty",
    GOOD.replace('"tail": "b", ', ""): '"tail" is missing',
    GOOD.replace('"b"', "3"): '"tail" is 3',
    GOOD.replace('"tail"', '"head"'): 'the key "head" stands there more than once',
    GOOD.replace('"m"}', '"m", "line": true}'): '"line" is True',
    GOOD.replace('"file": "f", ', ""): '"file" is missing',
    GOOD.replace('"b"', '"\\ud800"'): "surrogates not allowed",
}


def given(folder: Path, *lines: str, entities: tuple[str, ...] = ('{"id": "a", "type": "T"}',)) -> Path:
    (folder / "x.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "x.entities.jsonl").write_text("\n".join(entities) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items())
def test_every_kind_of_bad_line_is_named_with_its_number(tmp_path, line, reason):
    with pytest.raises(BadInput) as caught:
        records.read(given(tmp_path, GOOD, line, GOOD))
    assert "x.jsonl:2: " in str(caught.value) and reason in str(caught.value)
    read = records.read(tmp_path, bad_input_limit=1)
    assert len(read.triples) == 1 and read.duplicates == 1 and len(read.skipped) == 1


def test_all_bad_lines_are_counted_and_the_first_ten_named(tmp_path):
    (given(tmp_path, *["{"] * 13) / "x.jsonl").open("ab").write(b"\xff\n")
    with pytest.raises(BadInput, match=r"Bad lines: 14; workload.bad_input_limit allows 3") as caught:
        records.read(tmp_path, bad_input_limit=3)
    assert "x.jsonl:10" in str(caught.value) and "x.jsonl:11" not in str(caught.value)
    assert "and 4 more" in str(caught.value)


def test_bytes_that_are_not_utf8_and_two_types_of_one_entity_are_bad_lines(tmp_path):
    given(tmp_path, GOOD, entities=('{"id": "a", "type": "T"}', '{"id": "a", "type": "U"}'))
    (tmp_path / "x.jsonl").write_bytes(GOOD.encode() + b"\n\xff\n")
    with pytest.raises(BadInput) as caught:
        records.read(tmp_path)
    assert "x.jsonl:2: byte 1 is not UTF-8" in str(caught.value)
    assert "x.entities.jsonl:2: 'a' is a U here and a T at x.entities.jsonl:1" in str(caught.value)


def test_missing_and_empty_files_of_triples_say_so(tmp_path):
    with pytest.raises(BadInput, match="holds no file of triples"):
        records.read(tmp_path)
    (tmp_path / "x.jsonl").write_text("")
    with pytest.raises(BadInput, match=r"no x\.entities\.jsonl beside it"):
        records.read(tmp_path)
    (tmp_path / "x.entities.jsonl").write_text('{"id": "a", "type": "T"}\n')
    with pytest.raises(BadInput, match="is empty"):
        records.read(tmp_path)
    with pytest.raises(BadInput, match="There is no graph"):
        records.read(tmp_path / "nowhere")


SMALL = """
entities: {T: {}, U: {}}
relations:
  r: {domain: [T], range: [T, U], constraints: {functional: true, acyclic: true, inverse: s}}
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
    assert report.counts == {"acyclic": 4, "functional": 1, "domain": 1}
    assert report.examples["domain"] == ["f.py:7: u r a: u is a U, not T."]
    with pytest.raises(BadInput, match="functional: 1"):
        report.raise_if_bad()
    lenient = ontology.validate(records.Graph(triples, entities), small(tmp_path), strict=False)
    lenient.raise_if_bad()
    assert len(lenient.warnings) == 3


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
        (("domain: [T]", "domain: [Q]"), r"o\.yaml:4: .*'Q', which is none of T, U"),
        (("domain: [U]", "domain: U"), r"o\.yaml:5: s needs `domain`"),
        (("inverse: s", "inverse: t"), r"o\.yaml:4: r has the inverse 't'"),
        (("functional: true", "functional: 7"), r"o\.yaml:4: `functional` of r must be true or false"),
        (("  s: {", "  r: {"), r"o\.yaml:5: .*stands there twice"),
        (("relations:", "relation:"), "must have the keys"),
        (("{T: {}", "{T: {"), r"o\.yaml:\d+: this is no YAML"),
    ],
)
def test_a_malformed_ontology_names_the_line(tmp_path, change, reason):
    with pytest.raises(BadInput, match=reason):
        small(tmp_path, SMALL.replace(*change))


def test_our_ontology_says_which_relations_are_structural():
    ours = ontology.load()
    assert ours.structural == {"defines", "contains", "overrides", "has_parameter", "has_attribute"}
    assert ours.relations["overrides"].functional and ours.relations["inherits_from"].acyclic


@given_data
def test_the_given_data_is_read_with_its_known_faults():
    read = records.read(GIVEN)
    assert (len(read.triples), read.duplicates, len(read.entities)) == (24559, 28867 - 24559, 9291)
    theirs = ontology.find(GIVEN)
    assert (len(theirs.entities), len(theirs.relations)) == (15, 22)
    assert theirs.relations["tests"].inverse == "tested_by" and "declares" in theirs.structural
    report = ontology.validate(read, theirs, strict=False)
    report.raise_if_bad()
    assert set(report.counts) == {"domain", "range"}
    defined = {t.tail for t in read.triples if t.relation in ("contains", "declares")}
    assert not any(t.relation == "calls" and t.tail in defined for t in read.triples)


def test_statistics_count_resolved_edges_and_two_hop_paths(tmp_path):
    source = "def a():\n    b()\n    len()\ndef b(): c()\ndef c(): a()\nclass D(ValueError): pass\nclass E(D): pass"
    figures = records.statistics(graph.build(tree(tmp_path, m=source)))
    assert (figures.calls_resolved, figures.bases_resolved, figures.two_hop_paths) == (0.75, 0.5, 3)
    assert figures.relations["calls"] == 4
