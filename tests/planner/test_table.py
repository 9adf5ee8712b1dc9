"""A plan in text and as a page: both have the same rows; the page itself is tested with the panel that shows it."""

import dataclasses

import pytest

from lib import planner
from lib.machine.memory import GIB, Reading
from lib.planner.html import computing, framed, gauge, of_plan, refusal
from lib.planner.table import describe, quota
from tests.markup import unbalanced
from trainbook import commands


def test_gpu_time_as_a_share_of_a_week_and_in_sessions():
    assert quota(3 * 3600) == ("10.0%", 1)
    assert [quota(hours * 3600)[1] for hours in (0, 11, 12, 23.1)] == [1, 1, 2, 3]


def test_texts_are_escaped_and_html_is_not():
    assert "a &lt;b&gt; &amp; c" in refusal("a <b> & c") and 'role="alert"' in refusal("x")
    assert "x &lt;y&gt;" in computing("x <y>")
    assert "<b>1</b>" in framed("<b>1</b>")
    assert type(framed("")) is str, "markup that is added to a text would escape it"


def test_a_reading_is_a_bar_of_its_share():
    page = gauge([Reading("GPU <0>", GIB, 4 * GIB, "a & b"), Reading("RAM", 3 * GIB, 4 * GIB)])
    assert "GPU &lt;0&gt;: 1.00 of 4.00 GiB" in page and "(a &amp; b)" in page
    assert "width:25.0%" in page and "width:75.0%" in page


@pytest.mark.parametrize("card, steps", [("t4", 5), ("l4", 0)])  # with a quota, and without
def test_text_and_page_have_the_same_rows_and_every_tag_is_closed(toy, card, steps):
    plan = dataclasses.replace(planner.make(toy({"training.micro_batch": 1}), planner.find_card(card)), max_steps=steps)
    assert len(plan.options) > 1, "so that the page has their table"
    sheet, text, page = describe(plan), planner.of_plan(plan), of_plan(plan)
    for rows in (sheet.options, sheet.lengths):
        assert all(cell in text and (not cell or f">{cell}</t" in page) for row in rows for cell in row)
    assert ("of week" in text) == ("quota" in page) == (card == "t4")
    assert not unbalanced(page + gauge([Reading("GPU", GIB, 4 * GIB)]) + refusal("x") + computing("x"))


def test_the_command_prints_layers_and_writes_a_page(toy, tmp_path, capsys):
    toy()
    page = tmp_path / "plan.html"
    assert commands.main(["plan", str(tmp_path / "toy.yaml"), "--layers", "--page", str(page)]) == 0
    printed = capsys.readouterr()
    assert "gradients  optimizer  activations  of peak" in printed.out and f"Wrote {page}" in printed.err
    assert "Where it goes" in page.read_text() and not unbalanced(page.read_text().partition("utf-8>")[2])
