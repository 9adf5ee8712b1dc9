"""Where references stand in a file, what stands before them, and what jedi says that they mean."""

import pytest

from tests.workloads.codegraph.files import tree
from workloads.codegraph import follow, graph
from workloads.codegraph.follow import BEFORE, Meaning
from workloads.codegraph.trees import Sources, folder

SOURCE = """
class A(Base[int], make.Other()):
    @decorated
    def f(self, x):
        bare()
        self.own()
        self.part.deep()
        x.named()
        x.y.further()
        (x
            .chained()
            .called())
        super().above()
        x[0].item()
        "text".written(), x.ä.after()
"""
KINDS = {
    "bare": "bare", "own": "self", "deep": "attribute of self", "named": "name", "further": "attribute",
    "called": "call", "above": "super", "item": "item", "written": "other", "after": "attribute",
    "Base": "bare", "Other": "name", "decorated": "bare",
}  # fmt: skip


def test_a_spot_says_where_the_name_stands_and_what_stands_before_it():
    lines = SOURCE.split("\n")
    found = {name: spot for (_, name), spot in follow.spots(SOURCE.encode()).items()}
    assert {name: found[name].before for name in KINDS} == KINDS
    assert set(KINDS.values()) <= set(BEFORE)
    for name, spot in found.items():
        assert lines[spot.line - 1][spot.column :].startswith(name)


def test_every_open_reference_of_the_graph_has_a_spot(tmp_path):
    built = graph.build(tree(tmp_path, m=SOURCE))
    opened = [t for t in built.triples if t.tail.startswith("name::")]
    assert len(opened) > 8
    spots = follow.spots_of(Sources([folder(tmp_path)]), opened)
    assert all(spot.column >= 0 for spot in spots)


def test_an_entity_is_meant_by_its_file_or_where_a_package_exports_it_again(tmp_path):
    echo = Meaning("click.utils", "echo", tmp_path / "utils.py", "function")
    assert echo.is_of("click.echo", None)
    assert echo.is_of("click.utils.echo", None)
    assert not echo.is_of("click.other.echo", None)
    assert not echo.is_of("echo", None)
    assert not Meaning("requests.sessions", "Session.get", None, "function").is_of(
        "requests.get", None
    )
    assert echo.is_of("src.click.utils.echo", tmp_path / "utils.py")
    assert not echo.is_of("src.click.utils.echo", tmp_path / "other.py")


def test_jedi_follows_what_the_graph_leaves_open(tmp_path):
    pytest.importorskip("jedi")
    source = (
        "class Door:\n    def paint(self): pass\n"
        "def f(doors: list[Door], path: str, thing):\n"
        "    doors[0].paint()\n    path.join('').strip()\n    thing.paint()\n"
    )
    built = graph.build(tree(tmp_path, m=source))
    opened = [t for t in built.triples if t.tail.startswith("name::")]
    sources = Sources([folder(tmp_path)])
    spots = follow.spots_of(sources, opened)
    meanings = follow.meanings_of(sources, opened, spots)
    found = {(t.tail, t.line): [m.name for m in of] for t, of in zip(opened, meanings, strict=True)}
    assert found["name::paint", 4] == ["m.Door.paint"]
    assert found["name::strip", 5] == ["builtins.str.strip"]
