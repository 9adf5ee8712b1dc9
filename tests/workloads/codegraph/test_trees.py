"""Several trees as one graph, and installed packages with their versions."""

import importlib

import pytest

from tests.workloads.codegraph.files import tree
from workloads.codegraph import graph, trees
from workloads.codegraph.trees import Sources


def sources(*folders):
    return Sources([trees.folder(folder) for folder in folders])


def keys(built):
    return {triple.key for triple in built.triples}


def test_an_import_from_another_tree_is_resolved_and_files_keep_their_trees(tmp_path):
    a = tree(tmp_path / "a", tools="def mend(): pass")
    b = tree(tmp_path / "b", main="import tools\ndef run(): tools.mend()")
    both = sources(a, b)
    built = graph.build(both)
    assert ("main.run", "calls", "tools.mend") in keys(built)
    assert built.entities["tools.mend"].file == "a/tools.py"
    assert both.path("a/tools.py") == a / "tools.py"
    assert both.read("b/main.py").startswith(b"import tools")
    assert graph.build(sources(a)).entities["tools.mend"].file == "tools.py", (
        "of one tree the name is left out"
    )


def test_modules_of_one_name_stay_apart_and_each_tree_imports_its_own(tmp_path):
    a = tree(tmp_path / "a", tools="def mend(): pass", setup="from tools import mend\nmend()")
    b = tree(tmp_path / "b", tools__="from . import part\n", tools__part="def mend(): pass",
             setup="import tools.part\nfrom tools.part import mend\ntools.part.mend()\nmend()")  # fmt: skip
    found = keys(graph.build(sources(a, b)))
    assert ("setup", "calls", "tools.mend") in found
    assert (
        "b.setup",
        "calls",
        "b.tools.part.mend",
    ) in found
    assert ("b.tools", "contains", "b.tools.part") in found
    assert (
        "b.setup",
        "imports",
        "b.tools.part",
    ) in found
    assert not any(head == "b.setup" and tail == "tools.mend" for head, _, tail in found)


def test_the_order_of_trees_and_where_they_lie_change_nothing(tmp_path):
    a = tree(tmp_path / "x" / "src", m="def f(): pass")
    b = tree(tmp_path / "y" / "src", m="def g(): pass")
    first = sources(a, b)
    second = sources(b, a)
    assert first.content == second.content
    assert graph.build(first) == graph.build(second)
    (tmp_path / "z").mkdir()
    moved = [(tmp_path / name).rename(tmp_path / "z" / name) / "src" for name in ("x", "y")]
    assert sources(*moved).content == first.content
    assert {tree.label for tree in first.trees} == {"src", "src_2"}
    (moved[0] / "m.py").write_text("def f(): return 1")
    assert sources(*moved).content != first.content


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with the installed package Some-Thing 1.2.3+cu1, of a module, a package and its tests."""
    place = tree(
        tmp_path / "site",
        thing="def one(): pass",
        some__="from thing import one\n",
        some__tests__t="x()",
    )
    (place / "some_thing-1.2.3.dist-info").mkdir()
    files = ("thing.py", "some/__init__.py", "some/tests/t.py", "../bin/run.py", "some/data.txt")
    (place / "some_thing-1.2.3.dist-info" / "RECORD").write_text(
        "".join(f"{file},,\n" for file in files)
    )
    (place / "some_thing-1.2.3.dist-info" / "METADATA").write_text(
        "Name: Some-Thing\nVersion: 1.2.3+cu1\n"
    )
    monkeypatch.syspath_prepend(str(place))
    importlib.invalidate_caches()
    return place


@pytest.mark.parametrize("text", ["some-thing", "some-thing == 1.2.*"])
def test_an_installed_package_is_what_its_record_lists(site, text):
    (found,) = trees.installed([text])
    assert found.name == "some-thing"
    assert found.files == ("some/__init__.py", "thing.py")
    assert ("some", "imports", "thing.one") in keys(graph.build(Sources([found])))
