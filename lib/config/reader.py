"""YAML to typed, frozen dataclasses. Every mistake in a file is reported at once, with line and column.

Scalars are read by the type of their field, not by YAML's guesses (which make `1e-3` a text, `no` False and `010` 8).
A length may be given in steps or in epochs: a field `x_epochs` stands for `x_steps`, and `epochs` for `max_steps`.
"""

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING
from operator import ge, gt, le, lt
from pathlib import Path, PurePath
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from yaml import MappingNode, Mark, Node, ScalarNode, SequenceNode

from lib.errors import BadInput


def option(default: Any, help: str, **bounds: float) -> Any:
    """A field with one sentence of help and bounds of the numbers in it: `minimum`, `maximum`, `above`, `below`."""
    return dataclasses.field(default=default, metadata={"help": help, **bounds})


def flat(config: Any) -> dict[str, object]:
    """Dotted keys and their values, in the order of the fields."""
    found: dict[str, object] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        inner = flat(value) if dataclasses.is_dataclass(value) else None
        found |= {f.name: value} if inner is None else {f"{f.name}.{key}": v for key, v in inner.items()}
    return found


def sentences(cls: type, prefix: str = "") -> dict[str, str]:
    """The sentence of help for every dotted key; for a section, the docstring of its class."""
    hints, found = get_type_hints(cls), {}
    for f in dataclasses.fields(cls):
        section = dataclasses.is_dataclass(hints[f.name])
        found[prefix + f.name] = f.metadata.get("help", (hints[f.name].__doc__ or "") if section else "")
        if section:
            found |= sentences(hints[f.name], f"{prefix}{f.name}.")
    return found


def other_unit(name: str) -> str | None:
    """The other form of a length: max_steps and epochs, warmup_steps and warmup_epochs."""
    if name in ("epochs", "max_steps"):
        return "epochs" if name == "max_steps" else "max_steps"
    stem, _, unit = name.rpartition("_")
    return {"epochs": f"{stem}_steps", "steps": f"{stem}_epochs"}.get(unit) if stem else None


def length_pairs(cls: type) -> list[tuple[str, str]]:
    names = [f.name for f in dataclasses.fields(cls)]
    return [(n, other) for n in names if n.endswith("epochs") and (other := other_unit(n)) in names]


