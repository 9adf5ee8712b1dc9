"""Series: even steps by numbers, seconds, working days and months, gaps, windows that leak nothing, MASE."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import BadInput
from trainbook.supervised import series
from trainbook.supervised.notes import collecting
from trainbook.supervised.samples import reading


@pytest.fixture
def read(tmp_path):
    """read(rows) writes a CSV file of times and values; returns the series and the notes."""

    def read(rows, columns="time,value", name="", **more):
        lines = [columns, *rows]
        (tmp_path / "a.csv").write_text("\n".join(lines) + "\n", "utf-8")
        with reading(tmp_path), collecting() as notes:
            values = series.read(tmp_path, "time", "value", name)
        return values, " ".join(notes)

    return read


@pytest.mark.parametrize(
    "times",
    [
        ["1", "2", "3", "4", "5"],
        ["0.1", "0.2", "0.3", "0.4", "0.5"],
        [str(day.date()) for day in pd.date_range("2024-02-27", periods=5, freq="D")],
        [str(hour) for hour in pd.date_range("2024-02-28 22:00", periods=5, freq="h")],
        [str(day.date()) for day in pd.date_range("2024-01-31", periods=5, freq="ME")],
        [str(day.date()) for day in pd.date_range("2023-12-31", periods=5, freq="QE")],
        [str(day.date()) for day in pd.date_range("2019-12-31", periods=5, freq="YE")],
        [str(day.date()) for day in pd.bdate_range("2024-02-29", periods=5)],
    ],
)
def test_a_missing_row_is_a_gap_whatever_the_steps_are(read, times):
    rows = [f"{time},{number}" for number, time in enumerate(times)]
    values, notes = read(rows)
    assert values["a.csv"].tolist() == [0, 1, 2, 3, 4]
    assert "no value" not in notes
    order = [4, 0, 1, 2]  # the fourth row is missing
    values, notes = read([rows[number] for number in order])
    assert np.array_equal(values["a.csv"], [0, 1, 2, np.nan, 4], equal_nan=True)
    assert "1 of 5 steps have no value" in notes


def test_empty_cells_are_gaps_and_those_at_the_ends_are_cut(read):
    values, _ = read(["1,", "2,5", "3,NA", "4,0", "5,nan"])
    assert np.array_equal(values["a.csv"], [5, np.nan, 0], equal_nan=True)


def test_a_column_names_several_series_in_one_file(read):
    rows = ["1,10,north", "1,20,south", "2,11,north", "2,21,south"]
    values, _ = read(rows, "time,value,shop", name="shop")
    assert {key: list(found) for key, found in values.items()} == {
        "north": [10, 11],
        "south": [20, 21],
    }


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (["1,5", "2,6", "2,7"], r"a\.csv:4: the series a\.csv has a value for 2 already"),
        (["1,5", "2,6", "3.4,7"], r"a\.csv:4: 3\.4 lies between the steps"),
        (["2024-01-01,5", "soon,6"], r"a\.csv:3: soon is no date"),
        (["1,5", "2,many"], r"a\.csv:3: many in the column value is no number"),
        (["1,", "2,"], r"The series a\.csv has no value"),
    ],
)
def test_what_is_no_series_is_refused_by_its_line(read, rows, sentence):
    with pytest.raises(BadInput, match=sentence):
        read(rows)


@given(
    length=st.integers(40, 200),
    history=st.integers(2, 10),
    horizon=st.integers(1, 6),
    gaps=st.sets(st.integers(1, 199)),
)
@settings(max_examples=60, deadline=None)
def test_no_next_value_of_one_split_is_seen_by_an_earlier_one(length, history, horizon, gaps):
    values = np.arange(length, dtype=float)
    values[[gap for gap in gaps if gap < length - 1]] = np.nan
    try:
        parts = series.windows({"a": values}, history, horizon)
    except BadInput:
        assert len(gaps) > 5  # a split consists of gaps
        return
    steps = {part: [step for _, step, _, _ in found] for part, found in parts.items()}
    assert max(steps["train"]) + horizon <= min(steps["validation"])
    assert max(steps["validation"]) + horizon <= min(steps["test"])
    assert (np.diff(steps["test"]) >= horizon).all()
    for found in parts.values():
        for _, step, past, following in found:
            assert len(past) == history
            assert max(past) < step
            known = [value for value in following if not np.isnan(value)]
            assert known == [at for at in range(step, step + horizon) if not np.isnan(values[at])]


def test_a_series_that_is_too_short_is_refused():
    with pytest.raises(BadInput, match="No window of 48 past and 12 next values is left for train"):
        series.windows({"a": np.arange(50.0)}, 48, 12)
    with pytest.raises(BadInput, match="has 3 values, and a forecast needs 48"):
        series.last({"a": np.arange(3.0)}, 48, 12)


def test_the_last_window_ends_with_the_series():
    ((key, step, past, following),) = series.last({"a": np.arange(9.0)}, 3, 2)
    assert (key, step, past) == ("a", 9, (6, 7, 8))
    assert np.isnan(following).all()


def test_mase_of_the_naive_forecast_of_a_random_walk_is_near_that_of_its_differences():
    """Hyndman and Koehler (2006): the error over the mean difference a season apart, here by hand."""
    train = [("a", 4, (1.0, 2.0, 4.0, 7.0), ()), ("b", 4, (0.0, 10.0, 20.0, 30.0), ())]
    test = [("a", 9, (), (0.0, 0.0)), ("b", 9, (), (0.0, 0.0))]
    parts = {"train": SimpleNamespace(samples=train), "test": SimpleNamespace(samples=test)}
    true = np.array([[1.0, np.nan], [0.0, 0.0]])
    judged = SimpleNamespace(
        true=true, guess=np.array([[3.0, 5], [5, 10]]), sample=np.array([0, 1])
    )
    assert series.mase(judged, parts, 1) == pytest.approx((2 / 2 + 5 / 10 + 10 / 10) / 3)


def test_a_forest_of_scaled_windows_knows_a_series_of_another_size():
    """And windows with a gap among the next values teach it nothing."""
    waves = np.tile(np.arange(6.0), 30)
    small = series.windows({"small": waves}, 6, 2)["train"]
    large = series.windows({"large": 1000 * waves + 7}, 6, 2)["test"]
    gaps = [(*window[:3], (math.nan, 1.0)) for window in small]

    def guessed(train):
        named = {"train": train, "test": large}
        return series.scaled_forest({k: SimpleNamespace(samples=v) for k, v in named.items()})

    (guess,) = guessed(small).values()
    true = np.array([following for *_, following in large])
    assert np.abs(guess - true).max() < 100
    assert guessed(gaps) == {}
