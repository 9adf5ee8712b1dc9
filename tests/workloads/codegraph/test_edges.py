"""The edges that a file contributes."""

from tests.workloads.codegraph.files import edges
from workloads.codegraph.edges import builtin_kind


def test_every_relation_of_a_small_module(tmp_path):
    source = """
import os
import functools

class Base:
    def run(self, speed): pass

class Child(Base):
    limit = 3
    @property
    def x(self): pass
    @x.setter
    def x(self, value): pass
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
        ("m.work", "contains", "m.work.inner"), ("m.work", "calls", "m.work.inner"),
        ("m.work.inner", "calls", "name::f"), ("m.work.inner", "has_parameter", "param::f"),
        ("m.Child", "contains", "m.Child.x"), ("m.Child.x", "annotated_with", "builtins.property"),
        ("m.Child.x", "annotated_with", "name::setter"), ("m.Child.x", "has_parameter", "param::value"),
    }  # fmt: skip


def test_builtins_are_told_apart():
    kinds = {name: builtin_kind(name) for name in ("int", "KeyError", "len", "str.join", "NoneType")}
    assert kinds == {"int": "Type", "KeyError": "ExceptionType", "len": "API", "str.join": "API", "NoneType": "Type"}
