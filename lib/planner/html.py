"""A plan as a picture: its memory as a bar against the card, its figures, and the options beside it.

The elements carry their styles, so that they look the same in a widget, in a saved notebook and in an exported page.
"""

from base64 import b64encode
from collections.abc import Sequence

import jinja2

from lib.machine.facts import CARDS
from lib.machine.memory import GIB, Reading
from lib.planner.card import FITS
from lib.planner.drawing import COLOURS, as_png
from lib.planner.log import CATEGORIES
from lib.planner.page import MACROS
from lib.planner.search import STEPS, Plan
from lib.planner.table import QUOTA_HOURS, alive_rows, driver, layer_rows, notices, quota
from lib.text import computed, duration, weights

_TEXT = ("#fff", "#000", "#000", "#000", "#000", "#000")  # that is readable on the colour of each category
_ALIVE = 8  # groups
_ENVIRONMENT = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters |= {"gib": lambda size: f"{size / GIB:.2f}", "duration": duration, "computed": computed}
_ENVIRONMENT.filters |= {"weights": weights}
_ENVIRONMENT.globals |= {"fits": f"{FITS:.0%}", "lengths": STEPS, "week": f"{QUOTA_HOURS:.0f}", "warning": "#D55E00"}
_ENVIRONMENT.globals |= {"notices": notices, "driver": driver}
_PAGE = _ENVIRONMENT.from_string(MACROS).module


def of_plan(plan: Plan) -> str:
    """Returns verdict, bar, legend, figures, the table of options, layers, and the time of runs of other lengths."""

    def quota_of(steps: int) -> tuple[str, str]:
        share, sessions = quota(plan.seconds(steps))
        return share, f"{sessions} session" + "s" * (sessions != 1)

    on_kaggle = plan.card == CARDS["t4"].name
    return framed(_PAGE.plan_page(plan, _pieces(plan), quota_of if on_kaggle else None, _details(plan)))


def _details(plan: Plan) -> dict[str, object] | None:
    """Returns what the page shows of layers and of the peak; None for a plan without them."""
    prediction = plan.chosen.prediction
    if prediction.timeline is None:
        return None
    drawn = as_png(prediction, f"{plan.run} on {plan.card}")
    return {
        "layers": layer_rows(prediction),
        "alive": alive_rows(prediction, _ALIVE),
        "picture": b64encode(drawn).decode("ascii"),
    }


def _pieces(plan: Plan) -> list[tuple[str, int, str, str]]:
    """Returns name, bytes and colours of what lies in the card's memory: CUDA, then the categories at the peak."""
    taken, text = plan.chosen.prediction.by_category, dict(zip(CATEGORIES, _TEXT, strict=True))
    pieces = [(name, taken[name], COLOURS[name], text[name]) for name in CATEGORIES if name in taken]
    return [("CUDA and libraries", plan.set_aside_bytes, "#999999", "#000"), *pieces]


def gauge(readings: Sequence[Reading]) -> str:
    """Returns the memory in use now, a bar for each reading."""
    return framed(_PAGE.gauge(readings))


def refusal(sentence: str) -> str:
    """Returns the sentence that takes the place of a plan."""
    return framed(_PAGE.refusal(sentence))


def computing(text: str) -> str:
    """Returns a line with a wheel that turns while the plan is made."""
    return str(_PAGE.computing(text))


def framed(html: str) -> str:
    """Frames HTML as wide as its place: a table in it scrolls, where its least width would stretch a widget."""
    return str(_PAGE.framed(html))
