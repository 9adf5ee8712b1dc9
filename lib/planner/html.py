"""A plan as a picture: its memory as a bar against the card, what it comes to, and the options beside it.

Plain elements with styles in place, so that it looks the same in a widget, in a saved notebook and in an exported page.
"""

from collections.abc import Sequence
from html import escape

from lib.machine.facts import CARDS
from lib.machine.memory import GIB, Reading
from lib.planner.card import FITS
from lib.planner.search import STEPS, Option, Plan
from lib.planner.table import QUOTA_HOURS, duration, quota_share, sessions_for
from lib.planner.trace import CATEGORIES

# Okabe and Ito's palette, which is told apart with any kind of colour vision, and the text colour that reads on each.
_COLOURS = dict(
    zip(
        CATEGORIES,
        [("#0072B2", "#fff"), ("#56B4E9", "#000"), ("#009E73", "#000"), ("#E69F00", "#000"), ("#F0E442", "#000"),
         ("#CC79A7", "#000")],
        strict=True,
    )
)  # fmt: skip
_CONTEXT, _LIMIT = "#999999", "#D55E00"
_LABELLED = 0.055  # of the width: a narrower piece of the bar has no room for its number


def of_plan(plan: Plan) -> str:
    """Verdict, bar, legend, figures, the table of options and the time of runs of other lengths."""
    return framed(_verdict(plan) + bar(plan) + _figures(plan) + _options(plan) + _other_lengths(plan))


def bar(plan: Plan) -> str:
    """The memory of the card from left to right: CUDA and libraries, the categories at the peak, and what is left."""
    total, aside = plan.usable_bytes + plan.set_aside_bytes, plan.set_aside_bytes
    taken = plan.chosen.prediction.by_category
    pieces = [("CUDA and libraries", aside, _CONTEXT, "#000")]
    pieces += [(name, taken[name], *_COLOURS[name]) for name in CATEGORIES if name in taken]
    limit = 100 * (aside + plan.limit_bytes) / total
    drawn = "".join(_piece(*piece, total) for piece in pieces)
    head_room = plan.usable_bytes - plan.chosen.prediction.peak_bytes
    legend = "".join(_legend(name, size, colour) for name, size, colour, _ in pieces)
    return (
        '<div style="position:relative;padding-top:18px;margin:6px 0 4px 0">'
        f'<div style="position:absolute;top:0;right:{100 - limit:.2f}%;font-size:11px;padding-right:3px">'
        f"a plan may use {FITS:.0%}: {plan.limit_bytes / GIB:.2f} GiB</div>"
        '<div style="height:34px;border:1px solid #888;border-radius:3px;overflow:hidden;background:#88888820" '
        f'role="img" aria-label="{_in_words(pieces, total)}">{drawn}</div>'
        f'<div style="position:absolute;top:2px;bottom:-3px;left:{limit:.2f}%;border-left:2px dashed {_LIMIT}"></div>'
        "</div>"
        f'<div style="font-size:12px">{legend}'
        f'<span style="display:inline-block">{_swatch("#88888820")}free {head_room / GIB:.2f} of {total / GIB:.2f} GiB'
        "</span></div>"
    )


def _piece(name: str, size: int, colour: str, text: str, total: int) -> str:
    share = size / total
    label = f"{size / GIB:.2f}" if share >= _LABELLED else ""
    return (
        f'<div title="{name}: {size / GIB:.2f} GiB" style="float:left;box-sizing:border-box;width:{100 * share:.3f}%;'
        f"height:34px;line-height:34px;background:{colour};color:{text};text-align:center;font-size:12px;"
        f'border-right:1px solid #fff;overflow:hidden">{label}</div>'
    )


def _legend(name: str, size: int, colour: str) -> str:
    return f'<span style="display:inline-block;margin-right:12px">{_swatch(colour)}{name} {size / GIB:.2f} GiB</span>'


def _swatch(colour: str) -> str:
    return (
        f'<span style="display:inline-block;width:11px;height:11px;margin-right:4px;background:{colour};'
        'border:1px solid #888"></span>'
    )


def _in_words(pieces: Sequence[tuple[str, int, str, str]], total: int) -> str:
    return ", ".join(f"{name} {size / GIB:.2f}" for name, size, *_ in pieces) + f" of {total / GIB:.2f} GiB"


def _verdict(plan: Plan) -> str:
    prediction = plan.chosen.prediction
    each = "" if plan.cards == 1 else f"{plan.cards} x "
    return (
        f'<div style="font-size:15px"><b>{escape(plan.run)} fits on {each}{escape(plan.card)}</b>: at the peak '
        f"{prediction.peak_bytes / GIB:.2f} of {plan.usable_bytes / GIB:.2f} GiB ({prediction.share:.0%})</div>"
        f'<div style="font-size:12px;opacity:.75">{plan.parameters / 1e6:.1f} M parameters, {plan.precision}, '
        f"effective batch {plan.effective_batch}; PyTorch's allocator reserves "
        f"{prediction.reserved_bytes / GIB:.2f} GiB</div>"
    )


