"""YAML to typed, frozen dataclasses.

Every mistake in a file is reported at once, with line and column.

Scalars are read by the type of their field, not by YAML's guesses (which make `1e-3` a text, `no`
False and `010` 8). A length may be given in steps or in epochs: a field `x_epochs` replaces
`x_steps`, and `epochs` for `max_steps`.
"""

import dataclasses
import difflib
import math
import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, is_dataclass
from functools import cache
from operator import ge, gt, le, lt
from pathlib import Path, PurePath
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from yaml import MappingNode, Mark, Node, ScalarNode, SequenceNode
from yaml.composer import ComposerError

from lib.config.files import read_text
from lib.errors import BadInput, printable

BAD: Any = object()  # in place of a value whose mistake has been reported
_MOST_VALUES = 20_000
_MOST_LEVELS = 40  # of a file; levels of brackets
_MOST_MISTAKES = 50  # that are shown
_NUMBERS = {
    int: re.compile(r"[-+]?(0|[1-9][0-9]{0,17})"),
    float: re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"),
}
_NULLS = {"": None, "~": None, "null": None}
_CONSTANTS: dict[Any, dict[str, Any]] = {
    bool: {"true": True, "false": False},
    types.NoneType: _NULLS,
}
_TYPES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    types.NoneType: "null",
}
_BOUNDS = {
    "minimum": ("at least", ge), "above": ("above", gt), "maximum": ("at most", le), "below": ("below", lt),
    "limit": ("at most", le),
}  # fmt: skip


def option(default: Any, help: str, **bounds: float) -> Any:
    """Returns a field with a sentence of help and bounds of its numbers.

    The bounds are `minimum`, `maximum`, `above` and `below`. A `limit` is a bound far above
    sensible numbers, against endless runs. With `path=True` a text is the path of a file or folder,
    which counts from the folder of the file that gives it.
    """
    kind: Any = "default_factory" if default is dict else "default"
    return dataclasses.field(**{kind: default}, metadata={"help": help, **bounds})


def keys(cls: Any) -> list[dataclasses.Field]:
    """Returns the fields of a dataclass that are keys of the configuration."""
    return [f for f in dataclasses.fields(cls) if f.metadata.get("key", True)]


def flat(config: Any, prefix: str = "") -> dict[str, object]:
    """Returns the value of every dotted key, in the order of the fields."""
    values: dict[str, object] = {}
    for f in keys(config):
        value = getattr(config, f.name)
        key = prefix + f.name
        if is_dataclass(value):
            values |= flat(value, f"{key}.")
        elif isinstance(value, dict) and value and all(map(is_dataclass, value.values())):
            for name, section in value.items():
                values |= flat(section, f"{key}.{name}.")
        else:
            values[key] = value
    return values


def sentences(cls: Any, prefix: str = "") -> dict[str, str]:
    """Returns the help of every dotted key; for a section, the docstring of its class."""
    hints = get_type_hints(cls)
    texts = {}
    for f in keys(cls):
        hint = hints[f.name]
        key = prefix + f.name
        texts[key] = f.metadata.get("help", "")
        if is_dataclass(hint):
            texts[key] = f.metadata.get("help", hint.__doc__ or "")
            texts |= sentences(hint, f"{key}.")
    return texts


def other_unit(name: str) -> str | None:
    """Returns the other form of a length: warmup_steps for warmup_epochs, and back."""
    if name == "epochs":
        return "max_steps"
    if name == "max_steps":
        return "epochs"
    stem, _, unit = name.rpartition("_")
    if stem:
        return {"epochs": f"{stem}_steps", "steps": f"{stem}_epochs"}.get(unit)
    return None


def length_pairs(cls: type) -> list[tuple[str, str]]:
    """Returns the names (in epochs, in steps) of the lengths that a section has in both forms."""
    names = {f.name: other_unit(f.name) for f in dataclasses.fields(cls)}
    pairs = [(name, other) for name, other in names.items() if name.endswith("epochs")]
    return [(epochs, steps) for epochs, steps in pairs if steps is not None and steps in names]


