"""Configuration files and overrides of a command line."""

import os
from pathlib import Path

import pytest

from lib.config import read_config, reader, split_overrides
from lib.machine import platform
from tests.hostile.conftest import FORGED, SECRET

HEAD = "task: toy\ntraining: {max_steps: 4, effective_batch: 8}\n"
TEXTS = {
    "a tag that runs": "task: !!python/object/apply:os.system ['touch {ran}']\n",
    "a tag that reads": "task: !include {secret}\n",
    "a base elsewhere": "base: {secret}\n",
    "a billion laughs": "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(f'*{chr(97 + n)}' for _ in range(10))}]\n" for n in range(9)
    ),
    "200,000 brackets": "a: " + "[" * 200_000,
    "100,000 keys": "".join(f"key{n}: 1\n" for n in range(100_000)),
    "a key of a newline": f'"a\\n{FORGED} at step 9": 1\n' + HEAD,
    "a name with slashes": HEAD + "run: {name: ../../outside/target/x}\n",
    "a giant grid": HEAD + "queue: {grid: {" + ", ".join(f"k{n}: [1,2,3,4,5,6,7,8]" for n in range(20)) + "}}\n",
}  # fmt: skip


@pytest.fixture(autouse=True)
def fewer_values(monkeypatch):
    """A tenth of the values that a file may have, so that too many are read in a tenth of the time."""
    monkeypatch.setattr(reader, "_MOST_VALUES", 2_000)


def read(path, overrides=None):
    prepared = read_config(path, overrides)
    platform.output_dir(prepared.output_dir)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_hostile_configuration_is_refused_in_a_sentence(nothing_outside, text):
    folder = nothing_outside.folder
    for name in ("ran", "secret"):
        text = text.replace(f"{{{name}}}", str(getattr(nothing_outside, name)))
    (folder / "hostile.yaml").write_text(text, "utf-8")
    told = nothing_outside.attempt(read, folder / "hostile.yaml", weighed=len(text) > 200_000)
    assert "hostile.yaml" in told.splitlines()[0]
    assert len(told.splitlines()) <= 101


FILES = {
    "a pipe": os.mkfifo,
    "300 MB": lambda path: (path.touch(), os.truncate(path, 300_000_000)),
    "no UTF-8": lambda path: path.write_bytes(b"task: \xff\n"),
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_what_is_no_configuration_file_is_refused_by_name(nothing_outside, make):
    path = nothing_outside.folder / "hostile.yaml"
    make(path)
    assert "hostile.yaml" in nothing_outside.attempt(read, path, weighed=True)


def test_a_file_name_cannot_steer_the_terminal(nothing_outside):
    path = nothing_outside.folder / f"a\x1b[2J\n{FORGED}.yaml"
    assert r"a\x1b[2J\nTraining" in nothing_outside.attempt(read, path)
    path.write_text(HEAD)
    assert "it becomes a folder" in nothing_outside.attempt(read, path)


SETS = {
    "a key of a newline": f"a\n{FORGED}=1",
    "a tag": "queue.seeds=[!!python/object/apply:os.system [true]]",
    "half a surrogate": "run.name=a\udcffb",
    "a base": "base=../outside/secret.txt",
}


@pytest.mark.parametrize("pair", SETS.values(), ids=SETS)
def test_a_hostile_override_is_refused_in_a_sentence(nothing_outside, monkeypatch, pair):
    monkeypatch.chdir(nothing_outside.folder)
    Path("plain.yaml").write_text(HEAD)
    told = nothing_outside.attempt(lambda: read("plain.yaml", split_overrides([pair])))
    assert told
    assert SECRET not in told
