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
    """Returns what a person reads of a plan; `of_plan` here prints it, and the page in html.py draws it."""
    prediction = plan.chosen.prediction
    batch = f"effective batch {plan.effective_batch} in {plan.slots} slot(s)"
    reserved = f"PyTorch's allocator reserves {prediction.reserved_bytes / GIB:.2f} GiB"
    about = [
        f"{weights(plan.parameters)} parameters, {plan.precision}, {batch}.",
        f"{reserved}; with the CUDA context the driver (nvidia-smi) will show {prediction.of_driver()}.",
    ]
    if plan.cards > 1:
        card = f"{plan.cards} x {plan.card}"
    else:
        card = plan.card
    usable = f"the {plan.usable_bytes / GIB:.2f} GiB that PyTorch can have ({prediction.share:.0%})"
    title = (
        f"{plan.run} fits on {card}",
        f"at the peak {prediction.peak_bytes / GIB:.2f} of {usable}",
    )
    return {
        "title": title,
        "about": about,
        "figures": _figures(plan),
        "options": _options(plan),
        "notices": _notices(plan),
    }


def of_plan(plan: Plan) -> str:
    sheet = describe(plan)
    prediction = plan.chosen.prediction
    pieces = ", ".join(f"{name} {size / GIB:.2f}" for name, size in prediction.by_category.items())
    limit = f"a plan may use {FITS:.0%}: {plan.limit_bytes / GIB:.2f} GiB."
    head = [*plan.changed, f"{': '.join(sheet['title'])}; {limit}", *sheet["about"]]
    tail = [*sheet["notices"], *(f"Not seen: {sentence}" for sentence in prediction.unseen)]
    peak = f"At the peak, GiB: {pieces}."
    return "\n\n".join(["\n".join(head), aligned(sheet["options"]), peak, "\n".join(tail)])


def _notices(plan: Plan) -> list[str]:
    copied, waiting = map(amount, plan.host)
    sizes = f"{copied} for the copy that checkpoints are written from, {waiting} for batches"
    sentences = [
        f"The machine's own memory: {sizes}; beside these Python, PyTorch and the data take theirs."
    ]
    if plan.epochs and not plan.max_steps:
        steps = plan.steps_for(1000)
        takes = f"{steps:,} steps and take {duration(plan.seconds(steps))} ({quota(plan.seconds(steps))[0]} of a week)"
        length = f"The length is {plan.epochs:g} epochs, and a plan reads no data: for 1,000 training samples they are"
        sentences.append(f"{length} {takes}. `trainbook plan --samples N` gives the whole.")
    if plan.card == CARDS["t4"].name:
        steps = computed(3600 * QUOTA_HOURS / plan.chosen.expected_seconds)
        sentences.append(f"A week's {QUOTA_HOURS:.0f} GPU hours give about {steps} steps.")
    times = "Times come from a roofline, without evaluation, loading and saving; a smoke test measures the true speed."
    return [*sentences, times]


def of_plans(plans: Sequence[Plan]) -> str:
    """Prints several models or cards side by side, with the recommended option of each."""
    head = [
        "run",
        "card",
        "parameters",
        "micro-batch",
        "recomputed",
        "peak GiB",
        "of card",
        "steps/s",
    ]
    rows = [head]
    for plan in plans:
        best = plan.chosen
        peak = plan.chosen.prediction
        rows.append([
            plan.run, f"{plan.cards} x {plan.card}", weights(plan.parameters), f"{best.micro_batch} x {best.passes}",
            f"{best.recomputed} of {plan.layers}", f"{peak.peak_bytes / GIB:.2f}", f"{peak.share:.0%}",
            _speed(best),
        ])  # fmt: skip
    return aligned(rows)


def of_layers(prediction: Prediction) -> str:
    return aligned(layer_rows(prediction), left=(0,))


def layer_rows(prediction: Prediction) -> Rows:
    """Returns a row for each layer, or several alike that follow one another, in MiB."""
    rows = [["MiB of", "weights", "gradients", "optimizer", "activations", "of peak"]]
    for name, layer in folded(prediction.layers):
        held = layer.weights, layer.gradients, layer.optimizer, layer.activations
        share = layer.at_peak / max(1, prediction.peak_bytes)
        rows.append([name, *(f"{size / 2**20:,.1f}" for size in held), f"{share:.1%}"])
    return rows


def quota(seconds: float) -> tuple[str, int]:
    """Returns GPU time as a share of a week's on Kaggle, and the number of its sessions that hold so much."""
    return f"{seconds / 3600 / QUOTA_HOURS:.1%}", max(1, math.ceil(seconds / 60 / _RUN_MINUTES))


def _figures(plan: Plan) -> list[tuple[str, str, str]]:
    """Returns the figures that are read first: the step, and the time of the run where its length is known."""
    option = plan.chosen
    passes = f"{option.passes} pass{'es' * (option.passes > 1)}"
    slow, fast = (computed(1 / seconds) for seconds in reversed(option.step_seconds))
    figures = [
        (str(option.micro_batch), "micro-batch", f"{passes} on each card"),
        (f"{option.recomputed} of {plan.layers}", "layers recomputed", "to save memory"),
        (computed(1 / option.expected_seconds), "steps a second", f"expected; {slow} to {fast}"),
    ]
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
    with_quota = plan.max_steps and plan.card == CARDS["t4"].name
    rows = [head + ["GPU time"] * bool(plan.max_steps) + ["of week"] * bool(with_quota)]
    for option in plan.options:
        seconds = plan.seconds(plan.max_steps, option)
        rows.append([
            "recommended" if option == plan.chosen else "fits" if option.fits else "does not fit",
            str(option.micro_batch), str(option.passes), f"{option.recomputed} of {plan.layers}",
            f"{option.prediction.peak_bytes / GIB:.2f}", f"{option.prediction.reserved_bytes / GIB:.2f}",
            _speed(option), *[duration(seconds)] * bool(plan.max_steps), *[quota(seconds)[0]] * bool(with_quota),
        ])  # fmt: skip
    return rows


def _speed(option: Option) -> str:
    fast, slow = (1 / seconds for seconds in option.step_seconds)
    return f"{computed(1 / option.expected_seconds)} ({computed(slow)}-{computed(fast)})"