def described(expected: Any) -> str:
    """Returns the name of a type, for a sentence.

    Raises KeyError for one that no configuration can hold.
    """
    kind = get_origin(expected)
    members = get_args(expected)
    if kind in (Union, types.UnionType):
        return " or ".join(map(described, members))
    if kind is Literal:
        choices = ", ".join(str(choice) or '""' for choice in members)
        return f"one of {choices}" if len(members) > 1 else choices
    if kind is tuple:
        if members[-1] is Ellipsis:
            return "a list"
        return f"a list of {len(members)} values"
    if is_dataclass(expected) or kind is dict:
        return "a section of key: value lines"
    return _TYPES[expected]


@cache
def words() -> list[dict[str, str]]:
    """Returns other programs' names of keys: rows with `elsewhere`, `here` and `how`."""
    return yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))


def plain(name: str) -> str:
    """Returns the last part of a name in lower case, letters and digits only."""
    return "".join(filter(str.isalnum, name.rpartition(".")[2].lower()))


def child(mapping: MappingNode, name: str | None) -> Node | None:
    return next((value for key, value in mapping.value if key.value == name), None)


def from_folder(text: str, mark: Mark) -> str:
    """Returns a path from the working folder; what lies beside the file that gives it comes first."""
    try:
        path = Path(mark.name).parent / text
        if mark.line >= 0 and text and path.exists():
            return str(path)
        return text
    except (OSError, ValueError):  # too long, a NUL: its use reports it
        return text


def _scalar(expected: Any, node: Node) -> Any:
    """Converts a scalar to the expected type, or returns BAD. Only a text may be in quotes."""
    if not isinstance(node, ScalarNode):
        return BAD
    text = node.value
    is_bare = node.style is None
    if expected is str or get_origin(expected) is Literal:
        if text in (get_args(expected) or (text,)) and not (is_bare and not text):
            return text
        return BAD
    if expected in _CONSTANTS:
        if is_bare:
            return _CONSTANTS[expected].get(text.lower(), BAD)
        return BAD
    is_number = is_bare and expected in _NUMBERS and _NUMBERS[expected].fullmatch(text)
    if is_number and math.isfinite(value := expected(text)):
        return value
    return BAD


def _shown(node: Node) -> str:
    if not isinstance(node, ScalarNode):
        return "a list" if isinstance(node, SequenceNode) else "a mapping"
    text = printable(node.value, most=40)
    if node.style is not None:
        return f"{text!r} in quotes"
    return text or "nothing"


def _place(mark: Mark) -> str:
    """Returns `file.yaml:12:5`; for an override its name."""
    name = printable(mark.name, most=500)
    if mark.line < 0:
        return name
    return f"{name}:{mark.line + 1}:{mark.column + 1}"


def _order(mistake: tuple[Mark, str]) -> tuple[bool, str, int, int]:
    mark = mistake[0]
    return mark.line < 0, mark.name, mark.line, mark.column


def _is_empty(node: Node | None) -> bool:
    return isinstance(node, ScalarNode) and node.style is None and not node.value


def _put(mapping: MappingNode, name: str, mark: Mark, node: Node) -> None:
    others = [pair for pair in mapping.value if pair[0].value != name]
    mapping.value = [*others, (ScalarNode("", name, mark), node)]


