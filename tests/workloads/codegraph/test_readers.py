"""Source files are read in processes of their own: hostile ones end those, and never this one."""

import pytest

from lib.errors import TrainingFailed
from tests.workloads.codegraph.files import tree
from workloads.codegraph import graph, readers

# A child that ends as the parser of some Python might, at a word in the file
CRASHING = """
import ast, os, signal, sys
started = {{"__file__": {program!r}, "__name__": "child"}}
exec(compile(open({program!r}).read(), {program!r}, "exec"), started)
parse = ast.parse


def parse_or_end(content, *more, **options):
    if b"overflow" in content:
        os.kill(os.getpid(), signal.SIGSEGV)
    if b"leave" in content:
        os.write(2, b"no room")
        os._exit(3)
    while b"stall" in content:
        pass
    return bytearray(2**34) if b"fill" in content else parse(content, *more, **options)


ast.parse = parse_or_end
started["main"]()
"""


@pytest.fixture
def crashing(tmp_path, monkeypatch):
    program = tmp_path / "crashing.py"
    program.write_text(CRASHING.format(program=str(readers._PROGRAM)))
    monkeypatch.setattr(readers, "_PROGRAM", program)


def test_a_file_that_ends_stalls_or_fills_the_process_is_named_and_the_others_are_read(crashing, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_MOST_SECONDS", 0.4)
    root = tree(
        tmp_path / "tree", a="def a(): pass", b="overflow = 1", c="leave = 1", d="stall = 1", e="fill = 1",
        f="def f(): a()",
    )  # fmt: skip
    built = graph.build(root)
    reasons = dict(built.skipped)
    assert reasons.keys() == {"b.py", "c.py", "d.py", "e.py"}
    assert "SIGSEGV" in reasons["b.py"] and "with code 3: no room" in reasons["c.py"]
    assert "SIGVTALRM" in reasons["d.py"] and "MemoryError" in reasons["e.py"]
    assert {triple.file for triple in built.triples} == {"a.py", "f.py"}


def test_answers_come_in_the_order_of_the_jobs_for_any_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_FILES_EACH", 3)
    for processes in (1, 4):
        answers = readers.run("words", range(20), lambda n: (f"x{n} = {n}\n".encode(),), processes)
        assert [answer[0] for answer in answers] == [[f"x{n}", "="] for n in range(20)]

    def missing(number):
        raise ValueError("the disk")

    with pytest.raises(ValueError, match="the disk"):
        readers.run("words", range(20), missing)


def test_a_process_that_does_not_start_is_a_failure_and_no_unreadable_file(tmp_path, monkeypatch):
    (tmp_path / "child.py").write_text("raise SystemExit('no such module')")
    monkeypatch.setattr(readers, "_PROGRAM", tmp_path / "child.py")
    with pytest.raises(TrainingFailed, match="does not start: .* with code 1: no such module"):
        readers.run("words", [b"x"], lambda content: (content,))
