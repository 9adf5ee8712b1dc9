"""Describes plans in rows, and prints them: what fits, how long it takes, and its share of a week's quota."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lib.machine.facts import CARDS, FACTS
from lib.machine.memory import GIB
from lib.planner.card import FITS
from lib.planner.kernels import LAUNCH_SECONDS
from lib.planner.log import OUTSIDE, Prediction, folded, summed
from lib.planner.search import Option, Plan
from lib.text import aligned, computed, duration, weights

QUOTA_HOURS = float(FACTS["kaggle_gpu_quota_hours"].value)
_RUN_MINUTES = float(FACTS["kaggle_run_minutes"].value)
_SMALL = 0.005  # of all; layers below it are one row
Rows = list[list[str]]  # the first one is the head


@dataclass(frozen=True)
class Sheet:
    """What a person reads of a plan; `of_plan` here prints it, and the page in html.py draws it."""

    card: str  # with their number
    verdict: str
    about: list[str]
    figures: list[tuple[str, str, str]]  # number, unit, detail
    options: Rows
    notices: list[str]


def describe(plan: Plan) -> Sheet:
    prediction = plan.chosen.prediction
    batch = f"effective batch {plan.effective_batch} in {plan.slots} slot(s)"
    reserved = f"PyTorch's allocator reserves {prediction.reserved_bytes / GIB:.2f} GiB"
    about = [
        f"{weights(plan.parameters)} parameters, {plan.precision}, {batch}.",
        f"{reserved}; with the CUDA context the driver (nvidia-smi) will show {prediction.of_driver()}.",
    ]
    card = f"{plan.cards} x {plan.card}" if plan.cards > 1 else plan.card
    usable = f"the {plan.usable_bytes / GIB:.2f} GiB that PyTorch can have ({prediction.share:.0%})"
    verdict = f"at the peak {prediction.peak_bytes / GIB:.2f} of {usable}"
    return Sheet(card, verdict, about, _figures(plan), _options(plan), _notices(plan))


def of_plan(plan: Plan) -> str:
    sheet, prediction = describe(plan), plan.chosen.prediction
    pieces = ", ".join(f"{name} {size / GIB:.2f}" for name, size in prediction.by_category.items())
    limit = f"a plan may use {FITS:.0%}: {plan.limit_bytes / GIB:.2f} GiB."
    head = [*plan.changed, f"{plan.run} fits on {sheet.card}: {sheet.verdict}; {limit}", *sheet.about]
    tail = [*sheet.notices, *(f"Not seen: {sentence}" for sentence in prediction.unseen)]
    peak = f"At the peak, GiB: {pieces}."
    return "\n\n".join(["\n".join(head), aligned(sheet.options), peak, "\n".join(tail)])


def _notices(plan: Plan) -> list[str]:
    sentences = []
    if plan.epochs and not plan.max_steps:
        steps = plan.steps_for(1000)
        takes = f"{steps:,} steps and take {duration(plan.seconds(steps))} ({quota(plan.seconds(steps))[0]} of a week)"
        length = f"The length is {plan.epochs:g} epochs, and a plan reads no data: for 1,000 training samples they are"
        sentences.append(f"{length} {takes}. `trainbook plan --samples N` gives the whole.")
    prediction = plan.chosen.prediction
    least, most = (prediction.pass_kernels * seconds for seconds in LAUNCH_SECONDS)
    if prediction.pass_seconds[0] < 1.01 * least:
        seconds = f"{1e3 * least:.2g} to {1e3 * most:.2g} ms"
        takes = f"{prediction.pass_kernels:,} kernels a micro-batch take the CPU {seconds}"
        advice = "training.compile: true makes fewer, a larger slot gives each more to do"
        sentences.append(f"{takes}, and the card waits for it: {advice}.")
    week = f"A week's {QUOTA_HOURS:.0f} GPU hours give about {computed(_steps_a_week(plan))} steps. " * _on_kaggle(plan)
    times = "Times come from a roofline, without evaluation, loading and saving; a smoke test measures the true speed."
    return [*sentences, week + times]


def of_plans(plans: Sequence[Plan]) -> str:
    """Prints several models or cards side by side, with the recommended option of each."""
    head = ["run", "card", "parameters", "micro-batch", "recomputed", "peak GiB", "of card", "steps/s", "steps a week"]
    rows = [head]
    for plan in plans:
        best, peak = plan.chosen, plan.chosen.prediction
        rows.append([
            plan.run, f"{plan.cards} x {plan.card}", weights(plan.parameters), f"{best.micro_batch} x {best.passes}",
            f"{best.recomputed} of {plan.layers}", f"{peak.peak_bytes / GIB:.2f}", f"{peak.share:.0%}",
            _speed(best), computed(_steps_a_week(plan)),
        ])  # fmt: skip
    return aligned(rows)


def of_layers(prediction: Prediction) -> str:
    return aligned(layer_rows(prediction), left=(0,))


def layer_rows(prediction: Prediction) -> Rows:
    """Returns a row for each layer, or several alike, in MiB; layers that hardly count are one row."""
    layers = folded(prediction.layers)
    least = _SMALL * max(1, sum(sum(layer.held) for layer in layers))
    small = [x for x in layers if max(sum(x.held), x.at_peak) < least and x.name != OUTSIDE]
    if len(small) > 1:
        rest = [layer for layer in layers if layer not in small]
        layers = sorted([*rest, summed("smaller ones", small)], key=lambda layer: layer.name == OUTSIDE)
    rows = [["MiB of", "weights", "gradients", "optimizer", "activations", "of peak"]]
    for layer in layers:
        name = f"{layer.name} ({layer.count})" if layer.count > 1 else layer.name
        share = layer.at_peak / max(1, prediction.peak_bytes)
        rows.append([name, *(f"{size / 2**20:,.1f}" for size in layer.held), f"{share:.1%}"])
    return rows


def quota(seconds: float) -> tuple[str, int]:
    """Returns GPU time as a share of a week's on Kaggle, and the number of its sessions that hold so much."""
    return f"{seconds / 3600 / QUOTA_HOURS:.1%}", max(1, math.ceil(seconds / 60 / _RUN_MINUTES))


