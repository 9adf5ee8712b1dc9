"""A judgment with the roles of its sentences as a page of HTML: in colours, and readable without them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2

_TEMPLATE = Path(__file__).with_name("page.html.in")
# Okabe and Ito's palette, which any kind of colour vision distinguishes; further roles have hues between these
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#666666")
_UNSURE = 0.5  # a role below this probability is marked


def of(answers: Sequence[Mapping[str, Any]], name: str, classes: Sequence[str]) -> str:
    """Returns the page of one judgment; `answers` are the rows of `prediction.rows`."""
    number = Counter(row["role"] for row in answers)
    legend = [
        {"role": role, "colour": colour_of(k), "sentences": number[role]} for k, role in enumerate(classes)
    ]  # fmt: skip
    colours = {one["role"]: one["colour"] for one in legend}
    runs = [
        {"role": role, "colour": colours[role], "sentences": [_shown(row) for row in run]}
        for role, run in groupby(answers, key=lambda row: row["role"])
    ]
    unsure = sum(row["probability"] < _UNSURE for row in answers)
    return _page().render(
        name=name, legend=legend, runs=runs, count=len(answers), unsure=unsure, below=f"{_UNSURE:.0%}"
    )


@cache
def _page() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE.read_text("utf-8"))


def colour_of(number: int) -> str:
    return _COLOURS[number] if number < len(_COLOURS) else f"hsl({number * 137 % 360} 60% 38%)"


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    ranked = sorted(row["probabilities"].items(), key=lambda one: -one[1])
    return {
        "number": row["sentence"],
        "text": row["text"],
        "hover": "\n".join(f"{role}: {share:.0%}" for role, share in ranked[:4]),
        "is_unsure": row["probability"] < _UNSURE,
    }
