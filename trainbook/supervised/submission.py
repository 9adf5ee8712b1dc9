"""Writes answers in the form of a sample submission: rows by their ids, columns by their names."""

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from lib.errors import BadInput, printable
from lib.machine import disk
from trainbook.supervised import ids, kinds, prediction, tables
from trainbook.supervised.names import listed
from trainbook.supervised.notes import collecting, note
from trainbook.supervised.tables import Table

FILE = "submission.csv"
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?")
_INDEX = re.compile(r"(Unnamed: \d+)?")
_SIGN = re.compile(r"\W|_")  # between a prefix and the name of a class
_OF_CLASSES = ("classes", "labels")  # kinds whose answers have a column for each class
_JOINTS = (" ", ",", ";", "|", ", ", "; ")  # between classes of a sample in one cell
_NO_AND_YES = (["0", "1"], ["False", "True"], ["false", "true"], ["no", "yes"])
_MOST_NAMED = 20  # columns or classes in a sentence
Answer = Mapping[str, Any]
Cells = dict[str, Callable[[Answer], Any]]  # of the columns that are filled


def write(
    task: Any,
    answers: Mapping[str, Answer],
    source: Path,
    sample: Path,
    out: Path,
    id_column: str = "",
) -> str:
    """Writes the answers to the new data in `source` in the form of a sample; returns a report.

    Rows, columns and their order are the sample's. A column that no answer fills stays as in the
    sample, and is named. Raises BadInput if an id has no answer, or if nothing is filled.
    """
    if not answers or not all(isinstance(row, Mapping) for row in answers.values()):
        raise BadInput(
            f"{type(task).__name__} does not answer in a row a sample, "
            "so no submission can be made of it."
        )
    with collecting() as about_sample:
        table = _read(sample)
    with collecting() as notes:
        first = table.columns[0]
        wanted = ids.Wanted(sample, first, table.column(first), id_column)
        join = ids.joined(task, answers, source, wanted)
        cells = _filled(task, answers, table)
    if not cells:
        raise BadInput(f"No column of {printable(sample)} can be filled: {' '.join(notes)}")
    pairs = zip(table.rows, join.keys, strict=True)
    rows = [_row(row, cells, answers[key]) for row, key in pairs]
    with disk.whole(out) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=table.separator, lineterminator="\n")
        writer.writerows([table.columns, *rows])
    about = f"The submission: {printable(out)}, {len(rows):,} rows joined {join.way}."
    lines = [f"{about} Filled: {listed(cells)}."]
    taken = {*join.keys}
    unused = [key for key in answers if key not in taken]
    if unused:
        share = f"{len(unused):,} of {len(answers):,}"
        lines.append(f"{share} answers have no id in the sample, such as {unused[0]}.")
    return "\n".join(map(printable, [*lines, *notes, *about_sample]))


def checked(place: Path, sample: Path, refusal: Callable[[str, str], str] | None = None) -> str:
    """Reads a submission again beside its sample; returns a sentence on what was compared. Raises BadInput.

    Columns, ids and their order are the sample's. Where it has numbers there are numbers, from 0 to
    1 if all of its are. `refusal` returns why a filled cell of an id cannot be, or "".
    """
    with collecting():
        written = tables.read(place, printable(place.name))
        wanted = tables.read(sample, printable(sample.name))
    if written.columns != wanted.columns:
        raise BadInput(
            f"{place}: the columns are {listed(written.columns)}, and in the sample {listed(wanted.columns)}."
        )
    first, *columns = wanted.columns
    if written.column(first) != wanted.column(first):
        raise BadInput(
            f"{place}: the ids in {printable(first)} are not the sample's, in its order."
        )
    facts = ["columns", "ids", "order"]
    for column in columns:
        cells = written.column(column)
        values = [cell for cell in wanted.column(column) if cell.strip()]
        if refusal:
            named = zip(written.column(first), cells, strict=True)
            problems = [f"{name}: {why}" for name, cell in named if (why := refusal(name, cell))]
            _raise_first(place, column, problems)
            facts.append("masks")
        elif values and all(map(_NUMBER.fullmatch, values)):
            is_share = all(0 <= float(value) <= 1 for value in values)
            problems = [why for cell in cells if (why := _no_number(cell, is_share, len(columns)))]
            _raise_first(place, column, problems)
            facts.append("ranges" if is_share and len(columns) > 1 else "numbers")
    return f"Checked against {printable(sample.name)}: {', '.join(dict.fromkeys(facts))}."


