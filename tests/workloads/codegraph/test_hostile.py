"""Source that is written to break whoever reads it: each file is named, and the tree is read."""

import pytest

from workloads.codegraph import graph
from workloads.codegraph.source import parse

MANY = 100_000
HOSTILE = {
    "brackets": (b"x = " + b"[" * MANY + b"]" * MANY, "line 1: "),
    "open": (b"(" * MANY, "line 1: "),
    "attributes": (b"x = a" + b".b" * MANY, "nested too deeply"),
    "calls": (b"x = a" + b"()" * MANY, "nested too deeply"),
    "signs": (b"x = " + b"-" * MANY + b"1", "nested too deeply"),
    "sum": (b"x = 1" + b"+1" * MANY, "nested too deeply"),
    "branches": (b"if 1: pass\n" + b"elif 1: pass\n" * 30_000, "nested too deeply"),
    "line": (b"x" * 50_000_000, "it has 50,000,000 bytes, and at most"),
    "null": (b"x = 1\0\n", "null bytes"),
    "utf16": ("x = 1\n".encode("utf-16"), "encoding"),
    "utf16_bare": ("x = 1\n".encode("utf-16-le"), "null bytes"),
    "utf32": ("x = 1\n".encode("utf-32"), "encoding"),
    "latin": (b"caf\xe9 = 1\n", "encoding"),
    "unknown": (b"# coding: nonsense\nx = 1\n", "unknown encoding: nonsense"),
    "hexadecimal": (b"# coding: hex\n6162\n", "not a text encoding"),
    "utf7": (b"# coding: utf-7\nx = 1\n", "its encoding is utf-7"),
    "two": (b"\xef\xbb\xbf# coding: latin-1\nx = 1\n", "encoding"),
}


def test_each_hostile_file_is_named_with_its_reason_and_the_rest_is_read(tmp_path):
    for name, (content, _) in HOSTILE.items():
        (tmp_path / f"{name}.py").write_bytes(content)
    (tmp_path / "good.py").write_bytes(b"# coding: latin-1\ndef caf\xe9(): pass\n")
    built = graph.build(tmp_path, 2)
    reasons = {file.removesuffix(".py"): reason for file, reason in built.skipped}
    assert reasons.keys() == HOSTILE.keys()
    for name, (_, reason) in HOSTILE.items():
        assert reason in reasons[name], name
    assert "good.café" in built.entities


@pytest.mark.parametrize(
    "content",
    [
        b"def f(\r  x):\r  pass\rf()\r",
        b"".join(b"from m%d import *\n" % n for n in range(3000)) + b"".join(b"q%d()\n" % n for n in range(3000)),
    ],
    ids=["lines that end with CR", "thousands of star imports"],
)
def test_odd_source_is_read(tmp_path, content):
    (tmp_path / "m.py").write_bytes(content)
    built = graph.build(tmp_path)
    assert not built.skipped and any(triple.relation == "calls" for triple in built.triples)


def test_too_many_star_imports_are_not_looked_through():
    facts = parse(b"".join(b"from m%d import *\n" % n for n in range(201)), "a.py", "a")
    assert facts.stars == [] and len(facts.references) == 201
    assert parse(b"from a import *\nfrom b import *\nfrom a import *\n", "c.py", "c").stars == ["b", "a"]
