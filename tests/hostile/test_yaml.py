"""Configuration files and overrides of a command line."""

import itertools
import os
from pathlib import Path

import pytest

from lib.config import read_config, reader, split_overrides
from lib.machine import platform
from tests.hostile.conftest import FORGED, SECRET

HEAD = "task: toy\ntraining: {max_steps: 4, effective_batch: 8}\n"


@pytest.fixture(autouse=True)
def fewer_values(monkeypatch):
    """Allows a tenth of the values in a file, so that tests need a tenth of the time."""
    monkeypatch.setattr(reader, "_MOST_VALUES", 2_000)


def billion_laughs():
    """Returns lists of ten references, each to the list before."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    for former, name in itertools.pairwise("abcdefghij"):
        references = ",".join([f"*{former}"] * 10)
        lines.append(f"{name}: &{name} [{references}]")
    return "\n".join([*lines, ""])


GRID = ", ".join(f"k{number}: [1,2,3,4,5,6,7,8]" for number in range(20))


def read(path, overrides=None):
    prepared = read_config(path, overrides)
    platform.output_dir(prepared.output_dir)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "task: !!python/object/apply:os.system ['touch {ran}']\n", id="a tag that runs"
        ),
        pytest.param("task: !include {secret}\n", id="a tag that reads"),
        pytest.param("base: {secret}\n", id="a base elsewhere"),
        pytest.param(billion_laughs(), id="a billion laughs"),
        pytest.param("a: " + "[" * 200_000, id="200,000 brackets"),
        pytest.param("".join(f"key{n}: 1\n" for n in range(100_000)), id="100,000 keys"),
        pytest.param(f'"a\\n{FORGED} at step 9": 1\n' + HEAD, id="a key of a newline"),
        pytest.param(HEAD + "run: {name: ../../outside/target/x}\n", id="a name with slashes"),
        pytest.param(f"{HEAD}queue: {{grid: {{{GRID}}}}}\n", id="a giant grid"),
    ],
)
def test_a_hostile_configuration_is_refused_in_a_sentence(nothing_outside, text):
    folder = nothing_outside.folder
    for name in ("ran", "secret"):
        text = text.replace(f"{{{name}}}", str(getattr(nothing_outside, name)))
    (folder / "hostile.yaml").write_text(text, "utf-8")
    told = nothing_outside.attempt(read, folder / "hostile.yaml", weighed=len(text) > 200_000)
    assert "hostile.yaml" in told.splitlines()[0]
    assert len(told.splitlines()) <= 101


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(os.mkfifo, id="a pipe"),
        pytest.param(lambda path: (path.touch(), os.truncate(path, 300_000_000)), id="300 MB"),
        pytest.param(lambda path: path.write_bytes(b"task: \xff\n"), id="no UTF-8"),
    ],
)
def test_what_is_no_configuration_file_is_refused_by_name(nothing_outside, make):
    path = nothing_outside.folder / "hostile.yaml"
    make(path)
    assert "hostile.yaml" in nothing_outside.attempt(read, path, weighed=True)


def test_a_file_name_cannot_steer_the_terminal(nothing_outside):
    path = nothing_outside.folder / f"a\x1b[2J\n{FORGED}.yaml"
    assert r"a\x1b[2J\nTraining" in nothing_outside.attempt(read, path)
    path.write_text(HEAD)
    assert "it becomes a folder" in nothing_outside.attempt(read, path)


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(f"a\n{FORGED}=1", id="a key of a newline"),
        pytest.param("queue.seeds=[!!python/object/apply:os.system [true]]", id="a tag"),
        pytest.param("run.name=a\udcffb", id="half a surrogate"),
        pytest.param("base=../outside/secret.txt", id="a base"),
    ],
)
def test_a_hostile_override_is_refused_in_a_sentence(nothing_outside, monkeypatch, pair):
    monkeypatch.chdir(nothing_outside.folder)
    Path("plain.yaml").write_text(HEAD)
    told = nothing_outside.attempt(lambda: read("plain.yaml", split_overrides([pair])))
    assert told
    assert SECRET not in told
