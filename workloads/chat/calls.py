"""Renders calls of functions for a template, and compares calls in texts."""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from workloads.chat.messages import as_json

PROBE = {"name": "zk4_function", "arguments": {"zk4_key": "zk4 value"}}
_ID_LETTERS = 9  # length of Mistral's call ids


# --- as a template wants them -----------------------------------------------------------------------------------------


class Form(NamedTuple):
    """The form of messages with calls that a template takes."""

    has_objects: bool = True  # arguments as an object, otherwise as JSON text
    empty: str | None = ""  # the content beside a call without content
    is_nested: bool = True  # name and arguments below `function`, as OpenAI has them
    has_long_ids: bool = True  # original ids, otherwise nine letters

    def message(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of a message in the template's form."""
        values = {name: value for name, value in values.items() if name != "weight"}
        if "tool_call_id" in values:
            values["tool_call_id"] = self._id(values["tool_call_id"])
        if "tool_calls" in values:
            values["content"] = values["content"] or self.empty
            values["tool_calls"] = [*map(self._call, values["tool_calls"])]
        return values

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        if not self.has_objects:
            function["arguments"] = as_json(function["arguments"])
        head = {name: value for name, value in call.items() if name != "function"}
        if "id" in call:
            head["id"] = self._id(call["id"])
        if self.is_nested:
            return {**head, "function": function}
        return {**head, **function}

    def _id(self, name: Any) -> str:
        if self.has_long_ids:
            return str(name)
        return hashlib.sha256(str(name).encode("utf-8", "surrogatepass")).hexdigest()[:_ID_LETTERS]


_YES_NO = (True, False)
_CONTENTS = ("", None)
FORMS = [*itertools.starmap(Form, itertools.product(_YES_NO, _CONTENTS, _YES_NO, _YES_NO))]


def form_of(render: Callable[[Form], str]) -> Form | None:
    """Returns the first of the best forms in which a template shows the probe, or None."""
    best = None
    quality = 0
    for form in FORMS:
        try:
            level = _quality(render(form))
        except Exception:
            continue
        if level > quality:
            best = form
            quality = level
    return best


def _quality(text: str) -> int:
    """Returns 2 if the probe's arguments are JSON in a text, 1 if they are in another form, otherwise 0."""
    is_there = all(part in text for part in ("zk4_function", "zk4_key", "zk4 value"))
    is_json_in_json = r"\"zk4_key" in text
    is_python = "'zk4_key'" in text
    if not is_there or is_json_in_json or is_python:
        return 0
    if any(_holds(value, PROBE["arguments"]) for value in pieces(text)):
        return 2
    return 1


def _holds(value: Any, wanted: Any) -> bool:
    if value == wanted:
        return True
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list):
        return any(_holds(inner, wanted) for inner in value)
    return False


# --- whether they are shown -------------------------------------------------------------------------------------------


def is_shown(value: Any, text: str) -> bool:
    """Returns whether a text contains all keys, words and numbers of a JSON value."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        return all(is_shown(inner, text) for inner in value)
    if isinstance(value, str):
        stripped = value.strip()
        return any(form in text for form in (stripped, *_escaped(stripped)))
    return json.dumps(value) in text or str(value) in text


def _escaped(text: str) -> list[str]:
    """Returns a text's JSON escapes, with letters or with codes."""
    return [as_json(text)[1:-1], json.dumps(text)[1:-1]]


# --- whether two texts make the same ones -----------------------------------------------------------------------------


def pieces(text: str) -> list[Any]:
    """Cuts a text into JSON objects, JSON lists, and words between them."""
    parts = list[Any]()
    words = ""
    place = 0
    decoder = json.JSONDecoder()
    while place < len(text):
        value = None
        if text[place] in "{[":
            value, end = _decoded(decoder, text, place)
        if value is None:
            words += text[place]
            place += 1
            continue
        parts += [*_words(words), value]
        words = ""
        place = end
    return [*parts, *_words(words)]


def _decoded(decoder: json.JSONDecoder, text: str, place: int) -> tuple[Any, int]:
    try:
        return decoder.raw_decode(text, place)
    except (ValueError, RecursionError):
        return None, place


def _words(text: str) -> list[str]:
    if text.strip():
        return [" ".join(text.split())]
    return []


def are_same(first: Any, second: Any) -> bool:
    """Returns whether two JSON values are equal: 1 equals 1.0, but not true."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if first.keys() != second.keys():
            return False
        return all(are_same(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(are_same, first, second))
    return first == second


def are_equal(right: str, written: str) -> bool:
    """Returns whether two texts are equal, JSON in them by values."""
    return are_same(pieces(right), pieces(written))


def are_same_calls(right: str, written: str, calls: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether a text makes the right calls, compared by names and values of arguments."""
    values = _values(right)
    if not all(_holds(values, call["name"]) for call in calls):  # names are outside of JSON
        return are_equal(right, written)
    return are_same(values, _values(written))


def _values(text: str) -> list[Any]:
    """Returns the objects and lists of JSON in a text."""
    return [value for value in pieces(text) if not isinstance(value, str)]
