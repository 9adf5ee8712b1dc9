"""One file read into facts: its text, the paths of its expressions, what it defines and uses."""

import ast

from workloads.codegraph.facts import CALL, INSTANCE, UNKNOWN, annotation_path, decode, path_of, words_by_line

PATHS = {
    "a.b().c": ("a", "b", CALL, "c"), "super().run": ("super:", "run"), "super(D, self).run": ("super:D", "run"),
    "object.__new__(cls)": ("cls", INSTANCE), "'a' % b": ("<str>",), "[1]": ("<list>",), "x is None": ("<bool>",),
    "x == y": UNKNOWN, "hidden.a": ("?", "a"),
}  # fmt: skip


def test_the_path_of_an_expression():
    for text, path in PATHS.items():
        assert path_of(ast.parse(text, mode="eval").body, frozenset({"hidden"})) == path, text


def test_annotations_are_instances_of_what_is_certain():
    same = ["Foo", "'Foo'", "Foo | None", "Optional[Foo]", "Union[None, Foo]", "Final[Foo]"]
    others = {"type[Foo]": ("Foo",), "list[Foo]": ("list", INSTANCE), "A | B": UNKNOWN, "'('": UNKNOWN}
    for text, path in {**dict.fromkeys(same, ("Foo", INSTANCE)), **others}.items():
        assert annotation_path(ast.parse(text, mode="eval").body) == path, text


def test_a_declared_encoding_counts_lines_end_as_for_python_and_words_are_numbered():
    assert decode("# coding: latin-1\ncafé = 1\n".encode("latin-1")) == "# coding: latin-1\ncafé = 1\n"
    assert decode(b"a\r\nb\rc\n") == "a\nb\nc\n" and decode(b"\xef\xbb\xbfa") == "a"
    words, numbers, starts = words_by_line(b"a.b(a)\n\nc\n")
    assert (words, list(numbers), list(starts)) == (["a", ".", "b", "(", "c"], [0, 1, 2, 3, 0, 4], [0, 5, 5, 6, 6])
