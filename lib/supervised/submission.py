"""Writes answers in the form of a sample submission: rows by their ids, columns by their names."""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.errors import BadInput, printable
from lib.machine import disk
from lib.supervised import ids, prediction
from lib.task.notes import collecting, note

FILE = "submission.csv"
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?")
_AFTER = re.compile(r"[^\w]|_")  # what stands between a prefix and the name of a class
_JOINTS = (" ", ",", ";", "|", ", ", "; ")  # between classes of a sample in one cell
Answer = Mapping[str, Any]
Cells = dict[str, Callable[[Answer], Any]]  # of the columns that are filled


def write(task: Any, answers: Mapping[str, Answer], source: Path, sample: Path, out: Path, id_column: str = "") -> str:
    """Writes the answers to the new data in `source` in the form of a sample; returns what was done, in lines.

    Rows, columns and their order are the sample's. What no answer fills stays as in the sample, and is named. Raises
    BadInput where an id has no answer, and where nothing is filled.
    """
    if not answers or not all(isinstance(row, Mapping) for row in answers.values()):
        raise BadInput(f"{type(task).__name__} does not answer in a row a sample, so no submission can be made of it.")
    with collecting() as notes:
        table = _read(sample)
        wanted = [row[0] for row in table.rows]
        join = ids.joined(task, answers, source, wanted, table.head[0], id_column, sample)
        cells = _filled(task, answers, table)
    if not cells:
        first = next(iter(answers.values()))
        what = f"No column of {printable(sample)} can be filled: {'; '.join(notes)}"
        raise BadInput(f"{what} An answer has the columns {printable(', '.join(first), most=300)}.")
    with disk.whole(out) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=table.separator, lineterminator="\n")
        writer.writerow(table.head)
        for row, key in zip(table.rows, join.keys, strict=True):
            pairs = zip(table.head, row, strict=True)
            writer.writerow([cells[name](answers[key]) if name in cells else cell for name, cell in pairs])
    about = f"The submission: {printable(out)}, {len(wanted):,} rows joined {join.sentence}. Filled: "
    about += printable(", ".join(cells), most=300)
    if unused := [key for key in answers if key not in {*join.keys}]:
        notes.append(f"{len(unused):,} of {len(answers):,} answers have no id in the sample, such as {unused[0]}.")
    return "\n".join([f"{about}.", *map(printable, notes)])


def _read(sample: Path) -> ids.Table:
    """Reads a sample submission. Raises BadInput for one without ids or without a column to fill."""
    table, what = ids.read_table(sample, "The sample submission"), f"The sample submission {printable(sample)}"
    advice = "Its first line names the columns, the first of which has the ids"
    if len(table.head) < 2 or len(table.separator) != 1:
        raise BadInput(f"{what} has no column to fill: {printable(', '.join(table.head), most=200)}. {advice}.")
    if not table.rows:
        raise BadInput(f"{what} has no rows. {advice}; a row for each follows.")
    if doubled := sorted({name for name in table.head if table.head.count(name) > 1}):
        raise BadInput(f"{what} has the column {printable(doubled[0])} twice. Rename one of them.")
    return table


def _filled(task: Any, answers: Mapping[str, Answer], table: ids.Table) -> Cells:
    """Returns how each column of a sample is filled; notes those that are not."""
    row = next(iter(answers.values()))
    classes, cells = _classes(task, row), Cells()
    named = {**{name.casefold(): name for name in row}, **{name: name for name in row}}
    if getattr(task, "kind", "") in ("classes", "labels"):  # a sample's may be the number, and of another class
        named = {name: key for name, key in named.items() if key not in ("prediction", "probability")}
    for column in table.head[1:]:
        key = named.get(column.strip()) or named.get(column.strip().casefold())
        if column.strip() in classes:
            key = classes[column.strip()]
        if key and _is_cell(row[key]):
            cells[column] = _cell_of(key)
    cells |= _prefixed(classes, [column for column in table.head[1:] if column not in cells])
    left = [column for column in table.head[1:] if column not in cells]
    target = str(getattr(getattr(task, "settings", None), "target", ""))
    for column in left:
        if len(table.head) == 2 or column in (target, "prediction"):
            cells |= _predicted(task, row, classes, column, table.column(column))
    if left := [column for column in left if column not in cells]:
        which = printable(", ".join(left[:10]), most=300) + (f" and {len(left) - 10:,} more" if left[10:] else "")
        columns = printable(", ".join(row), most=300)
        note(f"Left as in the sample, since no answer fills them: {which}. An answer has the columns {columns}.")
    return {column: cells[column] for column in table.head if column in cells}


def _classes(task: Any, row: Answer) -> dict[str, str]:
    """Returns the column in an answer of each class by its name, in the order of the classes."""
    if getattr(task, "kind", "") not in ("classes", "labels"):
        return {}
    count = len(task.known_names()) or max(task.width, len(row))
    columns = zip(map(task.named, range(count)), prediction.class_columns(task, count), strict=True)
    return {name: column for name, column in columns if column in row}


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _cell_of(key: str) -> Callable[[Answer], Any]:
    return lambda answer: answer[key]


