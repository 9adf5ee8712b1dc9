"""Columns of dates as numbers: the form that all cells have, and the day, year, month and weekday of a cell."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from lib.errors import printable
from trainbook.supervised.notes import note

_FORMS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%Y-%m",
)
_DIGITS = re.compile(r"\d{1,4}[-/.]\d")  # a date begins so


def form_of(texts: Sequence[str]) -> str:
    """Returns the form that all cells have as dates, the first that fits; "" for other cells, and without any."""
    if not texts or not all(map(_DIGITS.match, texts)):
        return ""
    for form in _FORMS:
        if all(_date(text, form) for text in texts):
            return form
    return ""


def _date(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None


def names(form: str) -> list[str]:
    """Returns the parts of a date: the day counts from the year 1, with its hours as a fraction."""
    return ["day", "year", "month", "weekday"] + ["hour"] * ("%H" in form)


def parts(name: str, form: str, value: Any) -> dict[str, float | None]:
    """Returns the numbers of a date in the column `name`; None where it is None, or with a note no date."""
    date = None if value is None else _date(str(value).strip(), form)
    if date is None:
        if value is not None:
            note(
                f"The column {printable(name)} holds dates, and other rows have "
                f"{printable(repr(value), most=60)} there: it counts as unknown."
            )
        return {f"{name} {part}": None for part in names(form)}
    numbers = {
        "day": date.toordinal() + date.hour / 24 + date.minute / 1440,
        "year": date.year,
        "month": date.month,
        "weekday": date.weekday(),
        "hour": date.hour,
    }
    return {f"{name} {part}": numbers[part] for part in names(form)}
