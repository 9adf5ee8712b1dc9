"""The graph of a tree: what stands in it, that it is always the same, and what is said of bad input."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lib.errors import BadInput
from tests.conftest import ROOT
from tests.workloads.codegraph.files import STANDARD_LIBRARY, tree
from workloads.codegraph import graph, ontology, records


def test_entities_know_their_file_and_lines_with_decorators(tmp_path):
    built = graph.build(tree(tmp_path, m="import x\n@x.y\ndef f():\n    pass\n"))
    assert built.entities["m.f"] == records.Entity("m.f", "Function", "m.py", 2, 4)
    assert built.entities["m"] == records.Entity("m", "Module", "m.py", 1, 4)
    assert built.entities["x.y"] == records.Entity("x.y", "API")
    triple = next(t for t in built.triples if t.relation == "annotated_with")
    assert triple == records.Triple("m.f", "annotated_with", "x.y", "python", "m.py", "m", 2)


def test_names_of_submodules_and_of_other_kinds_do_not_collide(tmp_path):
    package = "def q(): pass\nif q:\n    class r: pass\nelse:\n    def r(): pass"
    built = graph.build(tree(tmp_path, p__=package, p__q=""))
    kinds = {name: built.entities[name].type for name in ("p.q", "p.__init__.q", "p.r", "p.r#Function")}
    assert kinds == {"p.q": "Module", "p.__init__.q": "Function", "p.r": "Class", "p.r#Function": "Function"}


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


def test_an_empty_or_missing_folder_says_what_to_do(tmp_path):
    with pytest.raises(BadInput, match=r"no \.py file under"):
        graph.build(tmp_path)
    with pytest.raises(BadInput, match="There is no folder"):
        graph.build(tmp_path / "missing")


def test_the_same_bytes_for_any_hash_seed_and_order_of_files(tmp_path, monkeypatch):
    root = STANDARD_LIBRARY / "json"
    code = (
        "import sys, pathlib; from workloads.codegraph import graph, records; "
        "records.write(graph.build(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2]))"
    )
    for seed in ("0", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code, str(root), str(tmp_path / seed)]
        subprocess.run(command, check=True, env=environment, cwd=ROOT)
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda top: ((a, b, sorted(c, reverse=True)) for a, b, c in walk(top)))
    records.write(graph.build(root), tmp_path / "reversed")
    assert len({digest(tmp_path / name) for name in ("0", "77", "reversed")}) == 1


def digest(folder: Path) -> str:
    return hashlib.sha256(b"".join((folder / n).read_bytes() for n in ("triples.jsonl", "entities.jsonl"))).hexdigest()


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
