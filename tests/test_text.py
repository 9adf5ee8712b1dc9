"""Texts and criteria as a person reads them."""

from lib.text import Criterion, as_html


def test_a_page_keeps_columns_and_signs():
    assert as_html("x < y:\n  a & b") == "<pre>x &lt; y:\n  a &amp; b</pre>"


def test_a_criterion_that_is_exactly_met_is_reached_whatever_its_name():
    assert Criterion("mean", 0.8, 0.8).reached and not Criterion("best", 0.7999, 0.8).reached
    assert str(Criterion("missed_ice", 0.5, 0.4)) == "Criterion missed_ice >= 0.40: 0.5000, reached."
