"""The small pieces of a plan's page; the page itself is tested with the panel that shows it."""

import dataclasses

import pytest

from lib import planner
from lib.machine.memory import GIB, Reading
from lib.planner.html import computing, framed, gauge, of_plan, refusal
from tests.markup import unbalanced


def test_texts_are_escaped_and_html_is_not():
    assert "a &lt;b&gt; &amp; c" in refusal("a <b> & c") and 'role="alert"' in refusal("x")
    assert "x &lt;y&gt;" in computing("x <y>")
    assert "<b>1</b>" in framed("<b>1</b>")
    assert type(framed("")) is str, "markup that is added to a text would escape it"


def test_a_reading_is_a_bar_of_its_share():
    page = gauge([Reading("GPU <0>", GIB, 4 * GIB, "a & b"), Reading("RAM", 3 * GIB, 4 * GIB)])
    assert "GPU &lt;0&gt;: 1.00 of 4.00 GiB" in page and "(a &amp; b)" in page
    assert "width:25.0%" in page and "width:75.0%" in page


@pytest.mark.parametrize("card", ["t4", "l4"])  # with a quota, and without
@pytest.mark.parametrize("steps", [0, 5])
def test_every_tag_of_every_macro_is_closed(toy, card, steps):
    plan = dataclasses.replace(planner.make(toy({"training.micro_batch": 1}), planner.find_card(card)), max_steps=steps)
    assert len(plan.options) > 1, "so that the page has their table"
    pages = of_plan(plan), gauge([Reading("GPU", GIB, 4 * GIB)]), refusal("x"), computing("x"), framed("<b>1</b>")
    assert not [mistake for page in pages for mistake in unbalanced(page)]