def _path(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: The file cannot be read ({error.strerror}). Give the path of a YAML file.") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _position(raw[: error.start].decode("utf-8-sig", "replace"))
        raise BadInput(f"{path}:{line + 1}:{column + 1}: The file is not UTF-8 here. Save it as UTF-8.") from None


def _position(before: str) -> tuple[int, int]:
    return before.count("\n"), len(before) - before.rfind("\n") - 1


BAD: Any = object()  # stands for a value whose mistake has been reported
REFUSED = "refused"  # the tag of a node whose mistake has been reported
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", types.NoneType: "null"}
_BOUNDS = {"minimum": ("at least", ge), "above": ("above", gt), "maximum": ("at most", le), "below": ("below", lt)}


class _Loader(yaml.SafeLoader):
    """Composes nodes; reports tags, and keys that are given twice, which PyYAML settles in silence."""

    def __init__(self, text: str, name: str, report: Callable[[Any, str], Any]):
        super().__init__(text)
        self.name, self.report = name, report  # the name stands in every mark

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()
        if not (tag := getattr(event, "tag", None)):
            return super().compose_node(parent, index)
        self.report(event, f"The tag {tag} is not supported. Write the plain value.")
        event.tag = None
        node = super().compose_node(parent, index)
        node.tag = REFUSED
        return node

    def compose_mapping_node(self, anchor: str | None) -> MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self.report(key, "A key must be a plain name, not a list or a mapping. Put it into quotes.")
            elif key.value in first:
                line = first[key.value][0].start_mark.line + 1
                self.report(key, f"The key {key.value} is given twice, first in line {line}. Keep one of them.")
            else:
                first[key.value] = (key, value)
        node.value = list(first.values())
        return node


class Reader:
    """Checks YAML nodes against types and collects every mistake with its place.

    `types` gives the types of dotted keys that their class leaves open; `known` are all dotted keys, for advice. A
    section's class may have a static method `mistakes(values)` that yields (field, sentence) for what does not go
    together.
    """

    def __init__(self) -> None:
        self.mistakes: list[tuple[Mark, str]] = []
        self.types: dict[str, Any] = {}
        self.known: list[str] = []
        self.wanted = ""  # the sentence for a file with nothing in it

    def report(self, at: Any, sentence: str) -> Any:
        """Notes a mistake at a mark, or where a node or an event begins."""
        self.mistakes.append((at if isinstance(at, Mark) else at.start_mark, sentence.strip()))
        return BAD

    def finish(self) -> None:
        """Raises BadInput if there were mistakes, in the order of the file; those in overrides are last."""
        lines = []
        for mark, sentence in sorted(self.mistakes, key=lambda m: (m[0].line < 0, m[0].line, m[0].column)):
            place = mark.name if mark.line < 0 else f"{mark.name}:{mark.line + 1}:{mark.column + 1}"
            lines.append(f"{place}: {sentence}")
        if lines:
            raise BadInput("\n".join(lines))

    def root(self, text: str, name: str) -> MappingNode:
        """The one mapping that a file must hold."""
        root: Node | None = None
        at = Mark(name, 0, 0, 0, None, None)
        try:
            root = _Loader(text, name, self.report).get_single_node()
            if not isinstance(root, MappingNode):
                what = "is empty" if root is None or _empty(root) else "does not consist of key: value lines"
                self.report(root or at, f"The file {what}. {self.wanted}")
        except yaml.MarkedYAMLError as error:
            self.report(error.problem_mark or error.context_mark or at, _not_yaml(error))
        except yaml.reader.ReaderError as error:
            mark = Mark(name, 0, *_position(text[: error.position]), None, None)
            self.report(mark, "This character is not allowed in YAML. Delete it.")
        except RecursionError:
            self.report(at, "The file is nested too deeply. Look for brackets that are not closed.")
        if not isinstance(root, MappingNode):
            self.finish()
        return root  # type: ignore[return-value]

    def override(self, root: MappingNode, key: str, value: object) -> None:
        """Puts a value at a dotted key, and takes away the other form of a length that the file gives."""
        mark = Mark(f"override {key}", 0, -1, -1, None, None)
        *sections, last = key.split(".")
        mapping = root
        for name in sections:
            inner = child(mapping, name)
            if inner is None or _empty(inner):
                inner = _put(mapping, name, mark, MappingNode("", [], mark))
            if not isinstance(inner, MappingNode):
                self.report(mark, f"{name} is a single value, which has no keys below it. Give a key in a section.")
                return
            mapping = inner
        node = _put(mapping, last, mark, self.override_node(value, mark))
        other = child(mapping, other_unit(last) or "")
        if other and other.start_mark.line >= 0 and _convert(float, node) != 0:
            mapping.value = [pair for pair in mapping.value if pair[1] is not other]

    def override_node(self, value: object, mark: Mark) -> Node:
        """The nodes of a value, all of them placed at the override. A text is one scalar unless it opens a bracket."""
        if isinstance(value, str | PurePath) and str(value).lstrip()[:1] not in ("[", "{"):
            return ScalarNode("", str(value), mark, style=None if str(value) else "'")
        try:
            text = str(value) if isinstance(value, str | PurePath) else yaml.safe_dump(value, default_flow_style=True)
            waiting = [_Loader(text, "", lambda at, sentence: self.report(mark, sentence)).get_single_node()]
        except yaml.YAMLError:
            self.report(mark, f"The value {value!r} cannot be read. Give a number, a text, a list or a mapping.")
            return ScalarNode(REFUSED, "", mark)
        for node in waiting:  # grows while it is walked
            if node.start_mark is not mark and not isinstance(node, ScalarNode):
                waiting += [n for item in node.value for n in (item if isinstance(item, tuple) else (item,))]
            node.start_mark = mark
        return waiting[0]

    def section(self, cls: type, node: MappingNode, key: str, base: Any = MISSING) -> Any:
        """An instance of a dataclass, or BAD; what is not given is as in `base`, the default of the field above."""
        hints = get_type_hints(cls)
        given = {k.value: (k, v) for k, v in node.value}
        fields = {f.name: f for f in dataclasses.fields(cls)}
        for name in [n for n in given if n not in fields]:
            self.report(given.pop(name)[0], self.unknown(key, name, list(fields)))
        values: dict[str, Any] = {}
        for name, f in fields.items():
            path, default = _path(key, name), _default(f, base)
            expected = self.types.get(path, hints[name])
            if name in given:
                values[name] = self.value(expected, given[name][1], path, f.metadata, default)
            elif dataclasses.is_dataclass(expected) and not isinstance(default, expected):
                values[name] = self.section(expected, MappingNode("", [], node.start_mark), path)
            elif default is MISSING:
                values[name] = self.report(node, f"The key {path} is missing. {f.metadata.get('help', 'Add it.')}")
            else:
                values[name] = default
        together = getattr(cls, "mistakes", lambda _: ())
        for name, sentence in (*_settle_lengths(cls, values, given, key), *together(values)):
            self.report(given[name][0] if name in given else node, sentence)
        if any(value is BAD for value in values.values()):
            return BAD
        try:
            return cls(**values)
        except ValueError as error:  # from the __post_init__ of a task's own settings
            return self.report(node, f"{key}: {error}")

    def unknown(self, section: str, name: str, names: list[str]) -> str:
        """The sentence about an unknown key: where that name lives, or the nearest one."""
        elsewhere = [key for key in self.known if name in (key, key.rpartition(".")[2])]
        near = difflib.get_close_matches(name, names, 1)
        if not near and not elsewhere:
            tails = {key.rpartition(".")[2]: key for key in reversed(self.known)}
            near = [tails[tail] for tail in difflib.get_close_matches(name, tails, 1, 0.75)]
        advice = f" It belongs elsewhere, as {' or '.join(elsewhere)}." if elsewhere else ""
        advice += f" Did you mean {near[0]}?" if near else ""
        advice = advice or f" Known here: {', '.join(names) or 'no key'}."
        return f"There is no key {name} {f'in {section}' if section else 'at the top'}.{advice}"

    def value(self, expected: Any, node: Node, key: str, bounds: Mapping[str, Any], base: Any = MISSING) -> Any:
        """The value of a node by the expected type, or BAD."""
        if expected is Any or node.tag == REFUSED:
            return BAD
        options = _options(expected)
        if _empty(node) and any(dataclasses.is_dataclass(option) for option in options):
            node = MappingNode("", [], node.start_mark)  # a section whose lines are all commented out
        for option in options:
            if dataclasses.is_dataclass(option) and isinstance(node, MappingNode):
                return self.section(option, node, key, base)
            if get_origin(option) is dict and isinstance(node, MappingNode):
                inner = get_args(option)[1]
                found = {k.value: self.value(inner, v, _path(key, k.value), bounds) for k, v in node.value}
                return BAD if any(v is BAD for v in found.values()) else found
            if get_origin(option) is tuple and isinstance(node, SequenceNode):
                return self.items(option, node, key, bounds)
            if isinstance(node, ScalarNode) and (value := _convert(option, node)) is not BAD:
                return self.bounded(value, node, key, bounds)
        wanted = _words(expected)
        return self.report(node, f"{key} must be {wanted}; found {_found(node)}. {_hint(options, node)}")

    def items(self, expected: Any, node: SequenceNode, key: str, bounds: Mapping[str, Any]) -> Any:
        """A list as a tuple, or BAD."""
        kinds = get_args(expected)
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(node.value)
        if len(kinds) != len(node.value):
            return self.report(node, f"{key} must be {_words(expected)}; found {len(node.value)} of them.")
        pairs = enumerate(zip(kinds, node.value, strict=True))
        found = tuple(self.value(kind, item, f"{key}[{i}]", bounds) for i, (kind, item) in pairs)
        return BAD if any(value is BAD for value in found) else found

    def bounded(self, value: Any, node: Node, key: str, bounds: Mapping[str, Any]) -> Any:
        """The value, or BAD where it is a number out of its bounds."""
        limits = {name: bounds[name] for name in _BOUNDS if name in bounds}
        if isinstance(value, bool | str | None) or all(_BOUNDS[n][1](value, limit) for n, limit in limits.items()):
            return value
        words = " and ".join(f"{_BOUNDS[name][0]} {limit}" for name, limit in limits.items())
        return self.report(node, f"{key} must be {words}; found {_found(node)}.")


def _convert(expected: Any, node: Node) -> Any:
    """A scalar as the expected type, or BAD. Only a text may stand in quotes."""
    if not isinstance(node, ScalarNode):
        return BAD
    text = node.value
    if expected is str:
        return BAD if _empty(node) else text
    if get_origin(expected) is Literal:
        pairs = ((choice, _convert(type(choice), node)) for choice in get_args(expected))
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


def _hint(options: tuple[Any, ...], node: Node) -> str:
    """What to write instead, where that can be told from the text."""
    if not isinstance(node, ScalarNode) or not node.value:
        return "Give a value, or delete the line." if isinstance(node, ScalarNode) else ""
    if node.style is not None:
        bare = ScalarNode("", node.value, node.start_mark)
        return "Write it without quotes." if any(_convert(option, bare) is not BAD for option in options) else ""
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


def _found(node: Node) -> str:
    if not isinstance(node, ScalarNode):
        return "a list" if isinstance(node, SequenceNode) else "a mapping"
    shown = node.value if len(node.value) <= 40 else f"{node.value[:37]}..."
    return "nothing" if _empty(node) else f"{shown!r} in quotes" if node.style is not None else shown


def _words(expected: Any) -> str:
    """The name of a type, for a sentence."""
    if len(_options(expected)) > 1:
        return " or ".join(_words(option) for option in get_args(expected))
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


def _options(expected: Any) -> tuple[Any, ...]:
    """The members of a union, a text last, because everything is one."""
    members = get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)
    return tuple(sorted(members, key=lambda member: member is str))


