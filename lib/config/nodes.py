"""YAML nodes with their places: composed strictly, read from text, merged, and changed by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from yaml import MappingNode, Mark, Node, ScalarNode

from lib.errors import BadInput

REFUSED = "refused"  # the tag of a node whose mistake has been reported


def read_text(path: Path) -> str:
    """Reads a UTF-8 file. Raises BadInput, with line and column of the first byte that is not UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: The file cannot be read ({error.strerror}). Give the path of a YAML file.") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = position(raw[: error.start].decode("utf-8-sig", "replace"))
        raise BadInput(f"{path}:{line + 1}:{column + 1}: The file is not UTF-8 here. Save it as UTF-8.") from None


def position(before: str) -> tuple[int, int]:
    """Returns line and column, from 0, of the place behind a text."""
    return before.count("\n"), len(before) - before.rfind("\n") - 1


class Loader(yaml.SafeLoader):
    """Composes nodes and reports tags, and repeated keys, of which PyYAML keeps the last without a word."""

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
    return mark.name if mark.line < 0 else f"{mark.name}:{mark.line + 1}:{mark.column + 1}"
