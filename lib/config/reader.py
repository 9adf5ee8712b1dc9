"""YAML to typed, frozen dataclasses. Every mistake in a file is reported at once, with line and column.

Scalars are read by the type of their field, not by YAML's guesses (which make `1e-3` a text, `no` False and `010` 8).
A length may be given in steps or in epochs: a field `x_epochs` stands for `x_steps`, and `epochs` for `max_steps`.
"""

import dataclasses
import difflib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING
from operator import ge, gt, le, lt
from pathlib import Path, PurePath
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from yaml import MappingNode, Mark, Node, ScalarNode, SequenceNode

from lib.config.files import beside
from lib.config.nodes import REFUSED, Loader, child, is_empty, not_yaml, place, position, put, read_text
from lib.config.values import BAD, convert, cut, described, hint, options_of, shown
from lib.errors import BadInput, printable

_MOST_MISTAKES = 50  # that are listed; advice for each of thousands would take minutes


def option(default: Any, help: str, **bounds: float) -> Any:
    """Returns a field with a sentence of help and bounds of its numbers: `minimum`, `maximum`, `above`, `below`.

    A `limit` is a bound far above sensible numbers, against what would take for ever: a message names it only there.
    With `path=True` a text is the path of a file or folder, which counts from the folder of the file that gives it.
    """
    return dataclasses.field(default=default, metadata={"help": help, **bounds})


def keys(cls: Any) -> list[dataclasses.Field]:
    """Returns the fields of a dataclass that are keys of the configuration."""
    return [f for f in dataclasses.fields(cls) if f.metadata.get("key", True)]


def flat(config: Any, prefix: str = "") -> dict[str, object]:
    """Returns the value of every dotted key, in the order of the fields."""
    values: dict[str, object] = {}
    for f in keys(config):
        value = getattr(config, f.name)
        key = prefix + f.name
        sections = value if isinstance(value, dict) and all(map(dataclasses.is_dataclass, value.values())) else {}
        for name, section in sections.items():
            values |= flat(section, f"{key}.{name}.")
        if not sections:
            values |= flat(value, f"{key}.") if dataclasses.is_dataclass(value) else {key: value}
    return values


def sentences(cls: type, prefix: str = "") -> dict[str, str]:
    """Returns the help of every dotted key; for a section, the docstring of its class."""
    hints, texts = get_type_hints(cls), {}
    for f in keys(cls):
        section = dataclasses.is_dataclass(hints[f.name])
        texts[prefix + f.name] = f.metadata.get("help", (hints[f.name].__doc__ or "") if section else "")
        if section:
            texts |= sentences(hints[f.name], f"{prefix}{f.name}.")
    return texts


def other_unit(name: str) -> str | None:
    """Returns the other form of a length: max_steps for epochs, warmup_steps for warmup_epochs, and back."""
    if name in ("epochs", "max_steps"):
        return "epochs" if name == "max_steps" else "max_steps"
    stem, _, unit = name.rpartition("_")
    return {"epochs": f"{stem}_steps", "steps": f"{stem}_epochs"}.get(unit) if stem else None


def length_pairs(cls: type) -> list[tuple[str, str]]:
    """Returns the names (in epochs, in steps) of the lengths that a section has in both forms."""
    names = [f.name for f in dataclasses.fields(cls)]
    return [(n, other) for n in names if n.endswith("epochs") and (other := other_unit(n)) in names]


