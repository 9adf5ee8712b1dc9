"""Reads files of conversations: JSON lines, JSON lists, and tables. What is no conversation is refused by its line."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import untrusted
from lib.config.files import read_bytes
from lib.errors import BadInput, first_ten, printable
from lib.supervised import records
from lib.supervised.tables import read_text
from lib.task.notes import note
from workloads.chat.messages import Turns, check_answers, is_record, turns_of

_JSON, _TABLES, _PARQUET = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv"), ".parquet"
SUFFIXES = (*_JSON, *_TABLES, _PARQUET)
_MOST_BYTES = 2**30  # of a file
_MOST_NAMED = 20  # keys in a sentence
_LINE = re.compile(r"\r\n|\n|\r")  # and none of the other ends of lines that str.splitlines knows
_FORMS = "Give messages (role, content), conversations (from, value), or prompt and answer, as JSON objects"

Values = Iterable[tuple[int, Any]]  # line and value; a BadInput where it cannot be read


def read_records(source: Path, is_new: bool = False) -> dict[Path, list[tuple[str, Turns]]]:
    """Returns place and turns of each row by file: of one, or of those in a folder. New ones need no answers.

    Keys that are not read and files that are left out are noted. Raises BadInput that names the lines of other rows.
    """
    unread, wrong, files = Counter[str](), list[str](), dict[Path, list[tuple[str, Turns]]]()
    for path in _files(source):
        values = [*_values(path)]
        if source.is_dir() and _is_about(path, values):
            note(f"{printable(path.name)} holds no conversations and is left out.")
            continue
        files[path] = []
        for line, value in values:
            try:
                files[path].append((f"{path.name}:{line}", _turns(value, is_new, unread)))
            except BadInput as error:
                wrong.append(f"{path}:{line}: {error}.")
    if wrong:
        advice = f"{_FORMS}; correct these rows, or leave them out."
        raise BadInput(f"{len(wrong):,} rows cannot be used:\n{first_ten(wrong)}\n{advice}")
    if unread:
        note(f"Keys that are not read: {_counted(unread, 'rows')}.")
    return files


def _turns(value: Any, is_new: bool, unread: Counter[str]) -> Turns:
    if isinstance(value, BadInput):
        raise value
    if not isinstance(value, Mapping):
        raise BadInput(f"it is {untrusted.shown(value)} instead of an object")
    turns = turns_of(value, unread)
    if not is_new:
        check_answers(turns)
    return turns


def _counted(counts: Counter[str], what: str) -> str:
    names = [f"{printable(name, most=60)} ({count:,} {what})" for name, count in counts.most_common(_MOST_NAMED)]
    return ", ".join([*names, *["..."] * (len(counts) > _MOST_NAMED)])


def _files(source: Path) -> list[Path]:
    """Returns the files of a source with a known suffix; those of others in a folder are noted."""
    if not source.is_dir():
        return [source]
    paths = [path for path in sorted(source.iterdir()) if path.name[0] != "." and not path.is_dir()]
    others = Counter(path.suffix or path.name for path in paths if path.suffix.lower() not in SUFFIXES)
    if others:
        note(f"Files that hold no conversations and are left out: {_counted(others, 'files')}.")
    return [path for path in paths if path.suffix.lower() in SUFFIXES]


def _is_about(path: Path, values: Sequence[tuple[int, Any]]) -> bool:
    """Returns whether a .json file is one object that describes something, such as a data set's metadata."""
    is_object = len(values) == 1 and isinstance(values[0][1], Mapping)
    return path.suffix.lower() == ".json" and is_object and not is_record(values[0][1])


def _values(path: Path) -> Values:
    """Yields line and value of each record of a file. Raises BadInput where the file cannot be read."""
    suffix = path.suffix.lower()
    if suffix == _PARQUET:
        return _of_parquet(path)
    if suffix in _TABLES:
        return _of_table(path)
    return _of_json(read_text(path, printable(path, most=500)))


# --- JSON -------------------------------------------------------------------------------------------------------------


def _of_json(text: str) -> Values:
    """Yields the items of a list, the objects of lines, or objects that go over several lines."""
    if text.lstrip().startswith("["):
        return _of_list(text)
    lines = _LINE.split(text)
    first = next((line for line in lines if line.strip()), "")
    if not _is_json(first) and (values := _of_stream(text)):
        return values
    return ((number, _object(line)) for number, line in enumerate(lines, 1) if line.strip())


def _object(line: str) -> Any:
    try:
        return untrusted.objects(line)
    except BadInput as error:
        return error


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class _Reader:
    """Reads JSON values one after another, with the line of each."""

    def __init__(self, text: str, start: int = 0):
        self.text, self.place, self.line, self._counted = text, start, 1, 0
        self.skip()

    def skip(self) -> str:
        """Moves to the next character that is no space; returns it, "" at the end."""
        while self.text[self.place : self.place + 1].isspace():
            self.place += 1
        return self.text[self.place : self.place + 1]

    def value(self) -> tuple[int, Any]:
        self.line += self.text.count("\n", self._counted, self.place)
        self._counted = self.place
        try:
            value, self.place = json.JSONDecoder().raw_decode(self.text, self.place)
        except json.JSONDecodeError as error:
            self.place = len(self.text)
            return error.lineno, BadInput(f"it is no JSON ({error.msg})")
        except RecursionError:
            self.place = len(self.text)
            return self.line, BadInput("it is no JSON that can be read: it lies too deep")
        return self.line, value


def _of_list(text: str) -> Iterator[tuple[int, Any]]:
    """Yields the items of one list, up to the first that is no JSON."""
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


def _of_stream(text: str) -> list[tuple[int, Any]]:
    """Returns objects that go over several lines; none where one of them is no JSON."""
    reader, values = _Reader(text), list[tuple[int, Any]]()
    while reader.skip():
        values.append(reader.value())
    return [] if any(isinstance(value, BadInput) for _, value in values) else values


# --- tables -----------------------------------------------------------------------------------------------------------


def _of_table(path: Path) -> Values:
    """Yields the rows of a CSV or TSV file by their number, the head being the first."""
    try:
        untrusted.size_of(path)
        rows = [*records(path)]
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(f"{printable(path)} cannot be read as a table ({printable(error, most=300)}).") from None
    return ((number, _cells(row)) for number, row in enumerate(rows, 2))


def _cells(row: Mapping[str | None, Any]) -> Any:
    if None in row:
        return BadInput("it has more cells than the head")
    return dict(row)


def _of_parquet(path: Path) -> Values:
    """Yields the rows of a Parquet file by their number."""
    try:
        frame = pd.read_parquet(io.BytesIO(read_bytes(path, _MOST_BYTES)))
    except (OSError, ValueError, ImportError) as error:
        what = printable(str(error).strip().partition("\n")[0], most=300)
        raise BadInput(f"{printable(path)} cannot be read as Parquet ({what}).") from None
    return ((number, _plain(row)) for number, row in enumerate(frame.to_dict("records"), 1))


def _plain(value: Any) -> Any:
    """Returns a cell without types of NumPy; keys without a value are left out, which Parquet gives to every row."""
    if isinstance(value, Mapping):
        return {key: plain for key, each in value.items() if (plain := _plain(each)) is not None}
    if isinstance(value, list | tuple | np.ndarray):
        return [*map(_plain, value)]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and value != value else value
