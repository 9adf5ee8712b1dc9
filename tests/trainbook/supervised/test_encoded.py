"""Columns as they are: what training rows alone decide, what other rows then give, and leaks by name."""

import json

import numpy as np
import pytest

from lib.errors import BadInput
from trainbook.supervised import columns, encoded
from trainbook.supervised.notes import collecting

COLOURS = ("red", "green", "blue")


def table(number=60):
    draw = np.random.default_rng(0)
    rows = []
    for place in range(number):
        colour = COLOURS[place % 3]
        rows.append(
            {
                "area": f"{draw.uniform(1, 9):.2f}" if place % 7 else "NA",
                "code": str(1000 + place % 4),
                "colour": colour if place % 11 else "",
                "sold": f"2021-{1 + place % 12:02}-{1 + place % 28:02}",
                "said": f"{colour} house near river number {place % 13} and garden {place}",
                "name": f"n{place}",
                "same": "1",
            }
        )
    return rows


def test_each_column_is_what_its_training_cells_are_and_json_keeps_it():
    kinds = encoded.learned(table(), words=["code"])
    taken = {name: kind["as"] for name, kind in kinds.items()}
    assert taken == {
        "area": "numbers", "code": "words", "colour": "words", "sold": "date", "said": "text",
        "name": "left out", "same": "left out",
    }  # fmt: skip
    assert kinds["area"]["gaps"] == 9
    kept = json.loads(json.dumps(kinds))
    assert encoded.rows(kept, table()) == encoded.rows(kinds, table())
    shown = encoded.described(kinds)
    assert "%Y-%m-%d: day, year, month, weekday" in shown
    assert "nearly each row has a name of its own" in shown


def test_dates_become_their_parts_and_gaps_stay_unknown():
    kinds = encoded.learned(table())
    (row,) = encoded.rows(kinds, [{"sold": "2024-02-29", "area": "nan", "colour": None}])
    assert row["sold year"] == 2024
    assert row["sold month"] == 2
    assert row["sold weekday"] == 3
    assert row["area"] is None
    assert row["colour"] == ""


def test_other_rows_may_have_words_dates_and_texts_that_training_had_not():
    rows = table()
    kinds = encoded.learned(rows)
    made = encoded.rows(kinds, rows)
    learned = columns.learned(made, encoded.words(kinds))
    new = [{"area": "x", "code": "7", "colour": "violet", "sold": "soon", "said": "", "name": "q"}]
    with collecting() as notes:
        again = encoded.rows(kinds, [*rows[:2], *new])
        tensors = columns.tensors(learned, again)
    assert any("'x'" in note and "counts as unknown" in note for note in notes)
    assert any("'soon'" in note for note in notes)
    assert all(value.isfinite().all() for value in tensors.values() if value.is_floating_point())
    assert tensors["gaps"][-1].any()


def test_texts_that_share_words_are_near_in_their_numbers():
    rows = table()
    kinds = encoded.learned(rows)
    made = encoded.rows(kinds, rows)
    names = [name for name in made[0] if name.startswith("said ") and name != "said length"]
    vectors = np.array([[row[name] for name in names] for row in made])
    assert len(names) > 4
    near = vectors @ vectors.T
    of_colour = np.array([place % 3 for place in range(len(rows))])
    same = of_colour[:, None] == of_colour
    assert near[same].mean() > near[~same].mean() + 0.1


def test_a_column_of_numbers_in_training_alone_decides():
    kinds = encoded.learned([{"x": "1"}, {"x": "2"}, {"x": "3"}])
    with collecting():
        assert encoded.rows(kinds, [{"x": "four"}]) == [{"x": None}]
    with pytest.raises(BadInput, match=r"workload\.words names y"):
        encoded.learned([{"x": "1"}, {"x": "2"}], words=["y"])
    with pytest.raises(BadInput, match="No column can be learned"):
        encoded.learned([{"x": "1"}, {"x": "1"}])


def test_leaks_are_named_and_innocent_columns_are_not():
    draw = np.random.default_rng(1)
    targets = draw.permutation(40).astype(float).tolist()
    rows = [{"euro": f"{target * 3 + 1}", "x": f"{draw.random()}"} for target in targets]
    with collecting() as notes:
        encoded.note_leaks(rows, [*targets], [f"{draw.random()}" for _ in rows])
    assert len(notes) == 1
    assert "The column euro tells the target" in notes[0]
    with collecting() as notes:
        encoded.note_leaks([{"x": row["x"]} for row in rows], [*targets], [*targets])
    assert "The ids order the target" in notes[0]
    words = [{"answer": "ja" if place % 2 else "nein"} for place in range(40)]
    classes = ["yes" if place % 2 else "no" for place in range(40)]
    with collecting() as notes:
        encoded.note_leaks(words, classes, [*range(40)])
    assert len(notes) == 1
    by_row = ["no"] * 20 + ["yes"] * 20
    with collecting() as notes:
        encoded.note_leaks([{"x": f"{place % 7}"} for place in range(40)], by_row, ["a"] * 40)
    assert "The order of the rows orders the target" in notes[0].replace("order the", "orders the")
    with collecting() as notes:
        encoded.note_leaks(rows[:5], [*targets[:5]], [*targets[:5]])
    assert not notes  # of few rows chance tells as much
