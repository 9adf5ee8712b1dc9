"""Reads files of conversations: JSON lines, JSON lists, and tables. Refuses other records by their line."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lib import untrusted
from lib.errors import BadInput, first_ten, printable
from trainbook.supervised import coverage, json_rows, tables
from trainbook.supervised.notes import note
from trainbook.supervised.tables import read_text
from workloads.chat.messages import (
    Turns,
    begins_with_answer,
    check_answers,
    is_of_columns,
    is_record,
    is_talk,
    turns_of,
    without_first,
)

_JSON = (".jsonl", ".ndjson", ".json")
_TABLES = (".csv", ".tsv", ".parquet")
SUFFIXES = (*_JSON, *_TABLES)
_MOST_NAMED = 20  # keys in a sentence
_LINE = re.compile(r"\r\n|\n|\r")  # other line ends of str.splitlines do not count
_HALF = re.compile("[\ud800-\udfff]")  # half a letter, which JSON may hold
_FORMS = "Give messages (role, content), conversations (from, value), or prompt and answer, as JSON objects"

_DECODER = json.JSONDecoder(object_pairs_hook=json_rows.object_of)
Values = list[tuple[int, Any]]  # line and value, or the BadInput of an unreadable line


def read_records(source: Path, is_new: bool = False) -> dict[Path, list[tuple[str, Turns]]]:
    """Returns place and turns of each row by file, for a file or a folder. New data needs no answers.

    Notes unknown keys and left-out files. Raises BadInput that names the lines of unusable rows.
    """
    unread = Counter[str]()
    greetings: list[str] = []
    wrong: list[str] = []
    files: dict[Path, list[tuple[str, Turns]]] = {}
    for path in _files(source):
        values = _values(path)
        if source.is_dir() and _is_about(path, values):
            note(f"{printable(path.name)} holds no conversations and is left out.")
            continue
        if not values:
            note(f"{printable(path.name)} has no rows.")
        files[path] = []
        for line, value in values:
            origin = f"{path.name}:{line}"
            try:
                turns = _turns(value, unread)
                if not is_new:
                    turns = _trainable(turns, value, origin, greetings)
                files[path].append((origin, turns))
            except BadInput as error:
                wrong.append(f"{path}:{line}: {error}.")
    if wrong:
        raise BadInput(
            f"{len(wrong):,} rows cannot be used:\n{first_ten(wrong)}\n"
            f"{_FORMS}; correct these rows, or leave them out."
        )
    if unread:
        note(f"Keys that are not read: {_counted(unread, 'rows')}.")
    if greetings:
        note(
            f"{len(greetings):,} conversations begin with an answer (the first: {printable(greetings[0])}). "
            f"Nothing is asked before it, so it is not trained."
        )
    return files


def _turns(value: Any, unread: Counter[str]) -> Turns:
    if isinstance(value, BadInput):
        raise value
    if is_talk(value):
        value = {"messages": value}
    if not isinstance(value, Mapping):
        raise BadInput(f"it is {untrusted.shown(value)} instead of an object")
    turns = turns_of(value, unread)
    for role, content in turns:
        if half := _HALF.search(content):
            raise BadInput(
                f"a turn of the role {role} has half a letter ({half[0]!r}), as of a text that was cut"
            )
    return turns


def _trainable(turns: Turns, value: Any, origin: str, greetings: list[str]) -> Turns:
    """Returns the turns of a training row. Raises BadInput.

    A first answer without a question is not trained; `greetings` gets the row's origin.
    """
    if isinstance(value, Mapping) and all(role != "assistant" for role, _ in turns):
        raise BadInput(
            f"it has no answer: its keys are {printable(', '.join(map(str, value)), most=200)}"
        )
    check_answers(turns)
    if not begins_with_answer(turns):
        return turns
    greetings.append(origin)
    return without_first(turns)


def _counted(counts: Counter[str], what: str) -> str:
    names = []
    for name, count in counts.most_common(_MOST_NAMED):
        names.append(f"{printable(name, most=60)} ({count:,} {what})")
    if len(counts) > _MOST_NAMED:
        names.append("...")
    return ", ".join(names)


def _files(source: Path) -> list[Path]:
    """Returns the files of a source with a known suffix; notes other files of a folder."""
    if not source.is_dir():
        return [source]
    paths = []
    others = Counter[str]()
    for path in sorted(source.iterdir()):
        if path.name.startswith(".") or path.is_dir():
            continue
        if _suffix(path) in SUFFIXES:
            paths.append(path)
        else:
            others[path.suffix or path.name] += 1
    if others:
        note(f"Files that hold no conversations and are left out: {_counted(others, 'files')}.")
    return paths


def _suffix(path: Path) -> str:
    """Returns the suffix of a file, without .gz and the like, in small letters."""
    name = path.name.lower()
    while name.endswith(coverage.PACKED):
        name = name.rpartition(".")[0]
    return Path(name).suffix


def _is_about(path: Path, values: Values) -> bool:
    """Returns whether a .json file is one object that describes something, such as a data set's metadata."""
    is_object = len(values) == 1 and isinstance(values[0][1], Mapping)
    return _suffix(path) == ".json" and is_object and not is_record(values[0][1])


