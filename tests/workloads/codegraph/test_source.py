"""One file read into facts."""

from workloads.codegraph.facts import Facts, Unreadable
from workloads.codegraph.source import parse

SOURCE = b"""from . import near
__all__ = ["run"]
__all__ += ["walk"]
class Car:
    def __init__(self, speed: int, *rest):
        self.speed = speed
def run(car: Car): car.go()
"""


def test_a_file_says_what_it_defines_binds_and_uses():
    facts = parse(SOURCE, "a/b.py", "a.b")
    assert isinstance(facts, Facts) and (facts.package, facts.lines) == ("a", 7)
    assert [(d.id, d.kind, d.first_line) for d in facts.definitions] == [
        ("a.b.Car", "Class", 4), ("a.b.Car.__init__", "Method", 5), ("a.b.run", "Function", 7),
    ]  # fmt: skip
    assert [name for name, _ in facts.definitions[1].parameters] == ["speed", "rest"]
    assert list(facts.attributes["a.b.Car"]) == ["speed"] and facts.exports == ["run", "walk"]
    assert [(r.relation, r.path) for r in facts.references] == [("imports", ("a", "near")), ("calls", ("car", "go"))]


def test_a_definition_with_the_name_of_a_submodule_gets_another_id():
    facts = parse(b"def part(): pass", "a/__init__.py", "a", frozenset({"part"}))
    assert [definition.id for definition in facts.definitions] == ["a.__init__.part"] and facts.package == "a"


def test_a_file_that_cannot_be_parsed_says_why():
    assert parse(b"x = 1\ndef f(:\n", "a.py", "a") == Unreadable("a.py", "line 2: invalid syntax")
