"""Draws a plan as a page: a bar against the card, figures, options.

Elements carry their styles, so that exports keep them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from lib.machine import disk
from lib.machine.memory import GIB
from lib.planner.card import FITS
from lib.planner.log import CATEGORIES
from lib.planner.search import Plan
from lib.planner.table import describe, layer_rows
from lib.text import table

# Okabe and Ito's palette, which any kind of colour vision distinguishes, with a text that is readable on it.
_PALETTE = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#F0E442", "#CC79A7")
_COLOURS = dict(zip(CATEGORIES, _PALETTE, strict=True))
_ENVIRONMENT = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["gib"] = lambda size: f"{size / GIB:.2f}"
_ENVIRONMENT.globals |= {"fits": f"{FITS:.0%}", "warning": "#D55E00", "table": table}
_TEMPLATE = Path(__file__).with_name("page.html").read_text("utf-8")
_PAGE: Any = _ENVIRONMENT.from_string(_TEMPLATE).module
framed = _PAGE.framed
refusal = _PAGE.refusal
computing = _PAGE.computing


def of_plan(plan: Plan) -> str:
    sheet = describe(plan)
    prediction = plan.chosen.prediction
    pieces = [("CUDA and libraries", plan.set_aside_bytes, "#999999")]
    for name, size in prediction.by_category.items():
        pieces.append((name, size, _COLOURS[name]))
    layers = layer_rows(prediction) if prediction.layers else None
    return framed(_PAGE.page(plan, sheet, pieces, layers))


def write(path: Path, plans: Sequence[Plan]) -> None:
    """Writes plans as a page of HTML. Raises OSError."""
    disk.write_text(path, f"<!doctype html><meta charset=utf-8>{''.join(map(of_plan, plans))}")
