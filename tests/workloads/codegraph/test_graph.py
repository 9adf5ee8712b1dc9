"""The graph of a tree: what stands in it, that it is always the same, and what is left out."""

import os
import subprocess
import sys

import pytest

from lib.errors import BadInput
from tests.conftest import ROOT
from tests.workloads.codegraph.files import STANDARD_LIBRARY, edges, tree
from workloads.codegraph import graph, ontology, records


def test_entities_know_their_file_and_lines_with_decorators(tmp_path):
    built = graph.build(
        tree(tmp_path, m="import x\n@x.y\ndef f():\n    pass\n", tests__t="x()", idlelib__i="x()")
    )
    assert built.entities["m.f"] == records.Entity("m.f", "Function", "m.py", 2, 4)
    assert built.entities["m"] == records.Entity("m", "Module", "m.py", 1, 4)
    assert built.entities["x.y"] == records.Entity("x.y", "API")
    triple = next(t for t in built.triples if t.relation == "annotated_with")
    assert triple == records.Triple(
        "m.f", "annotated_with", "x.y", records.Place("python", "m.py", "m", 2)
    )
    assert {t.file for t in built.triples} == {"m.py"}, "folders of tests are left out"


def test_names_of_submodules_and_of_other_kinds_do_not_collide(tmp_path):
    package = "def q(): pass\nif q:\n    class r: pass\nelse:\n    def r(): pass"
    built = graph.build(tree(tmp_path, p__=package, p__q=""))
    kinds = {
        name: built.entities[name].type for name in ("p.q", "p.__init__.q", "p.r", "p.r#Function")
    }
    assert kinds == {
        "p.q": "Module",
        "p.__init__.q": "Function",
        "p.r": "Class",
        "p.r#Function": "Function",
    }


def test_a_repeated_edge_counts_once_and_an_empty_or_missing_folder_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"no \.py file under"):
        graph.build(tmp_path)
    with pytest.raises(BadInput, match="There is no folder"):
        graph.build(tmp_path / "missing")
    built = graph.build(tree(tmp_path, m="def f(): pass\nf()\nf()\n"))
    assert [t.line for t in built.triples if t.relation == "calls"] == [2]


def test_a_real_package_keeps_to_the_ontology_in_any_order_and_seed(monkeypatch):
    root = STANDARD_LIBRARY / "json"
    code = "import sys, pathlib; from workloads.codegraph import graph; print(graph.build(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(root)]
    seed = {**os.environ, "PYTHONHASHSEED": "77"}
    seeded = subprocess.run(command, check=True, env=seed, cwd=ROOT, capture_output=True, text=True)
    walk = os.walk

    def backwards(top):
        for place, folders, files in walk(top):
            yield place, folders, sorted(files, reverse=True)

    monkeypatch.setattr(os, "walk", backwards)
    built = graph.build(root)
    assert ontology.check(built, ontology.load()) == []
    assert not built.skipped
    assert seeded.stdout == f"{built}\n"


HOSTILE = {
    "syntax": (b"def f(:\n", "line 1"),
    "double": (b"x = 1", "double/__init__.py is the module double too"),
    "attributes": (b"x = a" + b".b" * 100_000, "nested too deeply"),
    "line": (b"x" * 50_000_000, "it has 50,000,000 bytes, and at most"),
    "latin": (b"caf\xe9 = 1\n", "encoding"),
    "utf7": (b"# coding: utf-7\nx = 1\n", "its encoding is utf-7"),
}
_IMPORTS = [b"from m%d import *\n" % n for n in range(3000)]
_CALLS = [b"q%d()\n" % n for n in range(3000)]
GOOD = {
    "good": b"# coding: latin-1\ndef caf\xe9(): pass\n",
    "cr": b"def f(\r  x):\r  pass\rf()\r",
    "stars": b"".join([*_IMPORTS, *_CALLS]),
}


def test_each_hostile_file_is_named_with_its_reason_and_the_rest_is_read(tmp_path):
    tree(tmp_path, double__="")
    for name, (content, _) in HOSTILE.items():
        (tmp_path / f"{name}.py").write_bytes(content)
    for name, content in GOOD.items():
        (tmp_path / f"{name}.py").write_bytes(content)
    built = graph.build(tmp_path)
    reasons = {file.removesuffix(".py"): reason for file, reason in built.skipped}
    assert reasons.keys() == HOSTILE.keys()
    for name, (_, reason) in HOSTILE.items():
        assert reason in reasons[name], name
    assert "good.café" in built.entities
    assert {"cr", "stars"} <= {t.head for t in built.triples if t.relation == "calls"}


def test_syntax_that_cannot_be_read_comes_with_the_version_of_python_that_read_it(tmp_path):
    tree(tmp_path, newer="def f(:\n")
    ((file, reason),) = graph.build(tmp_path).skipped
    assert file == "newer.py"
    assert reason.startswith("line 1: ")
    assert reason.endswith(f"(read as Python {sys.version_info.major}.{sys.version_info.minor})")


SMALL = """
import os
import functools

class Base:
    def run(self, speed): pass

class Child(Base):
    limit = 3
    @property
    def x(self): pass
    @x.setter
    def x(self, *value): pass
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
    def inner(f): return f()
    inner()
"""
EDGES = """\
file::m.py defines m
m defines m.Base
m defines m.Child
m defines m.work
m imports os
m imports functools
m.Base contains m.Base.run
m.Child contains m.Child.run
m.Child contains m.Child.__init__
m.Child inherits_from m.Base
m.Child.run overrides m.Base.run
m.Child.run annotated_with functools.cache
m.Child.run returns builtins.str
m.Base.run has_parameter param::speed
m.Child.run has_parameter param::speed
m.Child has_attribute attr::wheels
m.Child has_attribute attr::limit
m.work instantiates m.Child
m.work calls m.Child.run
m.work calls builtins.len
m.work catches builtins.ValueError
m.work raises builtins.KeyError
m.work instantiates builtins.KeyError
m.work contains m.work.inner
m.work calls m.work.inner
m.work.inner calls name::f
m.work.inner has_parameter param::f
m.Child contains m.Child.x
m.Child.x annotated_with builtins.property
m.Child.x annotated_with name::setter
m.Child.x has_parameter param::value
"""


def test_every_relation_of_a_small_module(tmp_path):
    found = edges(tmp_path, m=SMALL)
    assert found == {tuple(line.split()) for line in EDGES.splitlines()}
