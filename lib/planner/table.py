"""Plans as text: what fits, how long it takes, and what it costs of a week's quota."""

import math
import os
from collections.abc import Sequence

from lib.machine.facts import FACTS
from lib.machine.memory import GIB
from lib.planner.card import FITS
from lib.planner.log import OUTSIDE, SIZES, Alive, Layer, folded
from lib.planner.prediction import Prediction, at_most, of_driver
from lib.planner.search import STEPS, Option, Plan
from lib.text import aligned, computed, duration, weights

_ALIVE = 12  # rows
_SMALL = 0.005  # of all; layers below it are one row
QUOTA_HOURS = float(FACTS["kaggle_gpu_quota_hours"].value)
_RUN_MINUTES = float(FACTS["kaggle_run_minutes"].value)
_LOADER_DECIDES = 200  # steps a second
# The loader alone with the toy of the tests, batches of 8, on two 2.8 GHz Xeon cores that were busy with other work too
# (2026-11, tests/bench/bench_loader.py): 90 to 180 through one worker or two, 600 to 1,300 in the training process.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the newer name and the older one
_LOADER_RATES = "90 to 1,300"


def of_plan(plan: Plan) -> str:
    """Returns the options of one plan, its recommendation, its memory, and the time of runs of many lengths."""
    prediction = plan.chosen.prediction
    categories = [f"{name} {size / GIB:.2f}" for name, size in prediction.by_category.items()]
    modules = [f"{name} {size / GIB:.2f}" for name, size in list(prediction.by_module.items())[:6]]
    changed = "".join(f"{line}\n" for line in plan.changed)
    lengths = [["steps", "time", "of week", "sessions"]] + [[f"{n:,}", *_cost(plan, n)] for n in STEPS]
    return (
        f"{changed}{plan.run}: {weights(plan.parameters)} parameters on {plan.cards} card{'s' * (plan.cards > 1)} "
        f"({plan.card}), {plan.precision}, effective batch {plan.effective_batch} in {plan.slots} slot(s).\n"
        f"Of {plan.usable_bytes / GIB:.2f} GiB after the CUDA context at most {FITS:.0%} are planned: "
        f"{plan.limit_bytes / GIB:.2f} GiB.\n\n"
        f"{_options(plan)}\n\n"
        f"At the peak, GiB: {', '.join(categories)}; {prediction.reserved_bytes / GIB:.2f} reserved.\n"
        f"The driver (nvidia-smi) will show {of_driver(prediction)}: what is reserved, and the context.\n"
        f"By submodule: {', '.join(modules)}.\n\n"
        f"{aligned(lengths)}\n"
        f"A week's {QUOTA_HOURS:.0f} GPU hours give about {computed(_steps_a_week(plan))} steps. Computed from a "
        "roofline, without evaluation, loading and saving; the smoke test measures the true speed.\n\n"
    ) + "\n".join([*notices(plan), *(f"Not seen: {sentence}" for sentence in prediction.unseen)])


def notices(plan: Plan) -> list[str]:
    """Returns sentences beside the figures: an evaluation's own batch, hours of a length in epochs, the loader."""
    sentences = [plan.measured] if plan.measured else []
    sentences += [*at_most(plan.chosen.prediction), *([of_evaluation(plan)] if plan.evaluation else [])]
    sentences += [plan.host.sentence()] if plan.host else []
    if any("expandable_segments:true" in os.environ.get(name, "").lower() for name in _ALLOCATOR):
        sentences.append(
            "Expandable segments are switched on here, and a plan does not follow them: a run then reserves less than "
            "this, down to what is allocated, and what fits here fits then too."
        )
    if plan.epochs and not plan.max_steps:
        steps = plan.steps_for(1000)
        share, _ = quota(plan.seconds(steps))
        sentences.append(
            f"The length is {plan.epochs:g} epochs, and a plan reads no data: for each 1,000 training samples they "
            f"are {steps:,} steps and take {duration(plan.seconds(steps))} ({share} of a week). `lib plan --samples N` "
            "gives the whole; training prints the number of samples."
        )
    if 1 / plan.chosen.expected_seconds > _LOADER_DECIDES:
        sentences.append(
            f"Above some {_LOADER_DECIDES} steps a second the loader decides, not the card: on two busy CPUs "
            f"it hands over {_LOADER_RATES} batches a second of a few numbers, and samples that are read and "
            "decoded come more slowly."
        )
    return sentences


def of_evaluation(plan: Plan) -> str:
    """Returns a sentence on an evaluation of a size of its own: what it takes, and how much of it fits."""
    asked = plan.evaluation
    assert asked
    taken = (
        f"An evaluation takes {asked.samples:,} samples at once (data.evaluation_batch): {asked.peak_bytes / GIB:.2f} "
        "GiB at the peak of what it computes"
    )
    if asked.fitting == asked.samples:
        return f"{taken}."
    fits = f"{asked.fitting:,} fit" if asked.fitting else "not even the smallest number fits"
    return (
        f"{taken}, more than the {plan.limit_bytes / GIB:.2f} GiB that a plan may use: {fits}. A run halves them where "
        "memory runs out."
    )


