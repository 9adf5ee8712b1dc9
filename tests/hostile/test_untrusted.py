"""The gate for foreign files: what it reads, what it refuses, and that it raises nothing else."""

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import untrusted
from lib.errors import BadInput
from lib.untrusted import Natural

KEYS = st.text() | st.sampled_from(["word", "number", "inner"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


def containers(inner):
    return st.lists(inner) | st.dictionaries(KEYS, inner)


JSON = st.recursive(VALUES, containers, max_leaves=20)


@dataclass
class Inner:
    step: Natural
    best: float | None


@dataclass
class Outer:
    word: str
    number: float
    inner: list[Inner] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)
    kind: Literal["a", "b"] = "a"
    flag: bool = False
    anything: Any = None


INNER = [{"step": 1, "best": None}, {"step": 0, "best": -1.5}]
WHOLE = {"word": "x", "number": 2, "inner": INNER, "by_name": {"k": -3}}
WHOLE |= {"kind": "b", "flag": True, "anything": [1]}


def test_an_object_of_the_right_types_becomes_a_dataclass():
    parsed = untrusted.parse(json.dumps({**WHOLE, "unknown": 1}), Outer)
    assert asdict(parsed) == WHOLE
    assert parsed.inner[0] == Inner(1, None)
    assert untrusted.parse({"word": "", "number": 0}, Outer) == Outer("", 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"word": 1},
        {"number": True},
        {"number": float("nan")},
        {"number": 10**300},
        {"inner": {}},
        {"inner": [1]},
        {"inner": [{"step": -1, "best": 1}]},
        {"by_name": {"k": 1.0}},
        {"kind": "c"},
        {"flag": 1},
    ],
    ids=str,
)
def test_a_value_of_another_type_is_named_by_its_key(wrong):
    with pytest.raises(BadInput, match="word|number|inner|step|best|by_name|kind|flag"):
        untrusted.parse({**WHOLE, **wrong}, Outer)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(JSON)
def test_json_of_any_form_is_parsed_or_refused_in_a_printable_line(value):
    for content in (json.dumps(value), json.dumps({"word": "x", "number": 1, "inner": value})):
        try:
            untrusted.parse(content, Outer)
        except BadInput as refusal:
            assert str(refusal).isprintable()
            assert len(str(refusal)) < 300


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 200_000, b"\xff", b"9" * 5_000])
def test_what_is_no_object_is_refused(content):
    with pytest.raises(BadInput, match=r"^it is "):
        untrusted.objects(content)


@pytest.mark.parametrize("text", ["", "..", "../x", "/etc/passwd", "a\0", "\x1b[2J", "x" * 200, 1])
def test_an_unsafe_name_of_a_file_is_told_from_a_safe_one(text):
    assert not untrusted.is_name(text)
    assert untrusted.is_name("model-1.safetensors")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(os.mkfifo, id="a pipe"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="a device"),
        pytest.param(lambda path: path.write_bytes(b"0123456789"), id="10 bytes"),
    ],
)
def test_only_a_regular_file_within_the_limit_is_read(nothing_outside, make):
    path = nothing_outside.folder / "x"
    make(path)
    with pytest.raises(OSError, match="regular file|at most 9"):
        untrusted.read(path, 9)
    if path.is_file():
        assert untrusted.read(path, 10) == path.read_bytes()