def _on_kaggle(plan: Plan) -> bool:
    return plan.card == CARDS["t4"].name


def _steps_a_week(plan: Plan) -> float:
    return 3600 * QUOTA_HOURS / plan.chosen.expected_seconds


def _figures(plan: Plan) -> list[tuple[str, str, str]]:
    """Returns the figures that are read first: the step, and the time of the run where its length is known."""
    option, batch = plan.chosen, plan.effective_batch
    cards = f"{plan.cards} cards x " if plan.cards > 1 else ""
    passes = f"{option.passes} pass{'es' * (option.passes > 1)}"
    is_even = plan.cards * option.passes * option.micro_batch == batch
    slow, fast = (computed(1 / seconds) for seconds in reversed(option.step_seconds))
    figures = [
        (str(option.micro_batch), "micro-batch",
         f"{batch} = {cards}{passes} x {option.micro_batch}" if is_even else f"{passes} on each card"),
        (f"{option.recomputed} of {plan.layers}", "layers recomputed", "to save memory"),
        (computed(1 / option.expected_seconds), "steps a second", f"expected; {slow} to {fast}"),
    ]  # fmt: skip
    if plan.max_steps:
        seconds = plan.seconds(plan.max_steps)
        figures.append((duration(seconds), "GPU time", f"{plan.max_steps:,} steps"))
        if _on_kaggle(plan):
            share, sessions = quota(seconds)
            detail = f"{sessions} session{'s' * (sessions != 1)}, of {QUOTA_HOURS:.0f} GPU hours"
            figures.append((share, "of a week's quota", detail))
    return figures


def _options(plan: Plan) -> Rows:
    head = ["", "micro-batch", "passes", "recomputed", "peak GiB", "reserved", "driver", "steps/s (from-to)"]
    with_quota = plan.max_steps and _on_kaggle(plan)
    rows = [head + ["GPU time"] * bool(plan.max_steps) + ["of week"] * bool(with_quota)]
    for option in plan.options:
        prediction = option.prediction
        low, high = (f"{size / GIB:.2f}" for size in prediction.driver_bytes)
        row = [
            "recommended" if option == plan.chosen else "fits" if option.fits else "does not fit",
            str(option.micro_batch), str(option.passes), f"{option.recomputed} of {plan.layers}",
            f"{prediction.peak_bytes / GIB:.2f}", f"{prediction.reserved_bytes / GIB:.2f}",
            low if low == high else f"{low}-{high}", _speed(option),
        ]  # fmt: skip
        seconds = plan.seconds(plan.max_steps, option)
        rows.append(row + [duration(seconds)] * bool(plan.max_steps) + [quota(seconds)[0]] * bool(with_quota))
    return rows


def _speed(option: Option) -> str:
    fast, slow = (1 / seconds for seconds in option.step_seconds)
    return f"{computed(1 / option.expected_seconds)} ({computed(slow)}-{computed(fast)})"
