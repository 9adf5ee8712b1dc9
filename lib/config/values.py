"""What the text of a YAML scalar is as a value of a type, and the words for types and values in messages."""

import dataclasses
import math
import re
import types
from typing import Any, Literal, Union, get_args, get_origin

from yaml import Node, ScalarNode, SequenceNode

from lib.config.nodes import is_empty

BAD: Any = object()  # stands for a value whose mistake has been reported
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", types.NoneType: "null"}


def convert(expected: Any, node: Node) -> Any:
    """Converts a scalar to the expected type, or returns BAD. Only a text may be in quotes."""
    if not isinstance(node, ScalarNode):
        return BAD
    text = node.value
    if expected is str:
        return BAD if is_empty(node) else text
    if get_origin(expected) is Literal:
        pairs = ((choice, convert(type(choice), node)) for choice in get_args(expected))
        return next((choice for choice, value in pairs if value is not BAD and value == choice), BAD)
    if node.style is not None or expected not in _WORDS:
        return BAD
    if expected is types.NoneType:
        return None if text in ("", "~", "null") else BAD
    if expected is bool:
        return _BOOL.get(text, BAD)
    if not (_INT if expected is int else _FLOAT).fullmatch(text):
        return BAD
    number = expected(text)
    return number if math.isfinite(number) else BAD


def hint(options: tuple[Any, ...], node: Node) -> str:
    """Returns what to write instead, where the text shows it."""
    if not isinstance(node, ScalarNode) or not node.value:
        return "Give a value, or delete the line." if isinstance(node, ScalarNode) else ""
    if any("name" in getattr(option, "__dataclass_fields__", ()) for option in options):
        return f"Write it as {{name: {cut(node.value)}}}."
    if node.style is not None:
        bare = ScalarNode("", node.value, node.start_mark)
        return "Write it without quotes." if any(convert(option, bare) is not BAD for option in options) else ""
    if bool in options:
        return "Write true or false."
    try:
        number = float(node.value.lower().replace(".nan", "nan").replace(".inf", "inf"))
    except ValueError:
        return ""
    if not math.isfinite(number):
        return "Give a finite number."
    if not number.is_integer() or abs(number) > 1e15:
        return f"Write {number!r}." if float in options else ""
    return f"Write {int(number)}." if int in options or float in options else ""


def cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def shown(node: Node) -> str:
    if not isinstance(node, ScalarNode):
        return "a list" if isinstance(node, SequenceNode) else "a mapping"
    text = cut(node.value)
    return "nothing" if is_empty(node) else f"{text!r} in quotes" if node.style is not None else text


def described(expected: Any) -> str:
    """Returns the name of a type, for a sentence."""
    if len(options_of(expected)) > 1:
        return " or ".join(described(option) for option in get_args(expected))
    if get_origin(expected) is Literal:
        choices = [str(choice) or '""' for choice in get_args(expected)]
        return ("one of " if len(choices) > 1 else "") + ", ".join(choices)
    if get_origin(expected) is tuple:
        kinds = get_args(expected)
        return "a list" if kinds[-1] is Ellipsis else f"a list of {len(kinds)} values"
    if dataclasses.is_dataclass(expected) or get_origin(expected) is dict:
        return "a section of key: value lines"
    if expected not in _WORDS:
        raise TypeError(f"A configuration cannot hold a {expected}; see the types in lib/config/reader.py")
    return _WORDS[expected]


def options_of(expected: Any) -> tuple[Any, ...]:
    """Returns the members of a union, a text last, because any scalar is one."""
    members = get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)
    return tuple(sorted(members, key=lambda member: member is str))
