"""Describes plans in rows, and prints them: what fits, how long it takes, and its share of a week's quota."""

import math
from collections.abc import Sequence
from typing import Any

from lib.machine.facts import CARDS, FACTS
from lib.machine.memory import GIB
from lib.planner.card import FITS
from lib.planner.log import Prediction, folded
from lib.planner.search import Option, Plan
from lib.text import aligned, amount, computed, duration, weights

QUOTA_HOURS = float(FACTS["kaggle_gpu_quota_hours"].value)
_RUN_MINUTES = float(FACTS["kaggle_run_minutes"].value)
Rows = list[list[str]]  # the first one is the head


def describe(plan: Plan) -> dict[str, Any]:
    """Returns the texts and tables of a plan, which `of_plan` prints and html.py draws."""
    prediction = plan.chosen.prediction
    size = weights(plan.parameters)
    batch = f"effective batch {plan.effective_batch} in {plan.slots} slot(s)"
    reserved = f"{prediction.reserved_bytes / GIB:.2f} GiB"
    memory = (
        f"PyTorch's allocator reserves {reserved}; with the CUDA context the driver (nvidia-smi)"
        f" will show {prediction.of_driver()}."
    )
    card = plan.card
    if plan.cards > 1:
        card = f"{plan.cards} x {card}"
    usable = f"the {plan.usable_bytes / GIB:.2f} GiB that PyTorch can have ({prediction.share:.0%})"
    peak = f"at the peak {prediction.peak_bytes / GIB:.2f} of {usable}"
    return {
        "title": (f"{plan.run} fits on {card}", peak),
        "about": [f"{size} parameters, {plan.precision}, {batch}.", memory],
        "figures": _figures(plan),
        "options": _options(plan),
        "notices": _notices(plan),
    }


def of_plan(plan: Plan) -> str:
    sheet = describe(plan)
    prediction = plan.chosen.prediction
    title = ": ".join(sheet["title"])
    limit = f"a plan may use {FITS:.0%}: {plan.limit_bytes / GIB:.2f} GiB."
    head = "\n".join([*plan.changed, f"{title}; {limit}", *sheet["about"]])
    pieces = [f"{name} {size / GIB:.2f}" for name, size in prediction.by_category.items()]
    peak = f"At the peak, GiB: {', '.join(pieces)}."
    unseen = [f"Not seen: {sentence}" for sentence in prediction.unseen]
    tail = "\n".join([*sheet["notices"], *unseen])
    return "\n\n".join([head, aligned(sheet["options"]), peak, tail])


def _notices(plan: Plan) -> list[str]:
    copied, waiting = map(amount, plan.host)
    sentences = [
        f"The machine's own memory: {copied} for the copy that checkpoints are written from, {waiting}"
        " for batches; beside these Python, PyTorch and the data take theirs."
    ]
    if plan.epochs and not plan.max_steps:
        steps = plan.steps_for(1000)
        seconds = plan.seconds(steps)
        share, _ = quota(seconds)
        sentences.append(
            f"The length is {plan.epochs:g} epochs, and a plan reads no data: for 1,000 training"
            f" samples they are {steps:,} steps and take {duration(seconds)} ({share} of a week)."
            " `trainbook plan --samples N` gives the whole."
        )
    if plan.card == CARDS["t4"].name:
        in_week = computed(3600 * QUOTA_HOURS / plan.chosen.expected_seconds)
        sentences.append(f"A week's {QUOTA_HOURS:.0f} GPU hours give about {in_week} steps.")
    times = "Times come from a roofline, without evaluation, loading and saving; a smoke test measures the true speed."
    return [*sentences, times]


