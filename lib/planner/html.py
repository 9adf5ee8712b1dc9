"""A plan as a page: a bar against the card, figures, options. Elements carry their styles, which exports keep."""

from collections.abc import Sequence
from pathlib import Path

import jinja2

from lib.machine import disk
from lib.machine.memory import GIB, Reading
from lib.planner.card import FITS
from lib.planner.log import CATEGORIES
from lib.planner.search import Plan
from lib.planner.table import alive_rows, describe, layer_rows
from lib.text import table

# Okabe and Ito's palette, which any kind of colour vision distinguishes, with a text that is readable on it.
_COLOURS = dict(zip(CATEGORIES, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#F0E442", "#CC79A7"), strict=True))
_MACROS = """
{% macro framed(content) %}
<div style="width:0;min-width:100%;overflow-x:hidden">
  <div style="max-width:820px;line-height:20px">{{ content|safe }}</div>
</div>
{% endmacro %}

{% macro page(plan, sheet, pieces, layers, alive) %}
<div style="font-size:15px"><b>{{ plan.run }} fits on {{ sheet.card }}</b>: {{ sheet.verdict }}</div>
{% for line in sheet.about %}<div style="font-size:12px;opacity:.75">{{ line }}</div>{% endfor %}
{{ bar(plan, pieces) }}
{# five figures stand in a row; where there is no room for it three above two, and none stands alone #}
<div style="margin:8px 0 2px 0;display:flex;flex-wrap:wrap">
  {% for group in (sheet.figures[:3], sheet.figures[3:]) if group %}
  <div style="flex:{{ group|length }} 1 {{ 150 * group|length }}px;
       display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr))">
    {% for value, name, detail in group %}
    <div style="margin:0 12px 6px 0">
      <div style="font-size:20px;line-height:26px">{{ value }}</div>
      <div style="font-size:12px;line-height:15px">{{ name|safe }}</div>
      <div style="font-size:11px;line-height:14px;opacity:.7">{{ detail }}</div>
    </div>
    {% endfor %}
  </div>
  {% endfor %}
</div>
{{ table(sheet.options, bold="recommended")|safe if plan.options|length > 1 }}
{% for sentence in sheet.notices %}<div style="font-size:12px">{{ sentence }}</div>{% endfor %}
{% if layers %}
<details style="margin-top:6px;font-size:12px">
  <summary style="display:list-item">Where it goes: layer by layer, and who is alive at the peak</summary>
  {{ table(layers)|safe }}{{ table(alive)|safe }}
</details>
{% endif %}
<details style="margin-top:6px;font-size:12px">
  <summary style="display:list-item">What no prediction sees</summary>
  {% for sentence in plan.chosen.prediction.unseen %}<div>Not seen: {{ sentence }}</div>{% endfor %}
</details>
{% endmacro %}

{# The memory of the card from left to right; `pieces` are (name, bytes, colour). #}
{% macro bar(plan, pieces) %}
{% set total = plan.usable_bytes + plan.set_aside_bytes %}
{% set limit = 100 * (plan.set_aside_bytes + plan.limit_bytes) / total %}
<div style="position:relative;padding-top:18px;margin:6px 0 4px 0">
  <div style="position:absolute;top:0;right:{{ "%.2f"|format(100 - limit) }}%;font-size:11px;padding-right:3px">
    a plan may use {{ fits }}: {{ plan.limit_bytes|gib }} GiB</div>
  <div style="height:34px;border:1px solid #888;border-radius:3px;overflow:hidden;background:#88888820" role="img"
       aria-label="{% for name, size, _ in pieces %}{{ name }} {{ size|gib }}{{ ", " if not loop.last }}{% endfor %}
 of {{ total|gib }} GiB">
    {% for name, size, colour in pieces %}
      <div title="{{ name }}: {{ size|gib }} GiB" style="float:left;box-sizing:border-box;height:34px;line-height:34px;
           width:{{ "%.3f"|format(100 * size / total) }}%;background:{{ colour }};text-align:center;font-size:12px;
           color:{{ "#fff" if name == "weights" else "#000" }};border-right:1px solid #fff;overflow:hidden">
        {#- a piece below 5.5 % of the width has no room for its number -#}
        {{ size|gib if size / total >= 0.055 }}</div>
    {% endfor %}
  </div>
  <div style="position:absolute;top:2px;bottom:-3px;left:{{ "%.2f"|format(limit) }}%;border-left:2px dashed {{ warning
    }}"></div>
</div>
<div style="font-size:12px">
  {% set free = ("free", plan.usable_bytes - plan.chosen.prediction.peak_bytes, "#88888820") %}
  {% for name, size, colour in pieces + [free] %}
    <span style="display:inline-block;margin-right:12px"><span style="display:inline-block;width:11px;height:11px;
      margin-right:4px;background:{{ colour }};border:1px solid #888"></span>{{ name }} {{ size|gib }} GiB</span>
  {% endfor %}
  of the card's {{ total|gib }} GiB
</div>
{% endmacro %}

{% macro gauge(readings) %}
{% for reading in readings %}
  <div style="font-size:12px;line-height:16px">{{ reading.name }}: {{ reading.used|gib }} of {{ reading.total|gib }} GiB
    in use <span style="opacity:.7">({{ reading.detail }})</span></div>
  <div style="height:8px;border:1px solid #888;border-radius:2px;background:#88888820;margin-bottom:4px">
    <div style="height:8px;width:{{ "%.1f"|format(100 * reading.share) }}%;background:#0072B2"></div>
  </div>
{% endfor %}
{% endmacro %}

{% macro refusal(sentence) %}
<div role="alert" style="border-left:4px solid {{ warning }};padding:6px 10px;white-space:pre-wrap">{{ sentence }}</div>
{% endmacro %}

{% macro computing(text) %}
<style>@keyframes trainbook-turn{to{transform:rotate(360deg)}}</style>
<div style="font-size:12px;line-height:20px"><span style="display:inline-block;width:10px;height:10px;
  margin:0 6px -2px 0;border:2px solid #888;border-top-color:transparent;border-radius:50%;
  animation:trainbook-turn 1s linear infinite"></span>{{ text }}</div>
{% endmacro %}
"""
_ENVIRONMENT = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["gib"] = lambda size: f"{size / GIB:.2f}"
_ENVIRONMENT.globals |= {"fits": f"{FITS:.0%}", "warning": "#D55E00", "table": table}
_PAGE = _ENVIRONMENT.from_string(_MACROS).module


def of_plan(plan: Plan) -> str:
    """Returns the page of a plan: verdict, bar, figures, options and layers."""
    sheet, prediction = describe(plan), plan.chosen.prediction
    pieces = [("CUDA and libraries", plan.set_aside_bytes, "#999999")]
    pieces += [(name, size, _COLOURS[name]) for name, size in prediction.by_category.items()]
    layers = layer_rows(prediction) if prediction.layers else None
    return framed(_PAGE.page(plan, sheet, pieces, layers, alive_rows(prediction, 8)))


def write(path: Path, plans: Sequence[Plan]) -> None:
    """Writes plans as a page of HTML. Raises OSError."""
    disk.write_text(path, f"<!doctype html><meta charset=utf-8>{''.join(map(of_plan, plans))}")


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
