"""Reads series: `from trainbook.supervised import series` gives values on even steps of time, and windows of them."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor
from torch.nn import functional as F

from lib.errors import BadInput, printable
from trainbook.supervised.kinds import Numbers
from trainbook.supervised.notes import note
from trainbook.supervised.samples import current_folding
from trainbook.supervised.scoring import Judged
from trainbook.supervised.simple import estimators
from trainbook.supervised.tables import records

Window = tuple[str, int, tuple[float, ...], tuple[float, ...]]
_SHARE = 0.15  # of a series: its end for the test, and as much before for the validation
_DAY = 86_400  # seconds
_SHORTEST_MONTH = 28 * _DAY
_SATURDAY = 5  # the number of the day, from Monday
_GAPS = ("", "na", "nan", "null", "none")
_MOST_WINDOWS = 5_000  # of a forest, which takes seconds
_UNEVEN = 1e-3  # of a step, as dates in seconds are rounded


class Reading(NamedTuple):
    """A value of a series, its time as written, and the file and line that have it."""

    time: Any
    value: float
    place: str


class Absolute(Numbers):
    """Numbers whose loss is absolute, as mae is: forecasts go to the median of what may come."""

    def distance(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.l1_loss(outputs, labels, reduction="none")

    def loss(self, task: Any, outputs: Any, labels: Tensor) -> Tensor:
        """Returns () the sum of absolute errors in units of the training targets' deviation."""
        total = super().loss(task, outputs, labels)
        if outputs.is_meta:
            return total
        return total * task.learned().get("variance of targets", 1.0) ** 0.5


def read(source: Path, time: str, value: str, name: str = "") -> dict[str, np.ndarray]:
    """Returns the values of each series in the order of time, NaN in gaps.

    `time`, `value` and `name` are columns; without `name` each file is a series. Times are numbers
    or dates whose steps are multiples of the least one: of seconds, working days or months. A cell
    without a value is a gap. Raises BadInput for two values at a time, and for uneven steps.
    """
    rows = defaultdict[str, list[Reading]](list)
    row: Any
    for row in records(source):
        key = str(row[name]) if name else _file_of(row, source)
        rows[key].append(Reading(row[time], _number(row, value), row.place))
    return {key: _on_grid(key, rows[key]) for key in sorted(rows)}


def _file_of(row: Any, source: Path) -> str:
    path = Path(row.place.rpartition(":")[0])
    return path.relative_to(source).as_posix() if path.is_relative_to(source) else path.name


def _number(row: Any, column: str) -> float:
    """Returns a cell as a number, NaN for a gap. Raises BadInput."""
    cell = row[column]
    text = "" if cell is None else str(cell).strip()
    if text.casefold() in _GAPS:
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise BadInput(
            f"{row.place}: {printable(text, most=60)} in the column {printable(column)} is no "
            "number. Write it as 1234.5, and leave the cell of a gap empty."
        ) from None


def _on_grid(key: str, readings: Sequence[Reading]) -> np.ndarray:
    readings = sorted(readings, key=lambda reading: _moment(reading))
    steps = _steps(key, readings)
    for before, after, step in zip(readings, readings[1:], np.diff(steps), strict=False):
        if step == 0:
            raise BadInput(
                f"{after.place}: the series {printable(key)} has a value for {printable(after.time)} "
                f"already, in {before.place}. Delete one, or name the column of the series in "
                "workload.series."
            )
    grid = np.full(steps[-1] + 1, np.nan)
    grid[steps] = [reading.value for reading in readings]
    known = np.flatnonzero(~np.isnan(grid))
    if not len(known):
        raise BadInput(f"The series {printable(key)} has no value. Remove it.")
    grid = grid[known[0] : known[-1] + 1]
    gaps = len(grid) - len(known)
    if gaps:
        note(f"Series {printable(key)}: {gaps:,} of {len(grid):,} steps have no value.")
    return grid


def _steps(key: str, readings: Sequence[Reading]) -> np.ndarray:
    """Returns the number of each reading's step, from 0. Raises BadInput if steps are uneven."""
    moments = np.array([_moment(reading) for reading in readings])
    least = _least_step(moments)
    if not _is_number(readings[0].time) and least >= _DAY:
        days = pd.to_datetime([str(reading.time) for reading in readings], format="mixed", utc=True)
        if least >= _SHORTEST_MONTH:
            moments = np.asarray(days.year * 12 + days.month, float)
            least = _least_step(moments)
        elif least == _DAY and (days.day_of_week < _SATURDAY).all():
            dates = days.tz_localize(None).to_numpy().astype("datetime64[D]")
            return np.busday_count(dates[0], dates)
    steps = (moments - moments[0]) / least
    for reading, step in zip(readings, steps, strict=True):
        if abs(step - round(step)) > _UNEVEN:
            raise BadInput(
                f"{reading.place}: {printable(reading.time)} lies between the steps of the series "
                f"{printable(key)}, the least of which is {least:g}. Write means over even steps, "
                "such as hours or days."
            )
    return steps.round().astype(int)


def _least_step(moments: np.ndarray) -> float:
    return float(np.diff(np.unique(moments)).min(initial=np.inf))


def _moment(reading: Reading) -> float:
    """Returns a time as a number, a date in seconds. Raises BadInput."""
    if _is_number(reading.time):
        return float(reading.time)
    try:
        return pd.Timestamp(str(reading.time)).timestamp()
    except ValueError:
        raise BadInput(
            f"{reading.place}: {printable(reading.time)} is no date. Write 2024-12-31 or "
            "2024-12-31 23:00."
        ) from None