def of_plans(plans: Sequence[Plan]) -> str:
    """Prints several models or cards side by side, with the recommended option of each."""
    memory = ["micro-batch", "recomputed", "peak GiB", "of card"]
    rows = [["run", "card", "parameters", *memory, "steps/s"]]
    for plan in plans:
        best = plan.chosen
        cards = f"{plan.cards} x {plan.card}"
        batch = f"{best.micro_batch} x {best.passes}"
        recomputed = f"{best.recomputed} of {plan.layers}"
        peak = f"{best.prediction.peak_bytes / GIB:.2f}"
        memory = [batch, recomputed, peak, f"{best.prediction.share:.0%}"]
        rows.append([plan.run, cards, weights(plan.parameters), *memory, _speed(best)])
    return aligned(rows)


def of_layers(prediction: Prediction) -> str:
    return aligned(layer_rows(prediction), left=(0,))


def layer_rows(prediction: Prediction) -> Rows:
    """Returns a row in MiB for each layer, or group of consecutive equal ones."""
    rows = [["MiB of", "weights", "gradients", "optimizer", "activations", "of peak"]]
    for name, layer in folded(prediction.layers):
        held = layer.weights, layer.gradients, layer.optimizer, layer.activations
        sizes = [f"{size / 2**20:,.1f}" for size in held]
        share = layer.at_peak / max(1, prediction.peak_bytes)
        rows.append([name, *sizes, f"{share:.1%}"])
    return rows


def quota(seconds: float) -> tuple[str, int]:
    """Returns GPU time as a share of Kaggle's weekly quota, and the number of sessions it takes."""
    sessions = math.ceil(seconds / 60 / _RUN_MINUTES)
    return f"{seconds / 3600 / QUOTA_HOURS:.1%}", max(1, sessions)


def _figures(plan: Plan) -> list[tuple[str, str, str]]:
    """Returns (value, name, detail) of the main figures: the step, and the run's time if known."""
    option = plan.chosen
    passes = f"{option.passes} pass{'es' * (option.passes > 1)}"
    slow, fast = (computed(1 / seconds) for seconds in reversed(option.step_seconds))
    recomputed = f"{option.recomputed} of {plan.layers}"
    speed = computed(1 / option.expected_seconds)
    figures = [(str(option.micro_batch), "micro-batch", f"{passes} on each card")]
    figures.append((recomputed, "layers recomputed", "to save memory"))
    figures.append((speed, "steps a second", f"expected; {slow} to {fast}"))
    if plan.max_steps:
        seconds = plan.seconds(plan.max_steps)
        figures.append((duration(seconds), "GPU time", f"{plan.max_steps:,} steps"))
        if plan.card == CARDS["t4"].name:
            share, sessions = quota(seconds)
            detail = f"{sessions} session{'s' * (sessions != 1)}, of {QUOTA_HOURS:.0f} GPU hours"
            figures.append((share, "of a week's quota", detail))
    return figures


def _options(plan: Plan) -> Rows:
    head = ["", "micro-batch", "passes", "recomputed", "peak GiB", "reserved", "steps/s (from-to)"]
    rows = [head, *(_option_row(plan, option) for option in plan.options)]
    if not plan.max_steps:
        return rows
    head.append("GPU time")
    is_t4 = plan.card == CARDS["t4"].name
    if is_t4:
        head.append("of week")
    for option, row in zip(plan.options, rows[1:], strict=True):
        seconds = plan.seconds(plan.max_steps, option)
        row.append(duration(seconds))
        if is_t4:
            share, _ = quota(seconds)
            row.append(share)
    return rows


def _option_row(plan: Plan, option: Option) -> list[str]:
    if option == plan.chosen:
        verdict = "recommended"
    elif option.fits:
        verdict = "fits"
    else:
        verdict = "does not fit"
    split = [str(option.micro_batch), str(option.passes), f"{option.recomputed} of {plan.layers}"]
    peak = f"{option.prediction.peak_bytes / GIB:.2f}"
    reserved = f"{option.prediction.reserved_bytes / GIB:.2f}"
    return [verdict, *split, peak, reserved, _speed(option)]


def _speed(option: Option) -> str:
    fast, slow = (1 / seconds for seconds in option.step_seconds)
    return f"{computed(1 / option.expected_seconds)} ({computed(slow)}-{computed(fast)})"
