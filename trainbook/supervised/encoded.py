"""Columns of a table as they are: numbers with gaps, categories, dates and texts, decided by training rows alone.

`learned` decides what each column is. `rows` then gives rows of numbers and words, which `columns`
takes: a date becomes numbers for its day, year, month, weekday and hour, a text becomes a few
numbers by the words that it shares with others (latent semantic analysis, Deerwester and others,
1990).
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lib.errors import BadInput, printable
from lib.text import aligned
from trainbook.supervised import dates
from trainbook.supervised.columns import is_gap
from trainbook.supervised.names import listed
from trainbook.supervised.notes import note
from trainbook.supervised.tables import number_of

_GAPS = ("na", "n/a", "nan", "null", "none", "nil", "?", "-", "--", "#n/a", "inf", "-inf")
_TEXT_WORDS = 4  # of a cell on average, from which a column is text
_PARTS = 16  # numbers of a text
_MOST_WORDS = 1000  # of a column of text
_MOST_ROWS = 20_000  # by which a column of text is learned
_ALIKE = 0.9999  # correlation, from which a column is the target
_ORDERED = 0.5  # rank correlation, from which an id orders the target
_FEWEST = 20  # rows, of which a leak can be told
_SEEN = 0.5  # of the values of a column are of one row: it names rows
_WORD = re.compile(r"\w\w+")

Row = Mapping[str, Any]


def learned(
    rows: Sequence[Row], words: Sequence[str] = (), left_out: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns what each column of training rows is, values that JSON has. Raises BadInput without a column.

    Columns in `words` hold names; `left_out` has the reason for columns that are not used.
    """
    reasons = dict(left_out or {})
    names = [*dict.fromkeys(name for row in rows for name in row)]
    if absent := [name for name in words if name not in names]:
        raise BadInput(
            f"workload.words names {listed(absent)}, and the columns are {listed(names)}. Correct the names."
        )
    columns = {}
    for name in names:
        if name in reasons:
            columns[name] = {"as": "left out", "why": reasons[name]}
            continue
        cells = [row.get(name) for row in rows]
        columns[name] = _learned(cells, name in words)
    if all(column["as"] == "left out" for column in columns.values()):
        raise BadInput(
            f"No column can be learned from: {listed(names)}. Look at workload.table and workload.target."
        )
    return columns


def _learned(cells: Sequence[Any], has_names: bool) -> dict[str, Any]:
    """Returns what one column is."""
    known = [cell for cell in cells if not is_unknown(cell)]
    counts = Counter(map(_text, known))
    facts = {"gaps": len(cells) - len(known), "values": len(counts)}
    if len(counts) < 2 and not facts["gaps"]:
        return {"as": "left out", "why": "one value in all rows", **facts}
    if not known:
        return {"as": "left out", "why": "no value", **facts}
    if has_names:
        return {"as": "words", **facts}
    if all(math.isfinite(number_of(cell)) for cell in known):
        return {"as": "numbers", **facts}
    if form := dates.form_of([*counts]):
        return {"as": "date", "form": form, **facts}
    lengths = [len(_WORD.findall(text)) for text in counts]
    if np.mean(lengths) >= _TEXT_WORDS and len(counts) > _SEEN * len(known):
        return {"as": "text", **facts, **_semantics([*map(_text, known)])}
    single = sum(number == 1 for number in counts.values())
    if single > _SEEN * len(known):
        return {"as": "left out", "why": "nearly each row has a name of its own", **facts}
    return {"as": "words", **facts}


def is_unknown(cell: Any) -> bool:
    """Returns whether a cell is empty, or written as a missing value."""
    return is_gap(cell) or str(cell).strip().casefold() in _GAPS


def _text(cell: Any) -> str:
    return str(cell).strip()


def _semantics(texts: Sequence[str]) -> dict[str, Any]:
    """Returns the commonest words of texts with their weights, and the directions in which texts differ."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    some = texts[:: max(1, len(texts) // _MOST_ROWS)]
    counting = TfidfVectorizer(max_features=_MOST_WORDS, token_pattern=_WORD.pattern, min_df=2)
    try:
        weighed = counting.fit_transform(some)
    except ValueError:  # no word comes twice
        return {"vocabulary": [], "weights": [], "directions": []}
    parts = min(_PARTS, weighed.shape[1] - 1)
    if parts < 1:
        return {"vocabulary": [], "weights": [], "directions": []}
    directions = TruncatedSVD(parts, random_state=0).fit(weighed).components_
    return {
        "vocabulary": counting.get_feature_names_out().tolist(),
        "weights": counting.idf_.round(5).tolist(),
        "directions": directions.round(5).tolist(),
    }


# --- rows -------------------------------------------------------------------------------------------------------------


def rows(columns: Mapping[str, Any], cells: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns rows of numbers and words, as `columns.learned` and `columns.tensors` take them."""
    made: list[dict[str, Any]] = [{} for _ in cells]
    for name, column in columns.items():
        kind = column["as"]
        if kind == "left out":
            continue
        values = [row.get(name) for row in cells]
        if kind == "text":
            for row, more in zip(made, _parts_of_texts(name, column, values), strict=True):
                row.update(more)
            continue
        for row, value in zip(made, values, strict=True):
            row.update(_made(name, column, value))
    return made


