"""Lists of labels, which numbers in the place of roles belong to: a file beside the documents, or the classes."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from workloads.legal.document import one_line

Names = Mapping[int, str]
FILES = ("labels", "label_list", "label_names", "classes", "roles", "id2label", "label2id", "label_map")
KEYS = ("label_list", "label_names", "labels", "classes", "names", "roles", "id2label", "label2id")
_MOST_BYTES = 2**16
_NUMBERS, _NAMES = {"id", "index", "number"}, {"name", "label", "role"}
# "0 PREAMBLE", "0: PREAMBLE"; "PREAMBLE 0", "PREAMBLE = 0"
_LINES = tuple(
    re.compile(pattern)
    for pattern in (r"(?P<number>\d{1,4})[\s:,;=.)]+(?P<name>.*\S)", r"(?P<name>.*\S)[\s:,;=]+(?P<number>\d{1,4})")
)


class LabelLists:
    """The lists of labels beside the files below a folder; each folder is looked through once."""

    def __init__(self, root: Path, classes: Sequence[str] = ()):
        self.root, self.classes = root, dict(enumerate(classes))
        self._found: dict[Path, Names] = {}

    def of(self, path: Path) -> Names:
        """Returns the list nearest to a file, in its folder or one above it, else the classes.

        Raises BadInput for several in a folder.
        """
        for folder in path.parents:
            if folder not in self._found:
                self._found[folder] = _list_in(folder)
            if self._found[folder]:
                return self._found[folder]
            if folder == self.root:
                break
        return self.classes


def is_label_list(path: Path) -> bool:
    """Says whether a JSON file lists the names of roles alone."""
    try:
        value = json.loads(read_bytes(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return bool(names(value) or (isinstance(value, dict) and len(value) == 1 and names_in(value, KEYS)))


def names_in(value: Any, keys: Sequence[str]) -> Names:
    """Returns the list of labels that an object has under one of its keys."""
    found = (names(value.get(key)) for key in keys) if isinstance(value, dict) else ()
    return next(filter(None, found), {})


def names(value: Any) -> Names:
    """Returns the names by number of a list of names, or of an object of numbers by name or names by number.

    A list may also have an object of number and name for each.
    """
    if isinstance(value, list) and len(value) > 1 and all(isinstance(one, str) for one in value):
        return dict(enumerate(map(one_line, value)))
    if isinstance(value, list) and all(isinstance(one, dict) and len(one) == 2 for one in value):
        pairs = [(_one_of(one, _NAMES), _one_of(one, _NUMBERS)) for one in value]
        value = dict(pairs) if all(isinstance(name, str) for name, _ in pairs) else {}
    if not isinstance(value, dict) or len(value) < 2:
        return {}
    if all(isinstance(name, str) and _is_number(number) for name, number in value.items()):
        return {number: one_line(name) for name, number in value.items()}
    if all(isinstance(name, str) and number.isdecimal() for number, name in value.items()):
        return {int(number): one_line(name) for number, name in value.items()}
    return {}


def _one_of(value: Mapping[str, Any], keys: set[str]) -> Any:
    return next((own for key, own in value.items() if key in keys), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list_in(folder: Path) -> Names:
    """Returns the list of labels in a folder; of files by what they hold only where none is called labels."""
    called, others = {}, {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in (".json", ".txt") and path.is_file():
            is_called = path.stem.lower() in FILES
            if found := _of_file(path, is_called):
                (called if is_called else others)[path.name] = found
    lists = called or others
    if len({tuple(sorted(found.items())) for found in lists.values()}) > 1:
        shown = ", ".join(map(printable, lists))
        raise BadInput(f"{printable(folder)} has several lists of labels, {shown}. Leave one of them there.")
    return next(iter(lists.values()), {})


def _of_file(path: Path, is_called: bool) -> Names:
    if path.suffix.lower() == ".txt" and not is_called:
        return {}
    try:
        text = read_bytes(path, _MOST_BYTES).decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            value = json.loads(text)
            return names(value) or (names_in(value, KEYS) if is_called else {})
    except (OSError, ValueError, RecursionError):
        return {}
    return _of_lines([one_line(line) for line in text.splitlines() if line.strip()])


def _of_lines(lines: Sequence[str]) -> Names:
    """Returns the names of lines in their order, or by the number that each of them begins or ends with."""
    for pattern in _LINES:
        found = [match for match in map(pattern.fullmatch, lines) if match]
        numbered = {int(match["number"]): match["name"] for match in found}
        if len(lines) == len(numbered) == len({*numbered.values()}):
            return numbered if len(lines) > 1 else {}
    return names([*lines])
