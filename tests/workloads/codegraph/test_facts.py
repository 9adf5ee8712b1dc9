"""The paths that stand for expressions."""

import ast

import pytest

from workloads.codegraph.facts import CALL, INSTANCE, UNKNOWN, annotation_path, path_of


def expression(text):
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a.b().c", ("a", "b", CALL, "c")),
        ("super().run", ("super:", "run")),
        ("super(D, self).run", ("super:D", "run")),
        ("object.__new__(cls)", ("cls", INSTANCE)),
        ("'a' % b", ("<str>",)),
        ("[1]", ("<list>",)),
        ("x is None", ("<bool>",)),
        ("x == y", UNKNOWN),
        ("hidden.a", ("?", "a")),
    ],
)
def test_the_path_of_an_expression(text, path):
    assert path_of(expression(text), frozenset({"hidden"})) == path


@pytest.mark.parametrize("text", ["Foo", "'Foo'", "Foo | None", "Optional[Foo]", "Union[None, Foo]", "Final[Foo]"])
def test_an_annotation_is_an_instance(text):
    assert annotation_path(expression(text)) == ("Foo", INSTANCE)


@pytest.mark.parametrize(
    ("text", "path"),
    [("type[Foo]", ("Foo",)), ("list[Foo]", ("list", INSTANCE)), ("A | B", UNKNOWN), ("'('", UNKNOWN)],
)
def test_other_annotations(text, path):
    assert annotation_path(expression(text)) == path