def _is_number(time: Any) -> bool:
    try:
        float(time)
    except ValueError:
        return False
    return True


def windows(
    values: Mapping[str, np.ndarray], history: int, horizon: int
) -> dict[str, list[Window]]:
    """Returns (series, step, past values, next values) by split, cut in the order of time.

    The last 15 % of a series are the test, the 15 % before them the validation: no next value of
    one split lies in another, and windows that would cross a border are left out. In validation and
    test the next values of two windows do not overlap. A gap in the past has the value before it.
    In a run of `folds` the last 30 % are cut into as many blocks, one of which is held out: what
    comes before it trains. Raises BadInput if a split has no window.
    """
    folding = current_folding()
    parts: dict[str, list[Window]] = {"train": [], "validation": [], "test": []}
    numbers = []
    begin = 0  # the number of a series' first step
    for key, series in values.items():
        borders = _borders(len(series), horizon, folding)
        past = _filled(series)
        for part, start, end in zip(parts, borders, borders[1:], strict=False):
            stride = 1 if part == "train" else horizon
            for step in range(max(start, history), end - horizon + 1, stride):
                following = series[step : step + horizon]
                if not np.isnan(following).all():
                    window = (key, step, _tuple(past[step - history : step]), _tuple(following))
                    parts[part].append(window)
                    if part == "test":
                        numbers.append(begin + step)
        begin += len(series)
    if folding is not None:
        folding.by_time(parts["test"], numbers)
        if not folding.options.nested:
            parts["validation"] = parts["test"]
    for part, found in parts.items():
        if not found:
            raise BadInput(
                f"No window of {history} past and {horizon} next values is left for {part}: the "
                f"longest series has {max(map(len, values.values()), default=0):,} steps. Lower "
                "workload.history or workload.horizon, or give longer series."
            )
    return parts


def _borders(length: int, horizon: int, folding: Any) -> list[int]:
    """Returns where the training, validation and test of a series begin, and where its test ends."""
    if folding is None:
        held_out = max(horizon, round(_SHARE * length))
        return [0, length - 2 * held_out, length - held_out, length]
    options = folding.options
    block = max(horizon, round(2 * _SHARE * length / options.number))
    end = length - (options.number - 1 - max(0, options.fold)) * block
    start = end - block
    return [0, start - block if options.nested else start, start, end]


def last(values: Mapping[str, np.ndarray], history: int, horizon: int) -> list[Window]:
    """Returns the window at the end of each series, with unknown next values. Raises BadInput."""
    found: list[Window] = []
    unknown = (float("nan"),) * horizon
    for key, series in values.items():
        if len(series) < history:
            raise BadInput(
                f"The series {printable(key)} has {len(series):,} values, and a forecast needs "
                f"{history}. Give more of its past."
            )
        found.append((key, len(series), _tuple(_filled(series)[-history:]), unknown))
    return found


def naive(past: Sequence[float], season: int, horizon: int) -> np.ndarray:
    """Returns (horizon) the last season again and again."""
    return np.resize(np.array(past[-season:]), horizon)


def scaled_forest(parts: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns (windows, horizon) the test's next values by a forest, by its name; none if every window has a gap.

    It sees windows in units of their own mean and deviation, of the training at most 5,000 at even distances.
    """
    from sklearn.ensemble import RandomForestRegressor

    train = parts["train"].samples
    past, following, *_ = _scaled(train[:: 1 + len(train) // _MOST_WINDOWS])
    known = ~np.isnan(following).any(1)
    if not known.any():
        return {}
    trees = RandomForestRegressor(estimators.GROWN, min_samples_leaf=3, random_state=0)
    trees.fit(past[known], following[known])
    past, _, mean, deviation = _scaled(parts["test"].samples)
    return {"forest of scaled windows": trees.predict(past) * deviation + mean}


def _scaled(windows: Sequence[Window]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns past and next values in units of each window's mean and deviation, and these."""
    past = np.array([values for _, _, values, _ in windows])
    following = np.array([values for *_, values in windows])
    mean = past.mean(1, keepdims=True)
    deviation = past.std(1, keepdims=True) + 1e-6
    return (past - mean) / deviation, (following - mean) / deviation, mean, deviation


def mase(judged: Judged, parts: Mapping[str, Any], season: int) -> float:
    """Returns the mean absolute scaled error of a split's windows (Hyndman and Koehler, 2006).

    The scale of a series is the mean absolute difference of its training values a season apart.
    """
    scales: dict[str, list[float]] = {}
    for key, _, past, _ in parts["train"].samples:
        differences = np.abs(np.array(past[season:]) - np.array(past[:-season]))
        scales.setdefault(key, []).append(differences.mean())
    samples = parts["test"].samples
    keys = [samples[number][0] for number in judged.sample]
    scale = np.array([np.mean(scales[key]) for key in keys])
    errors = np.abs(judged.true - judged.guess).reshape(len(keys), -1)
    return float(np.nanmean(errors / scale[:, None]))


def _filled(series: np.ndarray) -> np.ndarray:
    return pd.Series(series).ffill().to_numpy()


def _tuple(values: np.ndarray) -> tuple[float, ...]:
    return tuple(values.tolist())