def _prefixed(classes: Mapping[str, str], columns: Sequence[str]) -> Cells:
    """Returns cells of columns such as prob_cat or class_0 if all begin, or end, alike and name each class once."""
    if not classes:
        return {}
    matches: dict[tuple[str, str], dict[str, str]] = {}
    for column in columns:
        for name in classes:
            before, after = column.removesuffix(name), column.removeprefix(name)
            if before != column and _AFTER.fullmatch(before[-1:]):
                matches.setdefault((before, ""), {})[column] = name
            if after != column and _AFTER.fullmatch(after[:1]):
                matches.setdefault(("", after), {})[column] = name
    whole = [each for each in matches.values() if {*each.values()} == {*classes} and len(each) == len(classes)]
    if len(whole) != 1 or _hides_another(whole[0], columns, matches):
        return {}
    return {column: _cell_of(classes[name]) for column, name in whole[0].items()}


def _hides_another(chosen: Mapping[str, str], columns: Sequence[str], matches: Mapping[tuple[str, str], Any]) -> bool:
    """Tells whether more columns have the prefix than there are classes: class_1 to class_3 of the classes 0 to 2."""
    ((before, after),) = [ends for ends, each in matches.items() if each is chosen]
    return any(name not in chosen and name.startswith(before) and name.endswith(after) for name in columns)


# --- one column of answers --------------------------------------------------------------------------------------------


def _predicted(task: Any, row: Answer, classes: Mapping[str, str], column: str, values: Sequence[str]) -> Cells:
    """Returns how the column of a sample with one answer is filled, as far as that is sure; notes what is not."""
    kind = getattr(task, "kind", "")
    if kind == "classes" and "prediction" in row:
        return _of_class(task, classes, column, values)
    if kind == "labels" and classes:
        return _of_labels(classes, column, values)
    key = "prediction" if "prediction" in row else next(iter(row)) if len(row) == 1 else ""
    if key and _is_cell(row[key]):
        return {column: _cell_of(key)}
    if key:
        advice = f"Let {type(task).__name__}.answers return text, such as run lengths."
        note(f"The answer for {printable(column)} is an image, which no cell can hold. {advice}")
    return {}


def _of_class(task: Any, classes: Mapping[str, str], column: str, values: Sequence[str]) -> Cells:
    """Returns the name of the likeliest class, or its number or probability where the sample has such numbers."""
    shown, filled = printable(column), [value.strip() for value in values if value.strip()]
    names = [*classes] or task.known_names()
    are_numerals = all(map(_NUMBER.fullmatch, names))
    if not filled or not all(map(_NUMBER.fullmatch, filled)):
        if filled and names and not {*filled} & {*names}:
            if are_numerals:
                advice = "Name the classes in a setting `classes`."
                note(f"{shown} has words such as {printable(filled[0], most=60)}, and classes are numbers. {advice}")
                return {}
            note(f"{printable(filled[0], most=60)}, which {shown} has in the sample, is none of the classes.")
        return {column: _cell_of("prediction")}
    if any(not float(value).is_integer() for value in filled):
        return _of_second(classes, column)
    if are_numerals:
        written = {name: _like(name, filled) for name in names}
        return {column: lambda answer: written.get(answer["prediction"], answer["prediction"])}
    numbers = {name: _like(str(number), filled) for number, name in enumerate(names)}
    note(f"{shown} has numbers of classes: {', '.join(f'{number} {name}' for name, number in numbers.items())}.")
    return {column: lambda answer: numbers[answer["prediction"]]}


def _of_second(classes: Mapping[str, str], column: str) -> Cells:
    """Returns the probability of class 1 of 0 and 1; notes it where that class is not known."""
    if [*classes] in (["0", "1"], ["False", "True"], ["false", "true"], ["no", "yes"]):
        name = [*classes][1]
        note(f"{printable(column)} has the probability of {name}.")
        return {column: _cell_of(classes[name])}
    advice = "Rename the column in the sample as that class."
    note(f"{printable(column)} has fractions, as probabilities of one class, and does not say of which. {advice}")
    return {}


def _like(numeral: str, values: Sequence[str]) -> str:
    """Writes a number of a class as the sample has its own, 3 or 3.0."""
    if numeral in values or not float(numeral).is_integer():
        return numeral
    return f"{float(numeral):.0f}" if all(map(_WHOLE.fullmatch, values)) else str(float(numeral))


def _of_labels(classes: Mapping[str, str], column: str, values: Sequence[str]) -> Cells:
    """Returns the classes above one half, joined as in the sample."""
    if len(classes) == 1 and all(map(_NUMBER.fullmatch, (value.strip() for value in values))):
        return {column: _cell_of(next(iter(classes.values())))}
    joints = [joint for joint in _JOINTS if any(joint in value for value in values)]
    parts = {each: {part for value in values for part in value.split(each)} for each in joints}
    joint = next((each for each in joints if parts[each] <= {*classes}), "")
    note(f"{printable(column)} has classes joined by {joint or '; '!r}.")
    return {column: lambda answer: (joint or "; ").join(n for n, key in classes.items() if answer[key] > 0.5)}