def _merge(node: MappingNode, base: MappingNode) -> None:
    """Adds the keys of `base` that `node` lacks; one form of a length counts as both.

    Mappings are merged by key.
    """
    for key, value in base.value:
        mine = child(node, key.value)
        if isinstance(mine, MappingNode) and isinstance(value, MappingNode):
            _merge(mine, value)
        elif mine is None and child(node, other_unit(key.value)) is None:
            node.value.append((key, value))
        elif _is_empty(mine) and isinstance(value, MappingNode):
            places = [place for place, pair in enumerate(node.value) if pair[1] is mine]
            for place in places:
                node.value[place] = (node.value[place][0], value)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Composes nodes, all with one `mark` if given.

    Reports repeated keys; refuses tags and aliases.
    """

    def __init__(
        self, text: str, name: str, report: Callable[[Any, str], Any], mark: Mark | None = None
    ):
        super().__init__(text)
        self.name = name
        self.report = report
        self.mark = mark
        self.count = 0  # the name is in every mark

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()
        self.count += 1
        if isinstance(event, yaml.AliasEvent) or event.tag or self.count > _MOST_VALUES:
            problem = "an alias (*) or a tag (!) is not supported; write the plain value"
            if self.count > _MOST_VALUES:
                problem = f"there are more than {_MOST_VALUES:,} values"
            raise ComposerError(None, None, problem, event.start_mark)
        node = super().compose_node(parent, index)
        node.start_mark = self.mark or node.start_mark
        return node

    def fetch_flow_collection_start(self, token: type) -> None:
        if self.flow_level > _MOST_LEVELS:  # the scanner reads ahead of the composer
            raise RecursionError
        super().fetch_flow_collection_start(token)

    def compose_mapping_node(self, anchor: str | None) -> MappingNode:
        node = super().compose_mapping_node(anchor)
        pairs: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self.report(
                    key, "A key must be a plain name, not a list or a mapping. Put it into quotes."
                )
            elif key.value in pairs:
                line = pairs[key.value][0].start_mark.line + 1
                self.report(
                    key,
                    f"The key {key.value} is given twice, first in line {line}. Keep one of them.",
                )
            else:
                pairs[key.value] = (key, value)
        node.value = [*pairs.values()]
        return node


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is MISSING:
        return field.default
    return field.default_factory()


def _settle_lengths(
    values: dict[str, Any], pairs: list[tuple[str, str]], given: Collection[str], prefix: str
) -> list[tuple[str, str]]:
    """Clears the form of each length that is not given; returns a mistake for each given in both."""
    mistakes = []
    for epochs, steps in pairs:
        if epochs in given and steps not in given:
            values[steps] = 0
        elif steps in given and epochs not in given:
            values[epochs] = 0.0
        elif BAD not in (values[epochs], values[steps]) and values[epochs] and values[steps]:
            both = f"{prefix}{epochs} and {prefix}{steps}"
            mistakes.append((epochs, f"{both} are two forms of one length. Give one of them."))
    return mistakes


class Reader:
    """Checks YAML nodes against types and collects every mistake with its place.

    `removed` maps keys of earlier versions to a sentence to print; `main` maps sections to the key
    that a single value stands for; `types` has types that a class leaves open; `known` are all
    keys. A class may have a static method `mistakes(values)`, which yields (field, sentence).
    """

    def __init__(self, removed: Mapping[str, str], main: Mapping[str, str] | None = None) -> None:
        self.removed = removed
        self.main = main or {}
        self.mistakes: list[tuple[Mark, str]] = []
        self.types: dict[str, Any] = {}
        self.known: list[str] = []

    def report(self, at: Any, sentence: str) -> Any:
        """Adds a mistake at a mark, or at the begin of a node; returns BAD."""
        sentence = printable(
            sentence.strip(), most=2000
        )  # with keys and values of an untrusted file
        self.mistakes.append((at if isinstance(at, Mark) else at.start_mark, sentence))
        return BAD

    def finish(self) -> None:
        """Raises BadInput with all mistakes, in the order of the files and overrides last."""
        if self.mistakes:
            in_order = sorted(self.mistakes, key=_order)[:_MOST_MISTAKES]
            raise BadInput("\n".join(f"{_place(mark)}: {sentence}" for mark, sentence in in_order))

    def root(self, text: str, name: str, advice: str) -> MappingNode:
        """Returns the one mapping that a file must hold; `advice` is for an empty one."""

        def behind(before: str) -> Mark:
            column = len(before) - before.rfind("\n") - 1
            return Mark(name, 0, before.count("\n"), column, None, None)

        try:
            node = _Loader(text, name, self.report).get_single_node()
            if isinstance(node, MappingNode):
                self._lengthen(node)
                return node
            problem = "does not consist of key: value lines"
            if node is None or _is_empty(node):
                problem = "is empty"
            self.report(node or behind(""), f"The file {problem}. {advice}")
        except yaml.MarkedYAMLError as error:
            self.report(
                error.problem_mark or error.context_mark,
                f"This is not YAML: {error.problem}. Check indentation (spaces alone), quotes, "
                "brackets and colons, here and just above.",
            )
        except yaml.reader.ReaderError as error:
            self.report(
                behind(text[: error.position]), "This character is not allowed in YAML. Delete it."
            )
        except RecursionError:
            self.report(
                behind(""), "The file is nested too deeply. Look for brackets that are not closed."
            )
        self.finish()
        raise AssertionError("unreachable")

    def _lengthen(self, root: MappingNode) -> None:
        """Writes a section that is given as a single value, as `folds: 5`, with its main key."""
        for place, (name, value) in enumerate(root.value):
            main = self.main.get(name.value)
            if main and isinstance(value, ScalarNode) and not _is_empty(value):
                pair = (ScalarNode("", main, value.start_mark), value)
                root.value[place] = (name, MappingNode("", [pair], value.start_mark))

    def merge_base(self, root: MappingNode, path: Path) -> None:
        """Adds the keys that the file named by `base` gives and the one at `path` does not.

        Raises BadInput.
        """
        if (name := child(root, "base")) is None:
            return
        root.value = [pair for pair in root.value if pair[1] is not name]
        try:
            file = name.value if isinstance(name, ScalarNode) else ""
            if not file or Path(file).name != file:
                raise BadInput(
                    f"base must be the name of a file beside this one; found {_shown(name)}."
                )
            base = path.with_name(file)
            text = read_text(base)
        except BadInput as error:
            self.report(name, str(error))
            self.finish()
        _merge(root, self.root(text, str(base), f"It is the base of {path.name}."))

    def override(self, root: MappingNode, key: str, value: object) -> Any:
        """Sets a dotted key in place of either form of its length; returns the node, or BAD."""
        mark = Mark(f"override {key}", 0, -1, -1, None, None)
        *sections, last = key.split(".")
        top = root
        for name in sections:
            if (inner := child(root, name)) is None or _is_empty(inner):
                _put(root, name, mark, inner := MappingNode("", [], mark))
            if not isinstance(inner, MappingNode):
                return self.report(
                    mark,
                    f"{name} is a single value, which has no keys below it. Give a section's key.",
                )
            root = inner
        node = self._override_node(value, mark)
        if node is BAD:
            return BAD
        _put(root, last, mark, node)
        self._lengthen(top)
        other = child(root, other_unit(last))
        if other and other.start_mark.line >= 0 and _scalar(float, node) != 0:
            root.value = [pair for pair in root.value if pair[1] is not other]
        return node

    def _override_node(self, value: object, mark: Mark) -> Any:
        """Returns the node of an override's value, or BAD. Text without a bracket is a scalar."""
        text = str(value)
        is_text = isinstance(value, str | PurePath)
        if is_text and text.lstrip()[:1] not in ("[", "{"):
            return ScalarNode("", text, mark, style=None if text else "'")

        def report(_: Any, sentence: str) -> Any:
            return self.report(mark, sentence)

        try:
            if not is_text:
                text = yaml.safe_dump(value, default_flow_style=True)
            return _Loader(text, "", report, mark).get_single_node()
        except (yaml.YAMLError, RecursionError):
            shown = printable(repr(value), most=40)
            return report(None, f"The value {shown} is no number, text, list or mapping of YAML.")

    def section(self, cls: type, node: MappingNode, key: str, base: Any = MISSING) -> Any:
        """Returns an instance of a dataclass, or BAD. `base` gives the defaults."""
        hints = get_type_hints(cls)
        prefix = f"{key}." if key else ""
        entries = {name.value: (name, value) for name, value in node.value}
        fields = {f.name: f for f in keys(cls)}
        values: dict[str, Any] = {}
        for name in [name for name in entries if name not in fields]:
            self._unknown(entries.pop(name)[0], key, prefix + name, list(fields))
        for name, f in fields.items():
            expected = self.types.get(prefix + name, hints[name])
            default = getattr(base, name, _default(f))
            if name in entries:
                given = entries[name][1]
                values[name] = self._value(expected, given, prefix + name, f.metadata, default)
            else:
                values[name] = self._absent(expected, node, prefix + name, f.metadata, default)
        mistakes = _settle_lengths(values, length_pairs(cls), entries.keys(), prefix)
        is_bad = any(value is BAD for value in values.values())
        if not is_bad and hasattr(cls, "mistakes"):
            mistakes += cls.mistakes(values)
        for name, sentence in mistakes:
            self.report(entries[name][0] if name in entries else node, sentence)
        if is_bad:
            return BAD
        try:
            return cls(**values)
        except ValueError as error:  # from the __post_init__ of a task's own settings
            return self.report(node, f"{key}: {error}")

    def _absent(
        self, expected: Any, section: Node, key: str, metadata: Mapping[str, Any], default: Any
    ) -> Any:
        """Returns the value of a key that a section lacks, or BAD if it has no default."""
        if is_dataclass(expected) and not isinstance(default, expected):  # type: ignore[arg-type]
            return self.section(expected, MappingNode("", [], section.start_mark), key)  # type: ignore[arg-type]
        if default is MISSING:
            advice = metadata.get("help", "Add it.")
            return self.report(section, f"The key {key} is missing. {advice}")
        if metadata.get("path") and isinstance(default, str):  # searched like a given one
            return from_folder(default, section.start_mark)
        return default

    def _unknown(self, node: Node, section: str, path: str, names: list[str]) -> None:
        """Reports an unknown key with advice; prints a sentence on a removed one."""
        if path in self.removed:
            notice = printable(f"{path} is no longer a key and is ignored. {self.removed[path]}")
            print(f"{_place(node.start_mark)}: {notice}", file=sys.stderr)
            return
        name = printable(node.value, most=40)
        place = f"in {section}" if section else "at the top"
        self.report(node, f"There is no key {name} {place}. {self._advice(name, names)}")

    def _advice(self, name: str, names: list[str]) -> str:
        """Returns the name of an unknown key here, or the nearest key."""
        for row in reversed(words()) if self.known else ():
            if plain(name) in map(plain, row["elsewhere"].split()):
                here = " and ".join(row["here"].split())
                return f"It is {f'called {here}' if here else 'no key'} here. {row['how']}"
        tails = {key.rpartition(".")[2]: key for key in reversed(self.known)}
        tail = name.rpartition(".")[2]
        if tail in tails:
            return f"Did you mean {tails[tail]}?"
        if near := difflib.get_close_matches(name, names, 1):
            return f"Did you mean {near[0]}?"
        if near := difflib.get_close_matches(tail, tails, 1, 0.75):
            return f"Did you mean {tails[near[0]]}?"
        return f"Known here: {', '.join(names) or 'no key'}."

    def _value(
        self, expected: Any, node: Node, key: str, bounds: Mapping[str, Any], base: Any = MISSING
    ) -> Any:
        """Returns the value of a node by the expected type, or BAD."""
        if expected is Any:
            return BAD
        members = (expected,)
        if get_origin(expected) in (Union, types.UnionType):
            members = get_args(expected)
        if _is_empty(node) and any(map(is_dataclass, members)):
            # a section whose lines are all commented out
            node = MappingNode("", [], node.start_mark)
        for member in sorted(members, key=lambda member: member is str):  # any scalar is a text
            kind = get_origin(member)
            if is_dataclass(member) and isinstance(node, MappingNode):
                return self.section(member, node, key, base)  # type: ignore[arg-type]
            if kind is dict and isinstance(node, MappingNode):
                return self._mapping(get_args(member)[1], node, key, bounds)
            if kind is tuple and isinstance(node, SequenceNode):
                return self._sequence(member, node, key, bounds)
            value = _scalar(member, node)
            if value is BAD:
                continue
            if member is str and bounds.get("path"):
                return from_folder(value, node.start_mark)
            return self._bounded(value, node, key, bounds)
        return self.report(node, f"{key} must be {described(expected)}; found {_shown(node)}.")

    def _mapping(self, expected: Any, node: MappingNode, key: str, bounds: Mapping) -> Any:
        """Returns a dict by name, or BAD."""
        values = {}
        for name, value in node.value:
            values[name.value] = self._value(expected, value, f"{key}.{name.value}", bounds)
        if any(value is BAD for value in values.values()):
            return BAD
        return values

    def _sequence(self, expected: Any, node: SequenceNode, key: str, bounds: Mapping) -> Any:
        """Returns a tuple, or BAD."""
        kinds = get_args(expected)
        count = len(node.value)
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * count
        if len(kinds) != count:
            return self.report(node, f"{key} must be {described(expected)}; found {count} of them.")
        items = []
        for i, (kind, item) in enumerate(zip(kinds, node.value, strict=True)):
            items.append(self._value(kind, item, f"{key}[{i}]", bounds))
        if any(item is BAD for item in items):
            return BAD
        return tuple(items)

    def _bounded(self, value: Any, node: Node, key: str, bounds: Mapping[str, Any]) -> Any:
        """Returns a scalar, or BAD for a number out of bounds."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            limits = [(*_BOUNDS[name], bounds[name]) for name in _BOUNDS if name in bounds]
            if not all(holds(value, limit) for _, holds, limit in limits):
                text = " and ".join(f"{words} {limit:,}" for words, _, limit in limits)
                return self.report(node, f"{key} must be {text}; found {_shown(node)}.")
        return value
