"""Tables, durations, bytes and criteria as a person reads them."""

from lib.text import Criterion, aligned, amount, duration


def test_columns_are_as_wide_as_their_widest_cell_and_no_line_ends_in_spaces():
    rows = [("run", "steps"), ("toy-seed10", "1,200"), ("b", "7")]
    assert aligned(rows, left={0}) == "run         steps\ntoy-seed10  1,200\nb               7"
    assert aligned([("a", "note"), ("1", "")], left={1}) == "a  note\n1"


def test_durations_are_hours_minutes_and_seconds():
    assert [duration(s) for s in (0, 59.9, 3600, 11225)] == ["0:00:00", "0:00:59", "1:00:00", "3:07:05"]


def test_bytes_are_in_the_units_of_a_disk():
    assert [amount(n) for n in (650_000, 34_500_000, 1.2e9)] == ["0.7 MB", "34.5 MB", "1.2 GB"]


def test_a_criterion_that_is_exactly_met_is_reached_whatever_its_name():
    assert Criterion("mean", 0.8, 0.8).reached and not Criterion("best", 0.7999, 0.8).reached
    assert str(Criterion("missed_ice", 0.5, 0.4)) == "Criterion missed_ice >= 0.40: 0.5000, reached."