def _path(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


_BOUNDS = {"minimum": ("at least", ge), "above": ("above", gt), "maximum": ("at most", le), "below": ("below", lt)}


class Reader:
    """Checks YAML nodes against types and collects every mistake with its place.

    `removed` maps dotted keys of earlier versions to a sentence, which is printed where one is given. `types` gives the
    types of dotted keys that their class leaves open; `known` are all dotted keys, for advice. `about` returns a
    sentence on an unknown key that other programs have, and `synonyms` has their words for values, by dotted key. A
    section's class may have a static method `mistakes(values)` that yields (field, sentence) for values that contradict
    each other.
    """

    def __init__(self, removed: Mapping[str, str]) -> None:
        self.removed = removed
        self.mistakes: list[tuple[Mark, str]] = []
        self.types: dict[str, Any] = {}
        self.known: list[str] = []
        self.about: Callable[[str], str] = lambda name: ""
        self.synonyms: Mapping[str, Mapping[str, str]] = {}

    def report(self, at: Any, sentence: str) -> Any:
        """Adds a mistake at a mark, or where a node or an event begins; returns BAD."""
        sentence = printable(sentence.strip(), most=2000)  # with keys and values of a file that may be anybody's
        self.mistakes.append((at if isinstance(at, Mark) else at.start_mark, sentence))
        return BAD

    def finish(self) -> None:
        """Raises BadInput if there are mistakes, in the order of the files; those in overrides come last."""
        order = sorted(
            self.mistakes, key=lambda m: (m[0].line < 0, m[0].line >= 0 and m[0].name, m[0].line, m[0].column)
        )
        if order:
            lines = [f"{place(mark)}: {sentence}" for mark, sentence in order[:_MOST_MISTAKES]]
            more = [f"and {len(order) - len(lines):,} more"] if len(order) > len(lines) else []
            raise BadInput("\n".join([*lines, *more]))

    def root(self, text: str, name: str, advice: str) -> MappingNode:
        """Returns the one mapping that a file must hold; `advice` says what to write into an empty one."""
        root: Node | None = None
        at = Mark(name, 0, 0, 0, None, None)
        try:
            root = Loader(text, name, self.report).get_single_node()
            if not isinstance(root, MappingNode):
                what = "is empty" if root is None or is_empty(root) else "does not consist of key: value lines"
                self.report(root or at, f"The file {what}. {advice}")
        except yaml.MarkedYAMLError as error:
            self.report(error.problem_mark or error.context_mark or at, not_yaml(error))
        except yaml.reader.ReaderError as error:
            mark = Mark(name, 0, *position(text[: error.position]), None, None)
            self.report(mark, "This character is not allowed in YAML. Delete it.")
        except RecursionError:
            self.report(at, "The file is nested too deeply. Look for brackets that are not closed.")
        if not isinstance(root, MappingNode):
            self.finish()
        return root  # type: ignore[return-value]

    def merge_base(self, root: MappingNode, path: Path) -> None:
        """Adds the keys that the file named by `base` gives and the one at `path` does not. Raises BadInput."""
        name = child(root, "base")
        if name is None:
            return
        root.value = [pair for pair in root.value if pair[1] is not name]
        try:
            if not isinstance(name, ScalarNode) or not name.value:
                raise BadInput(f"base must be the name of a file; found {shown(name)}.")
            if Path(name.value).name != name.value:
                raise BadInput(f"base must be the name of a file beside this one; found {shown(name)}.")
            other = path.parent / name.value
            text = read_text(other)
        except BadInput as error:
            self.report(name, str(error))
        self.finish()
        base = self.root(text, str(other), f"It is the base of {path.name}.")
        if second := child(base, "base"):
            self.report(second, f"{other.name} is the base of {path.name}, so it cannot have a base itself.")
            self.finish()
        _merge(root, base)

    def override(self, root: MappingNode, key: str, value: object) -> None:
        """Sets a dotted key, and deletes the other form of a length that the file gives."""
        mark = Mark(f"override {key}", 0, -1, -1, None, None)
        *sections, last = key.split(".")
        mapping = root
        for name in sections:
            inner = child(mapping, name)
            if inner is None or is_empty(inner):
                inner = put(mapping, name, mark, MappingNode("", [], mark))
            if not isinstance(inner, MappingNode):
                self.report(mark, f"{name} is a single value, which has no keys below it. Give a key in a section.")
                return
            mapping = inner
        node = put(mapping, last, mark, self.override_node(value, mark))
        other = child(mapping, other_unit(last) or "")
        if other and other.start_mark.line >= 0 and convert(float, node) != 0:
            mapping.value = [pair for pair in mapping.value if pair[1] is not other]

    def override_node(self, value: object, mark: Mark) -> Node:
        """Returns the node of a value, marked as the override. A text is one scalar unless it opens a bracket."""
        if isinstance(value, str | PurePath) and str(value).lstrip()[:1] not in ("[", "{"):
            return ScalarNode("", str(value), mark, style=None if str(value) else "'")
        try:
            text = str(value) if isinstance(value, str | PurePath) else yaml.safe_dump(value, default_flow_style=True)
            waiting = [Loader(text, "", lambda at, sentence: self.report(mark, sentence)).get_single_node()]
        except (yaml.YAMLError, RecursionError):
            self.report(
                mark, f"The value {cut(repr(value))} cannot be read. Give a number, a text, a list or a mapping."
            )
            return ScalarNode(REFUSED, "", mark)
        for node in waiting:  # grows while it is walked
            if node.start_mark is not mark and not isinstance(node, ScalarNode):
                waiting += [n for item in node.value for n in (item if isinstance(item, tuple) else (item,))]
            node.start_mark = mark
        return waiting[0]

    def section(self, cls: type, node: MappingNode, key: str, base: Any = MISSING) -> Any:
        """Returns an instance of a dataclass, or BAD. Defaults are those of `base`, the default of the field above."""
        hints = get_type_hints(cls)
        entries = {k.value: (k, v) for k, v in node.value}
        fields = {f.name: f for f in keys(cls)}
        for name in [n for n in entries if n not in fields]:
            at, path = entries.pop(name)[0], _path(key, name)
            if path in self.removed:
                notice = printable(f"{path} is no longer a key and is ignored. {self.removed[path]}")
                print(f"{place(at.start_mark)}: {notice}", file=sys.stderr)
            else:
                self.report(at, self.unknown(key, name, list(fields)))
        values: dict[str, Any] = {}
        for name, f in fields.items():
            path = _path(key, name)
            default = getattr(base, name, f.default if f.default_factory is MISSING else f.default_factory())
            expected = self.types.get(path, hints[name])
            if name in entries:
                values[name] = self.value(expected, entries[name][1], path, f.metadata, default)
            elif dataclasses.is_dataclass(expected) and not isinstance(default, expected):
                values[name] = self.section(expected, MappingNode("", [], node.start_mark), path)
            elif default is MISSING:
                values[name] = self.report(node, f"The key {path} is missing. {f.metadata.get('help', 'Add it.')}")
            else:  # a file that a default names is looked for where one that is given would be
                is_path = f.metadata.get("path") and isinstance(default, str) and default
                values[name] = self.path(default, node, path) if is_path else default
        together = getattr(cls, "mistakes", lambda _: ())
        for name, sentence in (*_settle_lengths(cls, values, entries, key), *together(values)):
            self.report(entries[name][0] if name in entries else node, sentence)
        if any(value is BAD for value in values.values()):
            return BAD
        try:
            return cls(**values)
        except ValueError as error:  # from the __post_init__ of a task's own settings
            return self.report(node, f"{key}: {error}")

    def unknown(self, section: str, name: str, names: list[str]) -> str:
        """Returns the sentence about an unknown key: the section that has that name, its name here, or the nearest."""
        if len(self.mistakes) >= _MOST_MISTAKES:
            return f"There is no key {cut(name)}."
        elsewhere = [key for key in self.known if name in (key, key.rpartition(".")[2])]
        name, foreign = cut(name), self.about(name)
        near = [] if foreign else difflib.get_close_matches(name, names, 1)
        if not near and not elsewhere and not foreign:
            tails = {key.rpartition(".")[2]: key for key in reversed(self.known)}
            near = [tails[tail] for tail in difflib.get_close_matches(name, tails, 1, 0.75)]
        advice = f" It belongs elsewhere, as {' or '.join(elsewhere)}." if elsewhere else ""
        advice += f" {foreign}" if foreign else f" Did you mean {near[0]}?" if near else ""
        advice = advice or f" Known here: {', '.join(names) or 'no key'}."
        return f"There is no key {name} {f'in {section}' if section else 'at the top'}.{advice}"

    def value(self, expected: Any, node: Node, key: str, bounds: Mapping[str, Any], base: Any = MISSING) -> Any:
        """Returns the value of a node by the expected type, or BAD."""
        if expected is Any or node.tag == REFUSED:
            return BAD
        options = options_of(expected)
        if is_empty(node) and any(dataclasses.is_dataclass(option) for option in options):
            node = MappingNode("", [], node.start_mark)  # a section whose lines are all commented out
        for option in options:
            if dataclasses.is_dataclass(option) and isinstance(node, MappingNode):
                return self.section(option, node, key, base)
            if get_origin(option) is dict and isinstance(node, MappingNode):
                inner = get_args(option)[1]
                values = {k.value: self.value(inner, v, _path(key, k.value), bounds) for k, v in node.value}
                return BAD if any(v is BAD for v in values.values()) else values
            if get_origin(option) is tuple and isinstance(node, SequenceNode):
                return self.items(option, node, key, bounds)
            if isinstance(node, ScalarNode) and (value := convert(option, node)) is not BAD:
                is_path = option is str and bounds.get("path")
                return self.path(value, node, key) if is_path else self.bounded(value, node, key, bounds)
        ours = self.synonyms.get(key, {}).get(node.value, "") if isinstance(node, ScalarNode) else ""
        takes = any(convert(option, ScalarNode("", ours)) is not BAD for option in options)
        advice = f"It is called {ours} here." if takes else hint(options, node)
        return self.report(node, f"{key} must be {described(expected)}; found {shown(node)}. {advice}")

    def items(self, expected: Any, node: SequenceNode, key: str, bounds: Mapping[str, Any]) -> Any:
        """Returns a list as a tuple, or BAD."""
        kinds = get_args(expected)
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(node.value)
        if len(kinds) != len(node.value):
            return self.report(node, f"{key} must be {described(expected)}; found {len(node.value)} of them.")
        pairs = enumerate(zip(kinds, node.value, strict=True))
        values = tuple(self.value(kind, item, f"{key}[{i}]", bounds) for i, (kind, item) in pairs)
        return BAD if any(value is BAD for value in values) else values

    def path(self, text: str, node: Node, key: str) -> str:
        """Returns a path that a file gives, as it is found from the working folder: what lies beside that file first.

        One that is given as override counts from the working folder, and so does one that is not there.
        """
        folder = Path(node.start_mark.name).parent if node.start_mark.line >= 0 else Path()
        found, hidden = beside(folder, text)
        if hidden:
            sentence = f"{key} is {found}, which lies beside this file. {text} in the working folder is not taken."
            print(f"{place(node.start_mark)}: {printable(sentence, most=2000)}", file=sys.stderr)
        return found

    def bounded(self, value: Any, node: Node, key: str, bounds: Mapping[str, Any]) -> Any:
        """Returns the value, or BAD where it is a number out of its bounds."""
        limits = {name: bounds[name] for name in _BOUNDS if name in bounds}
        if isinstance(value, int | float) and value > bounds.get("limit", math.inf):
            return self.report(node, f"{key} must be at most {bounds['limit']:,.0f}; found {shown(node)}.")
        if isinstance(value, bool | str | None) or all(_BOUNDS[n][1](value, limit) for n, limit in limits.items()):
            return value
        words = " and ".join(f"{_BOUNDS[name][0]} {limit}" for name, limit in limits.items())
        return self.report(node, f"{key} must be {words}; found {shown(node)}.")


def _merge(node: MappingNode, base: MappingNode) -> None:
    """Adds the keys of `base` that `node` lacks; one form of a length stands for both. Mappings are merged by key."""
    for key, value in base.value:
        own, other_form = child(node, key.value), child(node, other_unit(key.value) or "")
        if isinstance(own, MappingNode) and isinstance(value, MappingNode):
            _merge(own, value)
        elif (not own and not other_form) or (own and is_empty(own) and isinstance(value, MappingNode)):
            put(node, key.value, key.start_mark, value)


def _settle_lengths(cls: type, values: dict[str, Any], entries: Mapping, section: str) -> Iterator[tuple[str, str]]:
    """Clears the form of a length that is not given, whatever its default; yields a mistake where both are."""
    for epochs, steps in length_pairs(cls):
        if epochs in entries and steps not in entries:
            values[steps] = 0
        elif steps in entries and epochs not in entries:
            values[epochs] = 0.0
        elif values[epochs] is not BAD and values[steps] is not BAD and values[epochs] and values[steps]:
            both = f"{_path(section, epochs)} and {_path(section, steps)}"
            yield epochs, f"{both} are two forms of one length. Give one of them."
