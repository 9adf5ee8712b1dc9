"""Every shell and Python block of the documents runs, or says in a comment above it why it does not here.

    <!-- not run here: it needs an account of Kaggle -->

A Python block runs as it stands. A line of a shell block is a command of `trainbook`, which runs in this process,
once for all documents.
"""

import re
import shlex

import pytest

from tests.conftest import ROOT
from tests.test_docs import DOCUMENTS
from trainbook import commands

BLOCK = re.compile(
    r"(?:^<!-- not run here: (?P<why>.+?) -->\n)?^```(?P<language>sh|python)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
OTHER = re.compile(r"^```(?:bash|console|shell|py|pycon|sh .*|python .*)$", re.MULTILINE)
GENERATED = re.compile(r"<!-- table [\w-]+ -->\n.*?<!-- end -->", re.DOTALL)  # other tests run it


def blocks(text):
    """Yields (line, language, code) of the blocks that are to run; raises where one cannot and does not say so."""
    text = GENERATED.sub(lambda found: "\n" * found[0].count("\n"), text)
    for found in BLOCK.finditer(text):
        line = text[: found.start()].count("\n") + 1
        if not found["why"]:
            yield line, found["language"], found["code"]


def commands_of(code):
    """Returns the arguments of the commands in a shell block, with lines that go on put together."""
    lines = [line.split(" #")[0].strip() for line in code.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line and not line.startswith("#")]


done = set()  # a command that several documents give is run once


def run(code):
    for command in commands_of(code):
        if shlex.join(command) in done:
            continue
        assert command[0] == "trainbook", (
            f"{shlex.join(command)} cannot run in a test: write <!-- not run here: why --> above its block"
        )
        try:
            assert commands.main(command[1:]) == 0, command
        except SystemExit as end:  # --version and --help
            assert end.code in (0, None), command
        done.add(shlex.join(command))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A working folder that has the configurations, and in which a command may write."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_block_of_a_document_runs_or_says_why_not(document, checkout, capsys):
    text = document.read_text("utf-8")
    assert not OTHER.findall(text), (
        "shell blocks begin with ```sh, Python blocks with ```python, and nothing behind it"
    )
    for line, language, code in blocks(text):
        try:
            if language == "sh":
                run(code)
            else:
                exec(compile(code, f"{document.name}:{line}", "exec"), {})
        except Exception as error:
            place = f"{document.relative_to(ROOT)}:{line}"
            pytest.fail(f"{place}: {type(error).__name__}: {error}")