def words(columns: Mapping[str, Any]) -> list[str]:
    """Returns the columns of words, whatever their cells look like."""
    return [name for name, column in columns.items() if column["as"] == "words"]


def _made(name: str, column: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Returns the numbers, or the word, that a cell gives."""
    if column["as"] == "words":
        return {name: "" if is_unknown(value) else _text(value)}
    if column["as"] == "date":
        return dates.parts(name, column["form"], None if is_unknown(value) else value)
    if is_unknown(value):
        return {name: None}
    number = number_of(value)
    if math.isfinite(number):
        return {name: number}
    note(
        f"The column {printable(name)} holds numbers, and other rows have {printable(repr(value), most=60)} "
        "there: it counts as unknown."
    )
    return {name: None}


def _parts_of_texts(
    name: str, column: Mapping[str, Any], values: Sequence[Any]
) -> Iterator[dict[str, Any]]:
    """Yields the numbers of each text: its length, and its part in each direction."""
    place = {word: number for number, word in enumerate(column["vocabulary"])}
    weights = np.array(column["weights"])
    directions = np.array(column["directions"]).reshape(-1, len(place))
    for value in values:
        text = "" if is_unknown(value) else _text(value).lower()
        counts = Counter(word for word in _WORD.findall(text) if word in place)
        vector = np.zeros(len(place))
        for word, number in counts.items():
            vector[place[word]] = number * weights[place[word]]
        length = np.linalg.norm(vector)
        parts = directions @ (vector / length if length else vector)
        numbers = {f"{name} {number}": part for number, part in enumerate(parts.tolist(), 1)}
        yield {f"{name} length": len(text), **numbers}


def described(columns: Mapping[str, Any]) -> str:
    """Returns a table of what each column was taken for."""
    shown = [["column", "taken as", "values", "gaps", ""]]
    for name, column in columns.items():
        about = ""
        if column["as"] == "left out":
            about = column["why"]
        if column["as"] == "date":
            about = f"{column['form']}: {listed(dates.names(column['form']))}"
        if column["as"] == "text":
            about = f"{len(column['directions'])} numbers of {len(column['vocabulary']):,} words"
        facts = [str(column.get(fact, "")) for fact in ("values", "gaps")]
        shown.append([printable(name, most=60), column["as"], *facts, about])
    return aligned(shown, left={0, 1, 4})


# --- leaks ------------------------------------------------------------------------------------------------------------


def note_leaks(rows: Sequence[Row], targets: Sequence[Any], ids: Sequence[Any]) -> None:
    """Notes columns that equal the target, and ids or the order of rows that order it; `targets` are cells."""
    if len(rows) < _FEWEST:
        return
    codes = _codes(targets)
    if len(np.unique(codes)) < 2:
        return
    for name in [*dict.fromkeys(name for row in rows for name in row)]:
        cells = [row.get(name) for row in rows]
        if _is_target(cells, targets, codes):
            note(
                f"LEAK? The column {printable(name)} tells the target by itself. If it is not known for "
                "new rows, delete it."
            )
    for what, order in (("The ids", _codes(ids)), ("The order of the rows", np.arange(len(rows)))):
        share = _ordering(order, codes, len({*map(str, targets)}))
        if share > _ORDERED:
            note(
                f"LEAK? {what} order the target (rank correlation {share:.2f}): a split by chance is too "
                "easy, if new rows come later. Ids are not learned from."
            )
            return


def _codes(cells: Sequence[Any]) -> np.ndarray:
    """Returns numbers for cells: their own, or their places among the sorted texts."""
    numbers = np.array([number_of(cell) for cell in cells])
    if np.isfinite(numbers).all():
        return numbers
    _, places = np.unique([str(cell) for cell in cells], return_inverse=True)
    return places.astype(float)


def _is_target(cells: Sequence[Any], targets: Sequence[Any], codes: np.ndarray) -> bool:
    """Returns whether a column is the target in other units, or in other words."""
    numbers = np.array([math.nan if is_unknown(cell) else number_of(cell) for cell in cells])
    is_known = np.isfinite(numbers)
    if is_known.mean() > 0.9 and np.ptp(numbers[is_known]) and np.ptp(codes[is_known]):
        return bool(abs(np.corrcoef(numbers[is_known], codes[is_known])[0, 1]) > _ALIKE)
    texts = [*map(str, cells)]
    pairs = {*zip(texts, map(str, targets), strict=True)}
    values = len({*texts})
    return len(pairs) == values and 1 < values <= len(texts) / 4


def _ordering(order: np.ndarray, codes: np.ndarray, classes: int) -> float:
    """Returns how far an order tells the target: by ranks for numbers, by its share of the spread for classes."""
    from scipy import stats

    ranks = stats.rankdata(order)
    if not np.ptp(ranks):
        return 0.0
    if classes > _FEWEST:
        return abs(float(stats.spearmanr(ranks, codes).statistic))
    means = np.array([ranks[codes == code].mean() for code in codes])
    return float(means.std() / ranks.std())


def note_repeated(rows: Sequence[Any], others: Sequence[Any]) -> None:
    """Notes how many rows of the test have the cells of a training row."""
    seen = {*map(str, rows)}
    number = sum(str(row) in seen for row in others)
    if number:
        note(
            f"LEAK? {number:,} of {len(others):,} rows of the test have the cells of a training row: "
            "their targets are known."
        )
