"""Source files are read in processes of their own: hostile ones end those, and never this one."""

import pytest

from lib.errors import TrainingFailed
from tests.workloads.codegraph.files import tree
from workloads.codegraph import graph, readers

# A child that ends as the parser of some Python might, at a word in the file
CRASHING = '''
import os, resource, signal, sys
sys.path.insert(0, {root!r})
sys.argv[0] = __file__
from pathlib import Path
code = Path({program!r}).read_text()
started = {{"__file__": {program!r}, "__name__": "child"}}
exec(compile(code, {program!r}, "exec"), started)
import ast
parse = ast.parse


def parse_or_end(content, *more, **options):
    if b"overflow" in content:
        os.kill(os.getpid(), signal.SIGSEGV)
    if b"leave" in content:
        print("no room", file=sys.stderr)
        sys.stderr.flush()
        os._exit(3)
    if b"stall" in content:
        while True:
            pass
    if b"fill" in content:
        return bytearray(2**34)
    return parse(content, *more, **options)


ast.parse = parse_or_end
started["main"]()
'''


@pytest.fixture
def crashing(tmp_path, monkeypatch):
    program = tmp_path / "crashing.py"
    program.write_text(CRASHING.format(program=str(readers._PROGRAM), root=str(tmp_path)))
    monkeypatch.setattr(readers, "_PROGRAM", program)


def test_a_file_that_ends_stalls_or_fills_the_process_is_named_and_the_others_are_read(
    crashing, tmp_path, monkeypatch
):
    monkeypatch.setattr(readers, "_MOST_SECONDS", 0.4)
    root = tree(
        tmp_path / "tree", a="def a(): pass", b="overflow = 1", c="leave = 1", d="stall = 1", e="fill = 1",
        f="def f(): a()",
    )  # fmt: skip
    built = graph.build(root, 2)
    reasons = dict(built.skipped)
    assert reasons.keys() == {"b.py", "c.py", "d.py", "e.py"}
    assert "SIGSEGV" in reasons["b.py"] and "with code 3: no room" in reasons["c.py"]
    assert "more than 0.4 s of CPU time" in reasons["d.py"] and "MemoryError" in reasons["e.py"]
    assert {triple.file for triple in built.triples} == {"a.py", "f.py"}


def test_the_number_of_processes_changes_no_byte(tmp_path):
    sources = {f"m{n}": f"import m{n // 2}\ndef f{n}(): m{n // 2}.f{n // 2}()\n" for n in range(12)}
    root = tree(tmp_path, **sources, bad="(")
    assert graph.build(root, 1) == graph.build(root, 4)


def test_answers_come_in_the_order_of_the_jobs_and_a_failure_of_who_gives_them_is_raised():
    jobs = [(f"x{n} = {n}\n".encode(),) for n in range(20)]
    assert [answer[0] for answer in readers.run("words", jobs, 20, 3)] == [[f"x{n}", "="] for n in range(20)]

    def ending():
        yield jobs[0]
        raise ValueError("the disk")

    with pytest.raises(ValueError, match="the disk"):
        readers.run("words", ending(), 20, 1)


def test_a_process_that_does_not_start_is_a_failure_and_no_unreadable_file(tmp_path, monkeypatch):
    (tmp_path / "child.py").write_text("raise SystemExit('no such module')")
    monkeypatch.setattr(readers, "_PROGRAM", tmp_path / "child.py")
    with pytest.raises(TrainingFailed, match="does not start: .* with code 1: no such module"):
        readers.run("words", [(b"x",)], 1)