def _no_number(cell: str, is_share: bool, columns: int) -> str:
    """Returns why a cell is no number, or of several columns of shares no share; "" for one."""
    number = tables.number_of(cell)
    if not math.isfinite(number):
        return f"{printable(repr(cell), most=60)} is no number"
    if is_share and columns > 1 and not 0 <= number <= 1:
        return f"{number:g} is no share from 0 to 1, as the sample's are"
    return ""


def _raise_first(place: Path, column: str, problems: Sequence[str]) -> None:
    if problems:
        raise BadInput(
            f"{place}: {len(problems):,} cells of {printable(column)} differ from the sample's form: {problems[0]}."
        )


def _row(row: Mapping[str, str], cells: Cells, answer: Answer) -> list[Any]:
    """Returns a row of the sample with the columns of `cells` filled."""
    filled = {name: fill(answer) for name, fill in cells.items()}
    return [*{**row, **filled}.values()]


def _read(sample: Path) -> Table:
    """Reads a sample submission. Raises BadInput if it has no ids or no column to fill."""
    what = f"The sample submission {printable(sample)}"
    table = tables.read(sample, what)
    advice = "Its first line names the columns, the first of which has the ids"
    if len(table.columns) < 2 or not table.separator:
        raise BadInput(f"{what} has no column to fill: {listed(table.columns)}. {advice}.")
    if not table.rows:
        raise BadInput(f"{what} has no rows. {advice}; a row for each follows.")
    if _INDEX.fullmatch(table.columns[0]):
        raise BadInput(
            f"{what} begins with a column without a name, as of row numbers that pandas wrote. "
            "Delete this column: the first one has the ids."
        )
    return table


def _filled(task: Any, answers: Mapping[str, Answer], table: Table) -> Cells:
    """Returns how each column of a sample is filled; notes the columns that are not."""
    answer = next(iter(answers.values()))
    classes = _classes(task, answer)
    keys = _keys(task, answer, classes)
    columns = table.columns[1:]
    cells: Cells = {}
    for column in columns:
        name = column.strip()
        key = keys.get(name) or keys.get(name.casefold())
        if key and _is_cell(answer[key]):
            cells[column] = itemgetter(key)
    cells |= _prefixed(classes, [column for column in columns if column not in cells])
    target = getattr(getattr(task, "settings", None), "target", "")
    for column in columns:
        is_target = len(columns) == 1 or column in (target, "prediction")
        if is_target and column not in cells:
            cells |= _predicted(task, answer, classes, column, table.column(column))
    left = [column for column in columns if column not in cells]
    if left:
        shown = ", ".join(left[:_MOST_NAMED]) + (" ..." if left[_MOST_NAMED:] else "")
        names = ", ".join([*answer][:_MOST_NAMED])
        note(
            f"Left as in the sample, since no answer fills them ({len(left)}): "
            f"{shown}. An answer has the columns {names}."
        )
    return {column: cells[column] for column in columns if column in cells}


def _classes(task: Any, answer: Answer) -> dict[str, str]:
    """Returns the answer's column of each class by its name, in the order of the classes."""
    if kinds.name_of(task) not in _OF_CLASSES:
        return {}
    count = len(task._known_names()) or len(answer)
    names = [prediction.named(task, number) for number in range(count)]
    columns = prediction.class_columns(task, count)
    pairs = zip(names, columns, strict=True)
    return {name: column for name, column in pairs if column in answer}


def _keys(task: Any, answer: Answer, classes: Mapping[str, str]) -> dict[str, str]:
    """Returns the columns of an answer by the names that a sample may have for them."""
    keys = {name.casefold(): name for name in answer}
    keys |= {name: name for name in answer}
    if kinds.name_of(task) not in _OF_CLASSES:
        return keys
    # In a sample these may be the class's number, and the probability of another class
    doubtful = ("prediction", "probability")
    sure = {name: key for name, key in keys.items() if key not in doubtful}
    return {**sure, **classes}


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _prefixed(classes: Mapping[str, str], columns: Sequence[str]) -> Cells:
    """Returns cells of columns such as prob_cat or cat_p, if each class has just one."""
    for before, after in _ends(classes, columns):
        alike = [name for name in columns if name.startswith(before) and name.endswith(after)]
        named = {name.removeprefix(before).removesuffix(after): name for name in alike}
        if len(named) == len(alike) and named.keys() == classes.keys():
            return {column: itemgetter(classes[name]) for name, column in named.items()}
    return {}