def _not_yaml(error: yaml.MarkedYAMLError) -> str:
    if "\\t" in (error.problem or ""):
        return "A tab stands here. Indent with spaces."
    if "single document" in (error.context or ""):
        return "A second document begins here. Keep one, without further --- lines."
    return f"This is not YAML: {error.problem}. Check indentation, quotes, brackets and colons, here and just above."


def _empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style is None and not node.value


def child(mapping: MappingNode, name: str) -> Node | None:
    return next((value for key, value in mapping.value if key.value == name), None)


def _put(mapping: MappingNode, name: str, mark: Mark, node: Node) -> Node:
    mapping.value = [pair for pair in mapping.value if pair[0].value != name]
    mapping.value.append((ScalarNode("", name, mark), node))
    return node


def _default(field: dataclasses.Field, base: Any) -> Any:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return getattr(base, field.name, default)


def _settle_lengths(
    cls: type, values: dict[str, Any], given: Mapping[str, Any], section: str
) -> Iterator[tuple[str, str]]:
    """A length given in one form alone clears the other, whatever its default; both are a mistake."""
    for epochs, steps in length_pairs(cls):
        if epochs in given and steps not in given:
            values[steps] = 0
        elif steps in given and epochs not in given:
            values[epochs] = 0.0
        elif values[epochs] is not BAD and values[steps] is not BAD and values[epochs] and values[steps]:
            one, other = _path(section, epochs), _path(section, steps)
            yield epochs, f"{one} and {other} are two forms of one length. Give one of them."
