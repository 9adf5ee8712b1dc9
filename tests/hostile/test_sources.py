"""Trees of Python files, which graphmer reads and never runs."""

import os

import pytest

from lib.errors import printable
from tests.hostile.conftest import FORGED, SECRET
from workloads.codegraph import graph
from workloads.codegraph.trees import Sources, folder

DEEP = 20_000


def classes_in_classes():
    heads = [f"{' ' * depth}class A:\n" for depth in range(90)]
    return "".join(heads) + " " * 90 + "x = 1\n"


def chain_of_names():
    lines = [f"x{number + 1} = x{number}\n" for number in range(3_000)]
    return "".join(lines) + "x3000()\n"


def diamond_of_bases():
    lines = ["class A0: pass\nclass B0: pass\n"]
    for number in range(40):
        lines.append(f"class A{number + 1}(A{number}, B{number}): pass\n")
        lines.append(f"class B{number + 1}(B{number}, A{number}): pass\n")
    return "".join(lines)


@pytest.fixture
def tree(nothing_outside):
    """A tree of one good file, to which a test adds."""
    (nothing_outside.folder / "good.py").write_text("def good():\n    return 1\n")
    return nothing_outside.folder


def build(root, graphs):
    graphs.append(graph.build(root))
    for file, reason in graphs[0].skipped:
        print(printable(f"Left out {file}: {reason}"))


def built(nothing_outside, weighed=False):
    graphs = []
    told = nothing_outside.attempt(build, nothing_outside.folder, graphs, weighed=weighed)
    assert "good.good" in graphs[0].entities
    return told, graphs[0]


TOO_MANY = "".join(f"{' ' * depth}if x:\n" for depth in range(300))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("{code}", id="code that runs"),
        pytest.param(
            "@__import__('os').system('touch {ran}')\ndef f(): pass\n", id="code in a decorator"
        ),
        pytest.param("(" * DEEP, id="parentheses"),
        pytest.param(TOO_MANY, id="too many ifs"),
        pytest.param(classes_in_classes(), id="classes in classes"),
        pytest.param("x = 9**9**9**9\n", id="a giant power"),
        pytest.param("\x1b[2J\x07\n", id="an escape"),
        pytest.param("from a import *\nfrom . import a\nimport a\n", id="a star of itself"),
        pytest.param("class A(B): pass\nclass B(A): pass\nA.x()\n", id="bases in a circle"),
        pytest.param(chain_of_names(), id="a long chain of names"),
        pytest.param(diamond_of_bases(), id="a diamond of bases"),
        pytest.param(
            "def f(): return g()\ndef g(): return f()\nf().x()\n", id="returns in a circle"
        ),
        pytest.param(b"# coding: punycode\n" + b"x" * DEEP, id="a declared punycode"),
        pytest.param(b"\xff\xfe\xfa", id="no UTF-8"),
    ],
)
def test_a_hostile_source_is_read_or_left_out_and_never_run(nothing_outside, tree, content):
    if isinstance(content, str):
        content = content.replace("{code}", nothing_outside.code())
        content = content.replace("{ran}", str(nothing_outside.ran)).encode("utf-8")
    (tree / "a.py").write_bytes(content)
    told, made = built(nothing_outside)
    assert "a" in made.entities or told.startswith("Left out a.py: ")


def sparse(path, outside):
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(sparse, "bytes, and at most", id="a TiB"),
        pytest.param(
            lambda path, outside: os.mkfifo(path), "it is a pipe, not a regular file", id="a pipe"
        ),
        pytest.param(
            lambda path, outside: path.symlink_to(outside.secret),
            "it is a link out of the tree",
            id="a link out",
        ),
        pytest.param(
            lambda path, outside: path.symlink_to(path), "cannot be read", id="a link to itself"
        ),
    ],
)
def test_what_is_no_source_is_left_out_by_name_with_the_reason(nothing_outside, tree, make, reason):
    make(tree / "a.py", nothing_outside)
    told, made = built(nothing_outside, weighed=True)
    assert told.startswith("Left out a.py: ")
    assert reason in told
    assert SECRET not in told
    assert len(made.skipped) == 1
    assert Sources([folder(tree)]).content


@pytest.mark.parametrize("name", [f"a\n{FORGED}.py", "a\x1b[2J.py", "a\udcff.py"])
def test_a_file_name_cannot_steer_the_terminal_or_enter_the_graph(nothing_outside, tree, name):
    (tree / os.fsencode(name).decode("utf-8", "surrogateescape")).write_text("def f(): pass\n")
    told, made = built(nothing_outside)
    assert told.startswith("Left out ")
    assert not any(entity.rpartition(".")[2] == "f" for entity in made.entities)


def test_links_to_folders_are_not_followed_and_links_inside_the_tree_are(nothing_outside, tree):
    (tree / "loop").symlink_to(".")
    (tree / "away").symlink_to(nothing_outside.outside)
    (tree / "same.py").symlink_to("good.py")
    assert "same.good" in built(nothing_outside)[1].entities