def _figures(plan: Plan) -> str:
    option = plan.chosen
    fast, slow = (1 / seconds for seconds in option.step_seconds)
    batch = f"{plan.effective_batch} = {plan.cards} x {option.passes} x {option.micro_batch}"
    exact = plan.cards * option.passes * option.micro_batch == plan.effective_batch
    figures = [
        (str(option.micro_batch), "micro-batch", batch if exact else f"{option.passes} passes on each card"),
        (f"{option.recomputed} of {plan.layers}", "layers recomputed", f"{option.relative_compute:.2f} x the compute"),
        (f"{1 / option.expected_seconds:.2f}", "steps a second", f"expected; {slow:.2f} to {fast:.2f}"),
    ]
    if plan.max_steps:
        figures.append((duration(plan.hours(plan.max_steps)), "GPU time", f"{plan.max_steps:,} steps"))
    if plan.max_steps and _on_kaggle(plan):
        share, sessions = _quota(plan, plan.max_steps)
        figures.append((share, "of a week's quota", f"{sessions}, of {QUOTA_HOURS:.0f} GPU hours"))
    return '<div style="margin:8px 0 2px 0">' + "".join(_figure(*figure) for figure in figures) + "</div>"


def _figure(value: str, name: str, detail: str) -> str:
    return (
        '<div style="display:inline-block;vertical-align:top;margin:0 20px 6px 0">'
        f'<div style="font-size:20px;line-height:26px">{value}</div><div style="font-size:12px;line-height:15px">{name}'
        f'</div><div style="font-size:11px;line-height:14px;opacity:.7">{detail}</div></div>'
    )


def _options(plan: Plan) -> str:
    head = ["", "micro-batch", "passes", "recomputed", "peak GiB", "compute", "steps/s"]
    head += ["GPU time"] if plan.max_steps else []
    rows = [_option_cells(plan, option) for option in plan.options]
    return table(head, rows, bold=plan.options.index(plan.chosen))


def _option_cells(plan: Plan, option: Option) -> list[str]:
    cells = [
        "recommended" if option == plan.chosen else "fits" if option.fits else "does not fit",
        str(option.micro_batch),
        str(option.passes),
        f"{option.recomputed} of {plan.layers}",
        f"{option.prediction.peak_bytes / GIB:.2f}",
        f"{option.relative_compute:.2f} x",
        f"{1 / option.expected_seconds:.2f}",
    ]
    return cells + ([duration(plan.hours(plan.max_steps, option))] if plan.max_steps else [])


def _other_lengths(plan: Plan) -> str:
    head = ["steps", "GPU time"] + (["of a week's quota", "sessions"] if _on_kaggle(plan) else [])
    rows = [[f"{n:,}", duration(plan.hours(n)), *([*_quota(plan, n)] if _on_kaggle(plan) else [])] for n in STEPS]
    unseen = "".join(f"<div>Not seen: {escape(sentence)}</div>" for sentence in plan.chosen.prediction.unseen)
    return (
        '<details style="margin-top:6px;font-size:12px"><summary>Runs of other lengths, and what no prediction sees'
        f"</summary>{table(head, rows)}<div>Times come from a roofline, without evaluation, loading and saving; the "
        f"smoke test of a training notebook measures the true speed.</div>{unseen}</details>"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], bold: int = -1) -> str:
    """A table with its cells to the right, one row in bold."""
    cell = "padding:1px 10px 1px 0;text-align:right;white-space:nowrap"
    top = "".join(f'<th style="{cell};font-weight:normal;opacity:.7">{escape(name)}</th>' for name in head)
    lines = "".join(
        f'<tr style="font-weight:{"bold" if number == bold else "normal"}">'
        + "".join(f'<td style="{cell}">{escape(value)}</td>' for value in row)
        + "</tr>"
        for number, row in enumerate(rows)
    )
    return (
        '<div style="overflow-x:auto">'
        '<table style="border-collapse:collapse;font-size:12px;margin:4px 0;line-height:18px">'
        f"<thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def gauge(readings: Sequence[Reading]) -> str:
    """What is in use now, a bar for each reading."""
    rows = "".join(
        f'<div style="font-size:12px;line-height:16px">{escape(reading.name)}: {reading.used / GIB:.2f} of '
        f'{reading.total / GIB:.2f} GiB in use <span style="opacity:.7">({escape(reading.detail)})</span></div>'
        '<div style="height:8px;border:1px solid #888;border-radius:2px;background:#88888820;margin-bottom:4px">'
        f'<div style="height:8px;width:{100 * reading.share:.1f}%;background:#0072B2"></div></div>'
        for reading in readings
    )
    return framed(rows)


def refusal(sentence: str) -> str:
    """What is wrong and what to do, in place of a plan."""
    return framed(
        f'<div role="alert" style="border-left:4px solid {_LIMIT};padding:6px 10px;white-space:pre-wrap">'
        f"{escape(sentence)}</div>"
    )


def computing(text: str) -> str:
    """A line with a wheel that turns while the plan is made."""
    return (
        "<style>@keyframes trainbook-turn{to{transform:rotate(360deg)}}</style>"
        '<div style="font-size:12px;line-height:20px"><span style="display:inline-block;width:10px;height:10px;'
        "border:2px solid #888;border-top-color:transparent;border-radius:50%;margin:0 6px -2px 0;"
        f'animation:trainbook-turn 1s linear infinite"></span>{escape(text)}</div>'
    )


def dimmed(html: str) -> str:
    """An answer that is about to be replaced."""
    return f'<div style="opacity:.35">{html}</div>'


def framed(html: str) -> str:
    """As wide as its place and no wider: a table in it scrolls, where its least width would stretch a widget."""
    inner = f'<div style="max-width:820px;line-height:20px">{html}</div>'
    return f'<div style="width:0;min-width:100%;overflow-x:hidden">{inner}</div>'


def _on_kaggle(plan: Plan) -> bool:
    return plan.card == CARDS["t4"].name


def _quota(plan: Plan, steps: int) -> tuple[str, str]:
    hours = plan.hours(steps)
    sessions = sessions_for(hours)
    return quota_share(hours), f"{sessions} session" + "s" * (sessions != 1)
