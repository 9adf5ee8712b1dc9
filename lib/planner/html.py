"""A plan as a page: a bar against the card, figures, options. Elements carry their styles, which exports keep."""

from collections.abc import Sequence
from pathlib import Path

import jinja2

from lib.machine import disk
from lib.machine.memory import GIB
from lib.planner.card import FITS
from lib.planner.log import CATEGORIES
from lib.planner.search import Plan
from lib.planner.table import describe, layer_rows
from lib.text import table

# Okabe and Ito's palette, which any kind of colour vision distinguishes, with a text that is readable on it.
_COLOURS = dict(
    zip(CATEGORIES, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#F0E442", "#CC79A7"), strict=True)
)
_ENVIRONMENT = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["gib"] = lambda size: f"{size / GIB:.2f}"
_ENVIRONMENT.globals |= {"fits": f"{FITS:.0%}", "warning": "#D55E00", "table": table}
_PAGE = _ENVIRONMENT.from_string(Path(__file__).with_name("page.html").read_text("utf-8")).module
framed, refusal, computing = (getattr(_PAGE, name) for name in ("framed", "refusal", "computing"))


def of_plan(plan: Plan) -> str:
    sheet = describe(plan)
    prediction = plan.chosen.prediction
    pieces = [("CUDA and libraries", plan.set_aside_bytes, "#999999")]
    pieces += [(name, size, _COLOURS[name]) for name, size in prediction.by_category.items()]
    layers = layer_rows(prediction) if prediction.layers else None
    return framed(_PAGE.page(plan, sheet, pieces, layers))


def write(path: Path, plans: Sequence[Plan]) -> None:
    """Writes plans as a page of HTML. Raises OSError."""
    disk.write_text(path, f"<!doctype html><meta charset=utf-8>{''.join(map(of_plan, plans))}")