def _values(path: Path) -> Values:
    """Returns line and value of each record of a file. Raises BadInput for an unreadable file."""
    shown = printable(path, most=500)
    if _suffix(path) in _TABLES:
        return _of_table(path, shown)
    values = _of_json(read_text(path, shown))
    whole: Any = values[0][1] if len(values) == 1 else None
    if _suffix(path) == ".json" and is_record(whole) and is_of_columns(whole):
        return [(1, row) for row in json_rows.of_columns(whole, shown)]
    return values


# --- JSON -------------------------------------------------------------------------------------------------------------


def _of_json(text: str) -> Values:
    """Returns the items of a list, or objects in one line or several lines each."""
    if text.lstrip().startswith("["):
        return [*_of_list(text)]
    lines = _LINE.split(text)
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    stream = [] if not filled or _is_json(filled[0][1]) else _of_stream(text)
    return stream or [(number, _value(line)) for number, line in filled]


def _value(line: str) -> Any:
    try:
        return _DECODER.decode(line.strip())
    except (ValueError, RecursionError) as error:
        return BadInput(f"it is no JSON ({printable(error, most=200)})")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class _Reader:
    """Reads JSON values one after another, with the line of each."""

    def __init__(self, text: str, start: int = 0):
        self.text = text
        self.place = start
        self.line = 1
        self._counted = 0
        self.skip()

    def skip(self) -> str:
        """Moves to the next character other than space; returns it, "" at the end."""
        while self.text[self.place : self.place + 1].isspace():
            self.place += 1
        return self.text[self.place : self.place + 1]

    def value(self) -> tuple[int, Any]:
        self.line += self.text.count("\n", self._counted, self.place)
        self._counted = self.place
        try:
            value, self.place = _DECODER.raw_decode(self.text, self.place)
        except json.JSONDecodeError as error:
            self.place = len(self.text)
            return error.lineno, BadInput(f"it is no JSON ({error.msg})")
        except ValueError as error:  # a key that comes twice
            self.place = len(self.text)
            return self.line, BadInput(f"it is no JSON that can be read ({error})")
        except RecursionError:
            self.place = len(self.text)
            return self.line, BadInput("it is no JSON that can be read: it lies too deep")
        return self.line, value


def _of_list(text: str) -> Iterator[tuple[int, Any]]:
    """Yields the items of one list, up to the first invalid one."""
    reader = _Reader(text, text.index("[") + 1)
    following = reader.skip()
    while following and following != "]":
        yield (item := reader.value())
        if isinstance(item[1], BadInput):
            return
        following = reader.skip()
        if following not in (",", "]"):
            yield item[0], BadInput("after this row comes neither a comma nor the end of the list")
            return
        if following == ",":
            reader.place += 1
            following = reader.skip()
    reader.place += 1
    if not following or reader.skip():
        yield reader.line, BadInput("the list has no end, or more text comes after it")


def _of_stream(text: str) -> Values:
    """Returns objects that span several lines; [] if one of them is invalid."""
    reader = _Reader(text)
    values = list[tuple[int, Any]]()
    while reader.skip():
        values.append(reader.value())
    if any(isinstance(value, BadInput) for _, value in values):
        return []
    return values


# --- tables -----------------------------------------------------------------------------------------------------------


def _of_table(path: Path, shown: str) -> Values:
    """Returns the rows of a CSV, TSV or Parquet file."""
    table = tables.read(path, shown)
    table.report.used.update(table.report.columns)  # those that are not read are counted as keys
    return [*zip(table.lines, map(_plain, table.rows), strict=True)]


def _plain(value: Any) -> Any:
    """Returns a cell without NumPy types, and without empty keys, which Parquet gives to every row."""
    if isinstance(value, Mapping):
        return {key: plain for key, each in value.items() if (plain := _plain(each)) is not None}
    if isinstance(value, list | tuple | np.ndarray):
        return [*map(_plain, value)]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and value != value:
        return None
    return value
