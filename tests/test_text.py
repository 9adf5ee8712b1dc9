"""Tables and criteria as a person reads them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lib.text import Criterion, aligned, as_html, split_tables

CELLS = st.lists(st.text("ab1.,%é", min_size=1), min_size=1).map(" ".join)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.data(), st.integers(2, 4), st.sets(st.integers(0, 3)))
def test_a_table_in_a_text_is_split_into_the_cells_that_it_was_set_from(data, columns, left):
    rows = data.draw(st.lists(st.lists(CELLS, min_size=columns, max_size=columns), min_size=2))
    rows[0][0] = ""  # as some heads begin
    text = f"A sentence.\n\n{aligned(rows, left)}\nAnother one:\n  an indented line"
    assert list(split_tables(text)) == ["A sentence.", rows, "Another one:\n  an indented line"]


def test_a_page_keeps_lines_indents_and_signs():
    page = as_html("x < y:\n  a & b")
    assert "<table" not in page
    assert ">x &lt; y:<br>&emsp;a &amp; b<" in page


def test_a_criterion_that_is_exactly_met_is_reached_whatever_its_name():
    assert Criterion("mean", 0.8, 0.8).reached
    assert not Criterion("best", 0.7999, 0.8).reached
    assert (
        str(Criterion("missed_ice", 0.5, 0.4)) == "Criterion missed_ice >= 0.40: 0.5000, reached."
    )
