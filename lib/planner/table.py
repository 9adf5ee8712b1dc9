"""Plans as text: what fits, how long it takes, and what it costs of a week's quota."""

import math
from collections.abc import Sequence

from lib.machine.facts import FACTS
from lib.machine.memory import GIB
from lib.planner.card import FITS
from lib.planner.search import STEPS, Option, Plan
from lib.text import aligned

QUOTA_HOURS = float(FACTS["kaggle_gpu_quota_hours"].value)
_RUN_HOURS = float(FACTS["kaggle_run_minutes"].value) / 60


def of_plan(plan: Plan) -> str:
    """The options of one plan, what is recommended, where its memory goes, and the time of runs of many lengths."""
    return "\n\n".join([_head(plan), _options(plan), _memory(plan), _time(plan), _unseen(plan)])


def of_plans(plans: Sequence[Plan]) -> str:
    """Several models or cards side by side: what is recommended for each."""
    rows = [
        ["run", "card", "parameters", "micro-batch", "recomputed", "peak GiB", "of card", "steps/s", "steps a week"]
    ]
    for plan in plans:
        option = plan.chosen
        rows.append([
            plan.run, f"{plan.cards} x {plan.card}", f"{plan.parameters / 1e6:.1f} M",
            f"{option.micro_batch} x {option.passes}", f"{option.recomputed} of {plan.layers}",
            f"{option.prediction.peak_bytes / GIB:.2f}", f"{option.prediction.share:.0%}",
            _speed(option), f"{steps_a_week(plan):,.0f}",
        ])  # fmt: skip
    return aligned(rows)


def steps_a_week(plan: Plan) -> float:
    """Steps that Kaggle's weekly GPU hours give at the expected speed."""
    return 3600 * QUOTA_HOURS / plan.chosen.expected_seconds


def _head(plan: Plan) -> str:
    each = "card" if plan.cards == 1 else "cards"
    return (
        f"{plan.run}: {plan.parameters / 1e6:.1f} M parameters on {plan.cards} {each} ({plan.card}), {plan.precision}, "
        f"effective batch {plan.effective_batch} in {plan.slots} slot(s).\n"
        f"Of {plan.usable_bytes / GIB:.2f} GiB after the CUDA context at most {FITS:.0%} are planned: "
        f"{plan.limit_bytes / GIB:.2f} GiB."
    )


def _options(plan: Plan) -> str:
    rows = [["", "micro-batch", "passes", "recomputed", "peak GiB", "head room", "compute", "steps/s (from-to)"]]
    if plan.max_steps:
        rows[0] += ["time", "of week", "sessions"]
    for option in plan.options:
        room = (option.prediction.usable_bytes - option.prediction.peak_bytes) / GIB
        row = [
            "->" if option == plan.chosen else "" if option.fits else "no",
            str(option.micro_batch), str(option.passes), f"{option.recomputed} of {plan.layers}",
            f"{option.prediction.peak_bytes / GIB:.2f}", f"{room:.2f} GiB", f"{option.relative_compute:.2f} x",
            _speed(option),
        ]  # fmt: skip
        rows.append(row + (_cost(plan, plan.max_steps, option) if plan.max_steps else []))
    return aligned(rows)


def _speed(option: Option) -> str:
    fast, slow = (1 / seconds for seconds in option.step_seconds)
    return f"{1 / option.expected_seconds:.2f} ({slow:.2f}-{fast:.2f})"


def _cost(plan: Plan, steps: int, option: Option | None = None) -> list[str]:
    hours = plan.hours(steps, option)
    return [duration(hours), quota_share(hours), str(sessions_for(hours))]


def duration(hours: float) -> str:
    """Hours, minutes or seconds, whichever reads well."""
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours >= 1 / 20 else f"{3600 * hours:.0f} s"


def quota_share(hours: float) -> str:
    """GPU hours as a share of a week's."""
    return f"{hours / QUOTA_HOURS:.1%}"


def sessions_for(hours: float) -> int:
    """Kaggle sessions that hold so many GPU hours."""
    return max(1, math.ceil(hours / _RUN_HOURS))


def _memory(plan: Plan) -> str:
    prediction = plan.chosen.prediction
    categories = [f"{name} {size / GIB:.2f}" for name, size in prediction.by_category.items()]
    modules = [f"{name} {size / GIB:.2f}" for name, size in list(prediction.by_module.items())[:6]]
    return (
        f"At the peak, GiB: {', '.join(categories)}; {prediction.reserved_bytes / GIB:.2f} reserved.\n"
        f"By submodule: {', '.join(modules)}."
    )


def _time(plan: Plan) -> str:
    rows = [["steps", "time", "of week", "sessions"]] + [[f"{n:,}", *_cost(plan, n)] for n in STEPS]
    return (
        f"{aligned(rows)}\nA week's {QUOTA_HOURS:.0f} GPU hours give about {steps_a_week(plan):,.0f} steps. Computed "
        "from a roofline, without evaluation, loading and saving; the smoke test measures the true speed."
    )


def _unseen(plan: Plan) -> str:
    return "\n".join(f"Not seen: {sentence}" for sentence in plan.chosen.prediction.unseen)
