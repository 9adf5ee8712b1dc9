"""Columns of a table: what training rows teach, and rows as tensors by it."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import norm

from lib.errors import BadInput
from trainbook.supervised import columns

ROWS = [
    {"area": "20", "age": "", "place": "Graz"},
    {"area": "30", "age": "7", "place": "Linz"},
    {"area": "40", "age": "9", "place": "Graz"},
    {"area": "50.5", "age": "9", "place": "Wels"},
]


def of(values):
    """Returns what a column `x` of numbers teaches."""
    return json.loads(json.dumps(columns.learned([{"x": value} for value in values])))


def test_a_column_is_numbers_or_words_by_its_training_cells_and_says_so():
    learned = columns.learned(ROWS)
    assert [*learned["numbers"]] == ["area", "age"]
    assert learned["words"] == {"place": ["Graz"]}
    assert columns.described(learned) == "Columns: numbers in area, age; words in place (1 words)."


def test_a_column_of_dates_is_numbers_unless_it_is_listed_and_says_so(capsys):
    rows = [{"sold": f"{day}.3.2024", "price": day} for day in (1, 4, 12)] + [
        {"sold": "", "price": 5}
    ]
    known = columns.learned(rows)
    shown = columns.described(known)
    assert (
        shown == "Columns: numbers in price; dates in sold (%d.%m.%Y: day, year, month, weekday)."
    )
    assert known["words"] == {}
    batch = columns.tensors(
        known, [{"sold": "11.3.2024", "price": 1}, {"sold": "soon", "price": 1}]
    )
    names = [*known["numbers"]]
    scale = known["numbers"]["sold weekday"]  # Friday, Monday, Tuesday
    monday = (0 - scale["mean"]) / scale["deviation"]
    assert batch["numbers"][0, names.index("sold weekday")] == pytest.approx(monday)
    assert batch["gaps"].tolist() == [[False] * 5, [name != "price" for name in names]]
    assert "holds dates, and other rows have 'soon' there" in capsys.readouterr().out
    assert [*columns.learned(rows, ["sold"])["words"]] == ["sold"]


def test_a_column_of_which_nothing_is_learned_is_named():
    rows = [{"name": f"row {number}", "price": number} for number in range(4)]
    shown = columns.described(columns.learned(rows))
    assert shown == "Columns: numbers in price; nothing in name, where no cell comes twice."


def test_a_column_of_digits_that_is_listed_holds_words():
    learned = columns.learned(
        [{"code": code} for code in ("1010", "1010", "1050", "1050")], ["code"]
    )
    assert learned == {"numbers": {}, "words": {"code": ["1010", "1050"]}}


@pytest.mark.parametrize("cell", ["1 200", "NA", "5 %", "1_000", "inf"])
def test_a_column_of_numbers_with_another_cell_is_refused_with_the_cell(cell):
    with pytest.raises(BadInput, match=rf"column area.*1 of 5.*{cell}.*workload.words"):
        columns.learned([*ROWS, {"area": cell, "age": "1", "place": "Graz"}])


def test_words_that_are_no_column_and_rows_without_columns_are_refused():
    with pytest.raises(BadInput, match=r"names plaze, and the columns are area, age, place"):
        columns.learned(ROWS, ["plaze"])
    with pytest.raises(BadInput, match=r"no columns.*workload.features"):
        columns.learned([{}, {}])


def test_new_rows_are_scaled_by_the_training_rows_gaps_stay_and_unknown_words_are_alike():
    learned = json.loads(json.dumps(columns.learned(ROWS)))
    new = [
        {"area": 50.5, "age": None, "place": "Graz"},
        {"area": "20", "age": "9", "place": "Wels"},
    ]
    batch = columns.tensors(learned, [*new, {"area": "1e9", "age": "7", "place": "Rom"}])
    area = np.array([20, 30, 40, 50.5])
    torch.testing.assert_close(batch["numbers"][:2, 0], scaled(area, [50.5, 20]))
    assert batch["gaps"].tolist() == [[False, True], [False, False], [False, False]]
    assert batch["numbers"][0, 1] == 0
    assert batch["words"].tolist() == [[1], [0], [0]], "a word of one training row tells as little"
    with pytest.raises(BadInput, match=r"'old' in the column age is no number"):
        columns.tensors(learned, [{"area": "20", "age": "old", "place": "Graz"}])


def test_a_column_that_new_rows_lack_is_named(capsys):
    batch = columns.tensors(columns.learned(ROWS), [{"area": "20", "place": "Graz"}])
    assert batch["gaps"].tolist() == [[False, True]]
    assert "no column age" in capsys.readouterr().out


def scaled(train, values):
    return torch.tensor((np.array(values) - train.mean()) / train.std()).float()


def test_the_simple_method_sees_numbers_marks_of_gaps_and_of_common_words():
    learned = columns.learned(ROWS)
    plain = columns.plain(columns.tensors(learned, ROWS), learned)
    assert plain.shape == (4, 4)
    assert plain[0, 1] == 0, "a gap is the mean"
    assert plain[:, 2].tolist() == [1, 0, 0, 0]
    assert plain[:, 3].tolist() == [1, 0, 1, 0]


def test_the_simple_method_sees_the_rank_of_words_in_the_alphabet():
    rows = [{"cut": word} for word in ("fair", "good", "ideal", "fair", "good", "ideal", "fair")]
    learned = columns.learned(rows)
    new = [*rows[:3], {"cut": "unseen"}, {"cut": ""}]
    plain = columns.plain(columns.tensors(learned, new), learned)
    assert plain.shape == (5, 4)
    assert plain[:, 3].tolist() == [-1, 0, 1, 0, 0]


def encoded(learned, values):
    batch = columns.tensors(learned, [{"x": value} for value in values])
    return columns.Encoder(learned)(**batch)


def test_numbers_are_encoded_by_deviation_normal_rank_and_places_in_bins():
    draw = np.random.default_rng(0).exponential(size=5000)
    learned = of(draw.tolist())
    some = np.quantile(draw, [0.003, 0.1, 0.5, 0.77, 0.99])
    x = encoded(learned, some.tolist())
    assert x.shape == (5, 3 + columns.BINS)
    torch.testing.assert_close(x[:, 0], scaled(draw, some).clamp(-4, 4))
    shares = (draw[None] < some[:, None]).mean(1)
    expected = torch.tensor(norm.ppf(shares)).float()
    torch.testing.assert_close(x[:, 1], expected, atol=0.1, rtol=0)
    full = torch.tensor(shares * columns.BINS).float()
    torch.testing.assert_close((x[:, 3:] + 0.5).sum(1), full, atol=0.1, rtol=0)
    assert (x[:, 3:].diff(dim=1) <= 1e-6).all(), "a bin is full before the next one begins"


def test_numbers_that_come_often_have_the_middle_of_their_ranks_and_the_farthest_are_cut():
    x = encoded(of([0.0] * 50 + [1.0] * 50), [0.0, 1.0, 1e300, -1e300])
    assert x.isfinite().all()
    torch.testing.assert_close(x[0, 1], -x[1, 1])
    assert x[0, 1] < 0
    assert x[2, 0] == 4
    assert x[2, 1] > x[1, 1]


def test_a_column_of_one_number_or_none_says_nothing_and_breaks_nothing():
    assert encoded(of([7.0] * 9), [7.0]).isfinite().all()
    learned = columns.learned([{"x": ""}, {"x": None}])
    assert columns.Encoder(learned)(**columns.tensors(learned, [{"x": "new"}])).isfinite().all()


def test_gaps_are_marked_where_training_rows_have_some():
    with_gaps = of(["", "1", "2", "3"])
    x = encoded(with_gaps, ["", "1"])
    assert x[:, 2].tolist() == [1, 0]
    assert x[0, 0] == 0, "and have the mean"
    assert encoded(of(["1", "2", "3"]), [""])[0, 2] == 0, "a mark that training never saw"