def _ends(classes: Mapping[str, str], columns: Sequence[str]) -> list[tuple[str, str]]:
    """Returns prefixes and suffixes of the names of classes, longest first, with a sign."""
    ends = set()
    for column in columns:
        for name in classes:
            before = column.removesuffix(name)
            after = column.removeprefix(name)
            if before != column and _SIGN.fullmatch(before[-1:]):
                ends.add((before, ""))
            if after != column and _SIGN.fullmatch(after[:1]):
                ends.add(("", after))
    return sorted(sorted(ends), key=lambda pair: len("".join(pair)), reverse=True)


# --- one column of answers --------------------------------------------------------------------------------------------


def _predicted(
    task: Any, answer: Answer, classes: Mapping[str, str], column: str, values: Sequence[str]
) -> Cells:
    """Returns how the column of a sample with one answer is filled; notes a doubtful one."""
    kind = kinds.name_of(task)
    key = "prediction"
    values = [value.strip() for value in values if value.strip()]
    if kind == "classes" and key in answer:
        return _of_class([*classes] or task._known_names(), classes, column, values)
    if kind == "labels" and classes:
        return _of_labels(classes, column, values)
    if key not in answer and len(answer) == 1:
        (key,) = answer
    if key not in answer:
        return {}
    if _is_cell(answer[key]):
        return {column: itemgetter(key)}
    note(
        f"The answer for {column} is an image, which no cell can hold. "
        f"Let {type(task).__name__}.answers return text, such as run lengths."
    )
    return {}


def _of_class(
    names: Sequence[str], classes: Mapping[str, str], column: str, values: Sequence[str]
) -> Cells:
    """Returns the likeliest class as the sample writes it: its name, number or probability."""
    has_numbers = bool(values) and all(map(_NUMBER.fullmatch, values))
    are_numerals = bool(names) and all(map(_NUMBER.fullmatch, names))
    if not has_numbers:
        return _of_words(names, are_numerals, column, values)
    if not all(float(value).is_integer() for value in values):
        return _of_second(classes, column)
    if are_numerals:
        written = {name: _like(name, values) for name in names}
        return {column: lambda answer: written.get(answer["prediction"], answer["prediction"])}
    numbers = {name: _like(str(number), values) for number, name in enumerate(names)}
    meanings = [f"{number} {name}" for name, number in numbers.items()]
    note(f"{column} has numbers of classes: {', '.join(meanings[:_MOST_NAMED])}.")
    return {column: lambda answer: numbers[answer["prediction"]]}


def _of_words(
    names: Sequence[str], are_numerals: bool, column: str, values: Sequence[str]
) -> Cells:
    """Returns the name of the class, unless the sample has words and classes are numbers."""
    is_known = not values or not {*names}.isdisjoint(values)
    if not is_known and are_numerals:
        note(
            f"{column} has words such as {values[0]}, and classes are numbers. "
            "Name the classes in a setting `classes`."
        )
        return {}
    if not is_known:
        note(f"{values[0]}, which {column} has in the sample, is none of the classes.")
    return {column: itemgetter("prediction")}


def _of_second(classes: Mapping[str, str], column: str) -> Cells:
    """Returns the probability of yes, for classes called no and yes or the like, or notes it."""
    if [*classes] in _NO_AND_YES:
        _, name = classes
        note(f"{column} has the probability of {name}.")
        return {column: itemgetter(classes[name])}
    note(
        f"{column} has fractions, as probabilities of one class, and does not say of which. "
        "Rename the column in the sample as that class."
    )
    return {}


def _like(numeral: str, values: Sequence[str]) -> str:
    """Writes the number of a class in the form of the sample's numbers, 3 or 3.0."""
    if numeral in values or not float(numeral).is_integer():
        return numeral
    if all(map(_WHOLE.fullmatch, values)):
        return f"{float(numeral):.0f}"
    return str(float(numeral))


def _of_labels(classes: Mapping[str, str], column: str, values: Sequence[str]) -> Cells:
    """Returns the classes above one half, joined as in the sample; or one class's probability."""
    if len(classes) == 1 and values and all(map(_NUMBER.fullmatch, values)):
        return {column: itemgetter(*classes.values())}
    joint = next((joint for joint in _JOINTS if _joins(joint, classes, values)), "; ")
    note(f"{column} has classes joined by {joint!r}.")

    def likely(answer: Answer) -> str:
        names = [name for name, key in classes.items() if answer[key] > 0.5]
        return joint.join(names)

    return {column: likely}


def _joins(joint: str, classes: Mapping[str, str], values: Sequence[str]) -> bool:
    cells = [value.split(joint) for value in values]
    names = {name for cell in cells for name in cell}
    return any(len(cell) > 1 for cell in cells) and names <= classes.keys()
