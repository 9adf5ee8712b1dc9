"""Reads rows of JSON: a list, an object of columns, or values after each other (JSON lines)."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lib.errors import BadInput, printable
from trainbook.supervised.coverage import Report
from trainbook.supervised.files import lines_of
from trainbook.supervised.names import listed

_SPACE = re.compile(r"[ \t\r\n]*")
_SPACE_OR_COMMA = re.compile(r"[ \t\r\n,]*")


class Value(NamedTuple):
    """A value of JSON, and its first line."""

    line: int
    content: Any


def read(
    text: str, shown: str, suffix: str, names: Sequence[str] | None, report: Report
) -> tuple[list[int], list[dict[str, Any]]]:
    """Returns the lines and the rows (cells by column). Raises BadInput with the line.

    Without a head (`names` is not None) rows may be lists, whose columns are `names`, or numbers.
    """
    values = _rows(text, shown, suffix, report)
    width = 0
    if values and isinstance(values[0].content, list):
        width = len(values[0].content)
    lines = [value.line for value in values]
    return lines, [_cells(value, names, width, shown) for value in values]


def _rows(text: str, shown: str, suffix: str, report: Report) -> list[Value]:
    values = [*_values(text, shown)]
    whole = values[0].content if len(values) == 1 else None
    if isinstance(whole, list) and {*map(type, whole)} <= {list, dict}:
        begin = text.index("[") + 1
        return [*_values(text[: text.rindex("]")], shown, begin, _SPACE_OR_COMMA)]
    if isinstance(whole, dict) and suffix == ".json" and (rows := of_columns(whole, shown)):
        report.remarks.append("an object of columns")
        return [Value(1, row) for row in rows]
    lines = lines_of(text)
    report.lines = len(lines)
    report.others = {"blank": sum(not line.strip() for line in lines)}
    return values


def written(rows: Sequence[Mapping[str, Any]], text: str, suffix: str) -> str:
    """Returns rows as JSON in the form of a text: a list, an object of columns, or lines."""
    lines = [json.dumps(row) for row in rows]
    if text.lstrip().startswith("["):
        return f"[{','.join(lines)}]"
    values = [*_values(text, "")]
    if len(values) == 1 and suffix == ".json" and of_columns(values[0].content, ""):
        columns = {name: [row[name] for row in rows] for name in values[0].content}
        return json.dumps(columns)
    return "".join(f"{line}\n" for line in lines)


def _values(
    text: str, shown: str, begin: int = 0, gap: re.Pattern[str] = _SPACE
) -> Iterator[Value]:
    """Yields the values in a text from `begin` on."""
    decoder = json.JSONDecoder(object_pairs_hook=object_of)
    line = 1
    counted = 0
    place = _end(gap, text, begin)
    while place < len(text):
        line += text.count("\n", counted, place)
        counted = place
        try:
            content, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            before = text[place : error.pos].rstrip()  # the next line shows that a line was cut off
            line += before.count("\n")
            raise BadInput(
                f"{shown}:{line}: it is no JSON ({error.msg}). Correct or delete the line."
            ) from None
        except (ValueError, RecursionError) as error:
            raise BadInput(
                f"{shown}:{line}: it is no JSON that can be read ({error}). Correct it."
            ) from None
        yield Value(line, content)
        place = _end(gap, text, place)


def _end(pattern: re.Pattern[str], text: str, begin: int) -> int:
    match = pattern.match(text, begin)
    return match.end() if match else begin


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON, a hook of `json`. Raises ValueError for a repeated key."""
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        name = counts.most_common(1)[0][0]
        raise ValueError(f"an object has the key {printable(name, most=60)!r} twice")
    return values


def _cells(value: Value, names: Sequence[str] | None, width: int, shown: str) -> dict[str, Any]:
    """Returns the cells of a row by column. Raises BadInput."""
    row = value.content
    if isinstance(row, dict):
        return row
    place = f"{shown}:{value.line}"
    if not isinstance(row, list) or names is None:
        value_shown = printable(repr(row), most=60)
        raise BadInput(
            f"{place}: it is {value_shown} instead of an object. Correct or delete the line."
        )
    columns = [*names] or [*map(str, range(width))]
    if len(row) != width or len(row) > len(columns):
        raise BadInput(
            f"{place}: {len(row)} cells instead of {len(columns)}. Correct or delete the line."
        )
    return dict(zip(columns, row, strict=False))


def of_columns(columns: Mapping[str, Any], shown: str) -> list[dict[str, Any]]:
    """Returns the rows of an object of lists, or of objects with a key for each row; or []."""
    cells = [*columns.values()]
    if all(isinstance(column, list) for column in cells):
        sizes = [f"{name} {len(column)}" for name, column in columns.items()]
        if len({*map(len, cells)}) > 1:
            raise BadInput(
                f"{shown}: The columns have different lengths: {listed(sizes)}. Correct them."
            )
        return [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]
    if not all(isinstance(column, dict) for column in cells):
        return []
    rows: dict[str, dict[str, Any]] = {}
    for name, column in columns.items():
        for key, cell in column.items():  # as pandas writes by default
            rows.setdefault(key, {})[name] = cell
    return [*rows.values()]