def of_plans(plans: Sequence[Plan]) -> str:
    """Returns several models or cards side by side: what is recommended for each."""
    rows = [
        ["run", "card", "parameters", "micro-batch", "recomputed", "peak GiB", "of card", "steps/s", "steps a week"]
    ]
    for plan in plans:
        option = plan.chosen
        rows.append([
            plan.run, f"{plan.cards} x {plan.card}", weights(plan.parameters),
            f"{option.micro_batch} x {option.passes}", f"{option.recomputed} of {plan.layers}",
            f"{option.prediction.peak_bytes / GIB:.2f}", f"{option.prediction.share:.0%}",
            _speed(option), computed(_steps_a_week(plan)),
        ])  # fmt: skip
    return aligned(rows)


def of_layers(prediction: Prediction) -> str:
    """Returns what each layer takes, and the largest groups of tensors that are alive at the peak."""
    rows, alive = layer_rows(prediction), alive_rows(prediction, _ALIVE)
    return f"{aligned(rows, left=(0,))}\n\n{aligned(alive, left=(0, 1, 2))}"


def layer_rows(prediction: Prediction) -> list[list[str]]:
    """Returns a head and a row for each layer, or several alike, in MiB; activations are those that backward needs."""
    peak = max(1, prediction.peak_bytes)
    head = ["MiB of", "weights", "gradients", "optimizer", "activations", "of peak"]
    return [head, *(_layer_row(layer, peak) for layer in _without_small(folded(prediction.layers)))]


def _without_small(layers: list[Layer]) -> list[Layer]:
    """Returns the layers with all those that hardly count as one row, where there are several."""
    total = max(1, sum(map(_bytes, layers)))
    small = [layer for layer in layers if max(_bytes(layer), layer.at_peak) < _SMALL * total and layer.name != OUTSIDE]
    if len(small) < 2:
        return layers
    rest = [layer for layer in layers if layer not in small]
    sums = (sum(getattr(layer, name) for layer in small) for name in SIZES)
    other = Layer("smaller ones", sum(layer.count for layer in small), *sums)
    place = len(rest) - any(layer.name == OUTSIDE for layer in rest)
    return [*rest[:place], other, *rest[place:]]


def _bytes(layer: Layer) -> int:
    return layer.weights + layer.gradients + layer.optimizer + layer.activations


def _layer_row(layer: Layer, peak: int) -> list[str]:
    name = f"{layer.name} ({layer.count})" if layer.count > 1 else layer.name
    sizes = (layer.weights, layer.gradients, layer.optimizer, layer.activations)
    return [name, *(f"{size / 2**20:,.1f}" for size in sizes), f"{layer.at_peak / peak:.1%}"]


def alive_rows(prediction: Prediction, most: int) -> list[list[str]]:
    """Returns a head and a row for each group: layer, operator or parameter, line, count, largest shape, MiB, share."""
    peak = max(1, prediction.peak_bytes)
    head = ["at the peak, of which", "made by", "at", "tensors", "largest", "MiB", "of peak"]
    return [head, *(_alive_row(group, peak) for group in prediction.alive[:most])]


def _alive_row(group: Alive, peak: int) -> list[str]:
    made = f"{group.what} ({group.category})" if group.what else group.category
    return [
        group.module or OUTSIDE, made, group.line, f"{group.count:,}", " x ".join(map(str, group.shape)),
        f"{group.size / 2**20:,.1f}", f"{group.size / peak:.1%}",
    ]  # fmt: skip


def driver(prediction: Prediction) -> str:
    """Returns the GiB that the driver will show, or from-to where cuDNN may set workspaces aside."""
    shown, most = (f"{size / GIB:.2f}" for size in (prediction.driver_bytes, prediction.most_driver_bytes))
    return shown if shown == most else f"{shown}-{most}"


def quota(seconds: float) -> tuple[str, int]:
    """Returns GPU time as a share of a week's on Kaggle, and the number of its sessions that hold so much."""
    return f"{seconds / 3600 / QUOTA_HOURS:.1%}", max(1, math.ceil(seconds / 60 / _RUN_MINUTES))


def _steps_a_week(plan: Plan) -> float:
    return 3600 * QUOTA_HOURS / plan.chosen.expected_seconds


def _options(plan: Plan) -> str:
    rows = [
        ["", "micro-batch", "passes", "recomputed", "peak GiB", "reserved", "driver", "head room", "compute",
         "steps/s (from-to)"]
    ]  # fmt: skip
    if plan.max_steps:
        rows[0] += ["time", "of week", "sessions"]
    for option in plan.options:
        room = (option.prediction.usable_bytes - option.prediction.peak_bytes) / GIB
        row = [
            "->" if option == plan.chosen else "" if option.fits else "no",
            str(option.micro_batch), str(option.passes), f"{option.recomputed} of {plan.layers}",
            f"{option.prediction.peak_bytes / GIB:.2f}", f"{option.prediction.reserved_bytes / GIB:.2f}",
            driver(option.prediction), f"{room:.2f} GiB", f"{option.relative_compute:.2f} x", _speed(option),
        ]  # fmt: skip
        rows.append(row + (_cost(plan, plan.max_steps, option) if plan.max_steps else []))
    return aligned(rows)


def _speed(option: Option) -> str:
    fast, slow = (1 / seconds for seconds in option.step_seconds)
    return f"{computed(1 / option.expected_seconds)} ({computed(slow)}-{computed(fast)})"


def _cost(plan: Plan, steps: int, option: Option | None = None) -> list[str]:
    seconds = plan.seconds(steps, option)
    return [duration(seconds), *map(str, quota(seconds))]
