"""YAML to typed, frozen dataclasses. Every mistake in a file is reported at once, with line and column.

Scalars are read by the type of their field, not by YAML's guesses (which make `1e-3` a text, `no` False and `010` 8).
A length may be given in steps or in epochs: a field `x_epochs` stands for `x_steps`, and `epochs` for `max_steps`.
"""

import dataclasses
import difflib
import math
import re
import sys
import types
from collections.abc import Callable, Mapping
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

BAD: Any = object()  # stands for a value whose mistake has been reported
_MOST_VALUES = 20_000
_MOST_LEVELS = 40  # of a file; levels of brackets
_MOST_MISTAKES = 50  # that are shown
_NUMBERS = {
    int: re.compile(r"[-+]?(0|[1-9][0-9]{0,17})"),
    float: re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"),
}
_CONSTANTS: dict[Any, dict[str, Any]] = {
    bool: {"true": True, "false": False}, types.NoneType: {"": None, "~": None, "null": None},
}  # fmt: skip
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
    """Returns a field with a sentence of help and bounds of its numbers: `minimum`, `maximum`, `above`, `below`.

    A `limit` is a bound far above sensible numbers, against what would take for ever.
    With `path=True` a text is the path of a file or folder, which counts from the folder of the file that gives it.
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
        if isinstance(value, dict) and value and all(map(is_dataclass, value.values())):
            by_name = value
        else:
            by_name = {}
        for name, section in {"": value}.items() if is_dataclass(value) else by_name.items():
            values |= flat(section, f"{key}.{name}." if name else f"{key}.")
        if not (is_dataclass(value) or by_name):
            values[key] = value
    return values


def sentences(cls: type, prefix: str = "") -> dict[str, str]:
    """Returns the help of every dotted key; for a section, the docstring of its class."""
    hints = get_type_hints(cls)
    texts = {}
    for f in keys(cls):
        is_section = is_dataclass(hints[f.name])
        texts[prefix + f.name] = f.metadata.get(
            "help", (hints[f.name].__doc__ or "") if is_section else ""
        )
        texts |= sentences(hints[f.name], f"{prefix}{f.name}.") if is_section else {}
    return texts


def other_unit(name: str) -> str | None:
    """Returns the other form of a length: max_steps for epochs, warmup_steps for warmup_epochs, and back."""
    if name in ("epochs", "max_steps"):
        return "epochs" if name == "max_steps" else "max_steps"
    stem, _, unit = name.rpartition("_")
    if stem:
        return {"epochs": f"{stem}_steps", "steps": f"{stem}_epochs"}.get(unit)
    return None


def length_pairs(cls: type) -> list[tuple[str, str]]:
    """Returns the names (in epochs, in steps) of the lengths that a section has in both forms."""
    names = [f.name for f in dataclasses.fields(cls)]
    return [(n, other) for n in names if n.endswith("epochs") and (other := other_unit(n)) in names]


def described(expected: Any) -> str:
    """Returns the name of a type, for a sentence. Raises KeyError for one that no configuration can hold."""
    kind = get_origin(expected)
    members = get_args(expected)
    if kind in (Union, types.UnionType):
        return " or ".join(map(described, members))
    if kind is Literal:
        return ("one of " if len(members) > 1 else "") + ", ".join(
            str(choice) or '""' for choice in members
        )
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
    """Returns the last part of a name without what is only spelling: numTrainEpochs, num-train-epochs."""
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
    except (OSError, ValueError):  # too long, a NUL: whoever uses it reports it
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
    """Returns `file.yaml:12:5`, or the name alone of what is no file."""
    name = printable(mark.name, most=500)
    if mark.line < 0:
        return name
    return f"{name}:{mark.line + 1}:{mark.column + 1}"


def _is_empty(node: Node | None) -> bool:
    return isinstance(node, ScalarNode) and node.style is None and not node.value


def _put(mapping: MappingNode, name: str, mark: Mark, node: Node) -> None:
    mapping.value = [pair for pair in mapping.value if pair[0].value != name] + [
        (ScalarNode("", name, mark), node)
    ]


def _merge(node: MappingNode, base: MappingNode) -> None:
    """Adds the keys of `base` that `node` lacks; one form of a length stands for both. Mappings are merged by key."""
    for key, value in base.value:
        mine = child(node, key.value)
        if isinstance(mine, MappingNode) and isinstance(value, MappingNode):
            _merge(mine, value)
        elif mine is None and child(node, other_unit(key.value)) is None:
            node.value.append((key, value))
        elif _is_empty(mine) and isinstance(value, MappingNode):
            node.value = [(k, value if v is mine else v) for k, v in node.value]


class _Loader(yaml.SafeLoader):
    """Composes nodes, all with one `mark` if given. Reports repeated keys; refuses tags and aliases."""

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
            many = f"there are more than {_MOST_VALUES:,} values"
            problem = "an alias (*) or a tag (!) is not supported"
            problem = many if self.count > _MOST_VALUES else f"{problem}; write the plain value"
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


class Reader:
    """Checks YAML nodes against types and collects every mistake with its place.

    `removed` maps keys of earlier versions to a sentence to print; `types` has types that a class leaves open; `known`
    are all keys. A class may have a static method `mistakes(values)`, which yields (field, sentence).
    """

    def __init__(self, removed: Mapping[str, str]) -> None:
        self.removed = removed
        self.mistakes: list[tuple[Mark, str]] = []
        self.types: dict[str, Any] = {}
        self.known: list[str] = []

    def report(self, at: Any, sentence: str) -> Any:
        """Adds a mistake at a mark, or where a node begins; returns BAD."""
        sentence = printable(
            sentence.strip(), most=2000
        )  # with keys and values of an untrusted file
        self.mistakes.append((at if isinstance(at, Mark) else at.start_mark, sentence))
        return BAD

    def finish(self) -> None:
        """Raises BadInput if there are mistakes, in the order of the files; those in overrides come last."""
        order = sorted(
            self.mistakes, key=lambda m: (m[0].line < 0, m[0].name, m[0].line, m[0].column)
        )
        if order:
            raise BadInput(
                "\n".join(
                    f"{_place(mark)}: {sentence}" for mark, sentence in order[:_MOST_MISTAKES]
                )
            )

    def root(self, text: str, name: str, advice: str) -> MappingNode:
        """Returns the one mapping that a file must hold; `advice` says what to write into an empty one."""

        def behind(before: str) -> Mark:
            return Mark(
                name, 0, before.count("\n"), len(before) - before.rfind("\n") - 1, None, None
            )

        try:
            node = _Loader(text, name, self.report).get_single_node()
            if isinstance(node, MappingNode):
                return node
            what = (
                "is empty"
                if node is None or _is_empty(node)
                else "does not consist of key: value lines"
            )
            self.report(node or behind(""), f"The file {what}. {advice}")
        except yaml.MarkedYAMLError as error:
            advice = "Check indentation (spaces alone), quotes, brackets and colons, here and just above."
            self.report(
                error.problem_mark or error.context_mark,
                f"This is not YAML: {error.problem}. {advice}",
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

    def merge_base(self, root: MappingNode, path: Path) -> None:
        """Adds the keys that the file named by `base` gives and the one at `path` does not. Raises BadInput."""
        if (name := child(root, "base")) is None:
            return
        root.value = [pair for pair in root.value if pair[1] is not name]
        try:
            if (
                not isinstance(name, ScalarNode)
                or not name.value
                or Path(name.value).name != name.value
            ):
                raise BadInput(
                    f"base must be the name of a file beside this one; found {_shown(name)}."
                )
            base = path.with_name(name.value)
            text = read_text(path.with_name(name.value))
        except BadInput as error:
            self.report(name, str(error))
            self.finish()
        _merge(root, self.root(text, str(base), f"It is the base of {path.name}."))

    def override(self, root: MappingNode, key: str, value: object) -> Any:
        """Sets a dotted key, and deletes the other form of a length that the file gives; returns the node, or BAD."""
        mark = Mark(f"override {key}", 0, -1, -1, None, None)
        *sections, last = key.split(".")
        for name in sections:
            if (inner := child(root, name)) is None or _is_empty(inner):
                _put(root, name, mark, inner := MappingNode("", [], mark))
            if not isinstance(inner, MappingNode):
                return self.report(
                    mark,
                    f"{name} is a single value, which has no keys below it. Give a section's key.",
                )
            root = inner
        is_text = isinstance(value, str | PurePath)
        node = ScalarNode("", str(value), mark, style=None if str(value) else "'")
        if not is_text or str(value).lstrip()[:1] in ("[", "{"):  # any other text is a scalar
            try:
                text = str(value) if is_text else yaml.safe_dump(value, default_flow_style=True)
                node = _Loader(
                    text, "", lambda _, sentence: self.report(mark, sentence), mark
                ).get_single_node()
            except (yaml.YAMLError, RecursionError):
                text = printable(repr(value), most=40)
                return self.report(
                    mark, f"The value {text} is no number, text, list or mapping of YAML."
                )
        _put(root, last, mark, node)
        other = child(root, other_unit(last))
        if other and other.start_mark.line >= 0 and _scalar(float, node) != 0:
            root.value = [pair for pair in root.value if pair[1] is not other]
        return node

    def section(self, cls: type, node: MappingNode, key: str, base: Any = MISSING) -> Any:
        """Returns an instance of a dataclass, or BAD. Defaults are those of `base`, the default of the field above."""
        hints = get_type_hints(cls)
        prefix = f"{key}." if key else ""
        entries = {k.value: (k, v) for k, v in node.value}
        fields = {f.name: f for f in keys(cls)}
        values = {}
        for name in [n for n in entries if n not in fields]:
            self._unknown(entries.pop(name)[0], key, prefix + name, list(fields))
        for name, f in fields.items():
            path = prefix + name
            expected = self.types.get(prefix + name, hints[name])
            default = getattr(
                base, name, f.default if f.default_factory is MISSING else f.default_factory()
            )
            if name in entries:
                values[name] = self._value(expected, entries[name][1], path, f.metadata, default)
            elif is_dataclass(expected) and not isinstance(default, expected):
                values[name] = self.section(expected, MappingNode("", [], node.start_mark), path)
            elif default is MISSING:
                values[name] = self.report(
                    node, f"The key {path} is missing. {f.metadata.get('help', 'Add it.')}"
                )
            else:  # a file that a default names is looked for where one that is given would be
                is_path = f.metadata.get("path") and isinstance(default, str)
                values[name] = from_folder(default, node.start_mark) if is_path else default
        mistakes = []
        for epochs, steps in length_pairs(cls):  # the form of a length that is not given is cleared
            if (epochs in entries) != (steps in entries):
                values[steps if epochs in entries else epochs] = 0 if epochs in entries else 0.0
            elif BAD not in (values[epochs], values[steps]) and values[epochs] and values[steps]:
                both = f"{prefix}{epochs} and {prefix}{steps}"
                mistakes.append((epochs, f"{both} are two forms of one length. Give one of them."))
        is_bad = any(value is BAD for value in values.values())
        for name, sentence in [
            *mistakes,
            *([] if is_bad else getattr(cls, "mistakes", lambda _: ())(values)),
        ]:
            self.report(entries[name][0] if name in entries else node, sentence)
        try:
            return BAD if is_bad else cls(**values)
        except ValueError as error:  # from the __post_init__ of a task's own settings
            return self.report(node, f"{key}: {error}")

    def _unknown(self, node: Node, section: str, path: str, names: list[str]) -> None:
        """Reports an unknown key with its name here, or the nearest; prints a sentence on a removed one."""
        if path in self.removed:
            notice = printable(f"{path} is no longer a key and is ignored. {self.removed[path]}")
            print(f"{_place(node.start_mark)}: {notice}", file=sys.stderr)
            return
        tails = {key.rpartition(".")[2]: key for key in reversed(self.known)}
        tail = (name := printable(node.value, most=40)).rpartition(".")[2]
        if tail in tails:
            near = [tails[tail]]
        else:
            near = difflib.get_close_matches(name, names, 1)
        near = near or [tails[other] for other in difflib.get_close_matches(tail, tails, 1, 0.75)]
        if near:
            advice = f"Did you mean {near[0]}?"
        else:
            advice = f"Known here: {', '.join(names) or 'no key'}."
        for row in words() if self.known else ():
            if plain(name) in map(plain, row["elsewhere"].split()):
                here = " and ".join(row["here"].split())
                advice = f"It is {f'called {here}' if here else 'no key'} here. {row['how']}"
        self.report(
            node, f"There is no key {name} {f'in {section}' if section else 'at the top'}. {advice}"
        )

    def _value(
        self, expected: Any, node: Node, key: str, bounds: Mapping[str, Any], base: Any = MISSING
    ) -> Any:
        """Returns the value of a node by the expected type, or BAD."""
        if expected is Any:
            return BAD
        if get_origin(expected) in (Union, types.UnionType):
            members = get_args(expected)
        else:
            members = (expected,)
        if _is_empty(node) and any(map(is_dataclass, members)):
            node = MappingNode(
                "", [], node.start_mark
            )  # a section whose lines are all commented out
        for member in sorted(members, key=lambda member: member is str):  # any scalar is a text
            kind = get_origin(member)
            inner = get_args(member)
            if is_dataclass(member) and isinstance(node, MappingNode):
                return self.section(member, node, key, base)  # type: ignore[arg-type]
            if kind is dict and isinstance(node, MappingNode):
                values = {
                    k.value: self._value(inner[1], v, f"{key}.{k.value}", bounds)
                    for k, v in node.value
                }
                if any(value is BAD for value in values.values()):
                    return BAD
                return values
            if kind is tuple and isinstance(node, SequenceNode):
                if inner[-1] is Ellipsis:
                    kinds = inner[:1] * len(node.value)
                else:
                    kinds = inner
                if len(kinds) != len(node.value):
                    return self.report(
                        node, f"{key} must be {described(member)}; found {len(node.value)} of them."
                    )
                pairs = enumerate(zip(kinds, node.value, strict=True))
                items = tuple(
                    self._value(kind, item, f"{key}[{i}]", bounds) for i, (kind, item) in pairs
                )
                if any(item is BAD for item in items):
                    return BAD
                return items
            if (value := _scalar(member, node)) is BAD:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            limits = {name: bounds[name] for name in _BOUNDS if is_number and name in bounds}
            if not all(_BOUNDS[name][1](value, limit) for name, limit in limits.items()):
                text = " and ".join(
                    f"{_BOUNDS[name][0]} {limit:,}" for name, limit in limits.items()
                )
                return self.report(node, f"{key} must be {text}; found {_shown(node)}.")
            if member is str and bounds.get("path"):
                return from_folder(value, node.start_mark)
            return value
        return self.report(node, f"{key} must be {described(expected)}; found {_shown(node)}.")
