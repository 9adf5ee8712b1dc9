"""YAML nodes with their places: composed strictly, read from text, merged, and changed by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from yaml import MappingNode, Mark, Node, ScalarNode
from yaml.composer import ComposerError

from lib.config.files import read_bytes
from lib.errors import BadInput, printable

REFUSED = "refused"  # the tag of a node whose mistake has been reported
_MOST_BYTES = 2**20  # of a file; the largest here has 13,000
_MOST_VALUES = 20_000  # of a file, those of an alias counted where they are used
_MOST_LEVELS = 40  # of brackets, and of sections inside of sections


def read_text(path: Path) -> str:
    """Reads a UTF-8 file. Raises BadInput, with line and column of the first byte that is not UTF-8."""
    try:
        raw = read_bytes(path, _MOST_BYTES)
    except (OSError, ValueError) as error:  # a ValueError for a path with a NUL
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{shown_path(path)}: The file cannot be read ({why}). Give the path of a YAML file.") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = position(raw[: error.start].decode("utf-8-sig", "replace"))
        where = f"{shown_path(path)}:{line + 1}:{column + 1}"
        raise BadInput(f"{where}: The file is not UTF-8 here. Save it as UTF-8.") from None


def shown_path(path: Path) -> str:
    return printable(path, most=500)


def position(before: str) -> tuple[int, int]:
    """Returns line and column, from 0, of the place behind a text."""
    return before.count("\n"), len(before) - before.rfind("\n") - 1


class Loader(yaml.SafeLoader):
    """Composes nodes and reports tags, and repeated keys, of which PyYAML keeps the last without a word."""

    def __init__(self, text: str, name: str, report: Callable[[Any, str], Any]):
        super().__init__(text)
        self.name, self.report = name, report  # the name stands in every mark
        self._values = self._level = 0
        self._sizes: dict[int, int] = {}  # by the identity of a node that is composed to its end

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Composes the next node.

        Raises ComposerError where there are too many or one contains itself, RecursionError where it is too deep.
        """
        event, before = self.peek_event(), self._values
        self._level += 1
        if self._level > _MOST_LEVELS:
            raise RecursionError
        node = self._compose(parent, index, event)
        self._level -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1
            self._sizes[id(node)] = self._values - before
        elif id(node) not in self._sizes:
            self._refuse(f"the alias {event.anchor} stands inside of what it names", event.start_mark)
        else:
            self._values += self._sizes[id(node)]
        if self._values > _MOST_VALUES:
            self._refuse(f"there are more than {_MOST_VALUES:,} values", event.start_mark)
        return node

    def fetch_flow_collection_start(self, token: type) -> None:
        if self.flow_level > _MOST_LEVELS:  # a bracket may begin a key, so the scanner reads ahead of the composer
            raise RecursionError
        super().fetch_flow_collection_start(token)

    def _refuse(self, problem: str, mark: Mark) -> None:
        raise ComposerError(None, None, problem, mark)

    def _compose(self, parent: Node | None, index: Any, event: Any) -> Node | None:
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


def not_yaml(error: yaml.MarkedYAMLError) -> str:
    """Returns the sentence about an error of PyYAML's parser."""
    if "\\t" in (error.problem or ""):
        return "There is a tab here. Indent with spaces."
    if "single document" in (error.context or ""):
        return "A second document begins here. Keep one, without further --- lines."
    return f"This is not YAML: {error.problem}. Check indentation, quotes, brackets and colons, here and just above."


def is_empty(node: Node) -> bool:
    """Whether nothing is written behind a key."""
    return isinstance(node, ScalarNode) and node.style is None and not node.value


def child(mapping: MappingNode, name: str) -> Node | None:
    """Returns the value of a key, if it is given."""
    return next((value for key, value in mapping.value if key.value == name), None)


def put(mapping: MappingNode, name: str, mark: Mark, node: Node) -> Node:
    """Sets the value of a key, whose place is `mark`, and returns it."""
    mapping.value = [pair for pair in mapping.value if pair[0].value != name]
    mapping.value.append((ScalarNode("", name, mark), node))
    return node


def place(mark: Mark) -> str:
    """Returns `file.yaml:12:5`, or the name alone of what is no file."""
    name = printable(mark.name, most=500)
    return name if mark.line < 0 else f"{name}:{mark.line + 1}:{mark.column + 1}"
