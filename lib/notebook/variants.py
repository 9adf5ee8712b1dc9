"""One run in several variants side by side: memory, speed, time and checkpoint of each on a card, predicted."""

from collections.abc import Mapping, Sequence
from typing import Any

from lib import planner
from lib.config import Config, profiles, with_changes
from lib.config.reader import flat
from lib.machine.memory import GIB
from lib.planner.search import Option
from lib.text import aligned, amount, computed, duration

_STATES = {"adamw": 3, "sgd": 2}  # fp32 numbers of a checkpoint for each weight


def table(
    config: Config,
    variants: Mapping[str, Mapping[str, Any]],
    card: str,
    samples: Sequence[int],
    share: float = 1.0,
    epochs: float = 0.0,
) -> str:
    """Returns a row a variant, whose dotted keys stand over those of the configuration, on one card of a kind.

    Memory is that of the largest batch. Of its time a batch takes `share` on average, where most inputs are shorter.
    The last columns are the time of `epochs` (0: the configuration's) over so many samples. Raises BadInput.
    """
    target, epochs = planner.find_card(card), epochs or config.training.epochs or 1
    hours = [f"{epochs:g} epochs of {number:,}" for number in samples]
    head = ["", "micro x passes", "precision", "peak GiB", "fits", "samples/s", "checkpoint", *hours]
    rows = [head]
    for name, changes in variants.items():
        own, _ = profiles.apply(with_changes(config, {"training.micro_batch_slots": 1, **changes}), has_gpu=True)
        option = planner.as_configured(own, target)
        speed = own.training.effective_batch / (option.expected_seconds * share)
        times = [duration(epochs * number / speed) for number in samples]
        rows.append([name, *_cells(own, option), computed(speed), amount(_checkpoint_bytes(own, option)), *times])
    usable = target.usable_bytes / GIB
    note = f"One {target.card.name} with {usable:.2f} GiB after the CUDA context, predicted by a trace of the step."
    if share < 1:
        note += f" Time is for batches {share:.0%} as long as the largest, memory for the largest."
    return f"{aligned(rows, left={0})}\n{note}"


def _cells(config: Config, option: Option) -> list[str]:
    recomputed = f", {option.recomputed} recomputed" if option.recomputed else ""
    peak, fits = option.prediction.peak_bytes / GIB, "yes" if option.fits else "no"
    split = f"{option.micro_batch} x {option.passes}{recomputed}"
    return [split, config.training.precision, f"{peak:.2f}", fits]


def _checkpoint_bytes(config: Config, option: Option) -> int:
    """Returns the size of a checkpoint in fp32: weights, what the optimizer keeps unless it is lightweight, average."""
    states = 1 if config.checkpoint.lightweight else _STATES[config.optimizer.name]
    return 4 * (states + bool(config.training.ema_decay)) * option.prediction.parameters


def of_profiles(config: Config, has_gpu: bool) -> str:
    """Returns what each memory profile would make of a configuration: a row a key that one of them changes."""
    now, made = flat(config), {}
    for name in profiles.names():
        made[name] = flat(profiles.apply(with_changes(config, {"memory.profile": name}), has_gpu)[0])
    keys = [key for key in now if any(own[key] != now[key] for own in made.values()) and key != "memory.profile"]
    rows = [["", "now", *made], *([key, str(now[key]), *(str(own[key]) for own in made.values())] for key in keys)]
    return aligned(rows, left={0})
