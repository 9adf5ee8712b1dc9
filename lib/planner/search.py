"""Plans a run: the largest micro-batch that fits with the fewest recomputed layers, its memory and its time."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lib.config import Config, profiles, resolve_lengths, with_changes
from lib.errors import BadInput
from lib.machine.facts import CARDS, FACTS
from lib.machine.memory import GIB
from lib.planner.card import NCCL_BYTES, Target
from lib.planner.log import Prediction
from lib.planner.trace import predict_task, seeded
from lib.task import Task, find_task, model_on_meta, with_slots
from lib.task.contract import checked_blocks
from lib.training import norms
from lib.training.data import SLOTS_AHEAD
from lib.training.precision import precision_on_card
from lib.training.recomputation import NotRecomputable, recomputable, recomputed_layers
from lib.training.state import saved_bytes

# Gigabytes a second between two cards: the best that NCCL gets without NVLink, and one PCIe 3.0 board; an assumption.
_LINK_GB_S = (11.0, 5.0)
_MUCH_FASTER = 0.9  # share of the step's time from which more recomputation is worth it


@dataclass(frozen=True)
class Option:
    """One way to split the effective batch, with its prediction."""

    micro_batch: int
    passes: int  # micro-batches of a card in a step
    recomputed: int  # layers
    prediction: Prediction
    step_seconds: tuple[float, float]  # between two bounds

    @property
    def fits(self) -> bool:
        return self.prediction.fits

    @property
    def expected_seconds(self) -> float:
        return math.sqrt(self.step_seconds[0] * self.step_seconds[1])


@dataclass(frozen=True)
class Plan:
    """The options of one run on one kind of card, and the recommended one."""

    run: str
    card: str
    cards: int
    set_aside_bytes: int  # for the CUDA context and libraries
    usable_bytes: int
    limit_bytes: int
    effective_batch: int
    slots: int
    max_steps: int  # 0: given in epochs of data that was not read
    precision: str
    parameters: int
    layers: int
    options: tuple[Option, ...]
    chosen: Option
    epochs: float = 0.0  # the length if `max_steps` is 0
    share: float = 1.0  # of the training samples that an epoch has
    changed: tuple[str, ...] = ()  # lines on the changes of the memory profile
    host: tuple[int, int] = (0, 0)  # of `host_memory`

    @property
    def overrides(self) -> dict[str, Any]:
        return _overrides(self.chosen.micro_batch, self.chosen.recomputed)

    def option_of(self, micro_batch: int, recomputed: int) -> Option | None:
        for option in self.options:
            if (option.micro_batch, option.recomputed) == (micro_batch, recomputed):
                return option
        return None

    def seconds(self, steps: int, option: Option | None = None) -> float:
        return steps * (option or self.chosen).expected_seconds

    def steps_for(self, samples: int) -> int:
        return math.ceil(self.epochs * round(samples * self.share) / self.effective_batch)

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON values, with layers of the chosen option only."""
        values = dataclasses.asdict(self)
        for option in values["options"]:
            del option["prediction"]["layers"]
        return values | {"overrides": self.overrides}


def make(config: Config, target: Target, count: int = 0, samples: int = 0) -> Plan:
    """Plans a run for `count` cards of a kind (0: as many as a session has), reading no data.

    A memory profile is applied first; `samples` turns a length in epochs into steps. Raises BadInput
    if not even one sample fits, or the cards do not divide the slots.
    """
    config, changed = _configured(config, samples)
    search = _Search(*_dealt(config, target, count))
    config = search.config
    target = search.target
    options = list(search.options())
    fitting = [option for option in options if option.fits]
    if not fitting:
        raise BadInput(_nothing_fits(search, options))
    chosen = _best(fitting)
    shown = {(option.recomputed, -option.micro_batch): option for option in options}
    training = config.training
    steps = training.max_steps or int(training.seconds / chosen.expected_seconds)
    return Plan(
        run=config.run.name, card=target.card.name, cards=search.count,
        set_aside_bytes=target.set_aside, usable_bytes=target.usable_bytes,
        limit_bytes=target.limit_bytes, effective_batch=training.effective_batch,
        slots=training.micro_batch_slots, max_steps=steps,
        precision=search.precision, parameters=chosen.prediction.parameters, layers=search.layers,
        options=tuple(shown[key] for key in sorted(shown)), chosen=chosen,
        epochs=training.epochs, share=config.data.subset_ratio, changed=tuple(changed),
        host=host_memory(search.task, config, search.count),
    )  # fmt: skip


def _best(fitting: list[Option]) -> Option:
    """Returns the largest micro-batch with the fewest recomputed layers.

    More layers are recomputed only if the larger micro-batch makes a step much faster.
    """
    fitting = sorted(fitting, key=lambda option: option.micro_batch)
    largest = {option.recomputed: option for option in fitting}
    best, *others = (largest[recomputed] for recomputed in sorted(largest))
    for option in others:
        if option.expected_seconds < _MUCH_FASTER * best.expected_seconds:
            best = option
    return best


def host_memory(task: Task, config: Config, cards: int) -> tuple[int, int]:
    """Returns bytes of the machine's own memory: the copy for checkpoints, and waiting batches."""
    held = max(1, config.data.num_workers * SLOTS_AHEAD)  # slots of each card
    with seeded():
        batch = task.example_batch(config.training.slot, torch.device("cpu"))
        whole, model = saved_bytes(task, config)
    copied = 0
    if config.checkpoint.keep_last:
        copied = whole + model * bool(config.checkpoint.keep_best)
    return copied, cards * held * sum(value.nbytes for value in batch.values())


def as_configured(config: Config, target: Target) -> Option:
    """Predicts a run on one card as configured, without a search for better options. Raises as `make`."""
    search = _Search(with_slots(_configured(config, 0)[0], 1), target, 1)
    return search.option(search.config.training.largest_micro_batch, search.least)


def _configured(config: Config, samples: int) -> tuple[Config, list[str]]:
    """Applies profile and number of samples; returns the configuration and a line for each change."""
    config, changed = profiles.apply(config, has_gpu=True)
    if samples:
        config, lengths = resolve_lengths(config, round(samples * config.data.subset_ratio))
        changed += lengths
    return config, changed


def _dealt(config: Config, target: Target, count: int) -> tuple[Config, Target, int]:
    """Deals the slots to `count` cards (0: as many as a session has), at most one for each slot."""
    in_session = 1
    if target.card.name == CARDS["t4"].name:
        in_session = int(FACTS["kaggle_gpus"].value)
    config = with_slots(config, count or in_session)
    slots = config.training.micro_batch_slots
    if count < 0 or (count and slots % count):
        raise BadInput(
            f"{count} cards were chosen, and training.micro_batch_slots is {slots}. Each card takes"
            " whole slots: give a multiple of the cards, or 0 cards for as many as a session has."
        )
    count = count or math.gcd(slots, in_session)
    if count > 1:
        target = dataclasses.replace(target, set_aside=target.set_aside + NCCL_BYTES)
    return config, target, count


class _Search:
    """Predictions for pairs of micro-batch and recomputed layers, each traced once."""

    def __init__(self, config: Config, target: Target, count: int):
        self.task = task = find_task(config.task)(config)
        self.config = config
        self.target = target
        self.count = count
        self.slot = config.training.slot
        self.slots_each = config.training.micro_batch_slots // count
        model = model_on_meta(task)
        blocks = recomputable(model, checked_blocks(task, model))
        self.layers = len(blocks)
        self.least = recomputed_layers(config.training.gradient_checkpointing, blocks)
        self.precision = precision_on_card(
            config.training.precision, target.card.capability, target.card.name
        )
        self._has_norms = norms.has_batch_norms(model)
        self._traced: dict[tuple[int, int], Prediction] = {}

    def options(self) -> Iterator[Option]:
        """Yields the configured option, then the largest micro-batch at more and more recomputed layers.

        Ends when the whole slot fits.
        """
        training = self.config.training
        least = self.least
        if training.micro_batch:
            yield self.option(training.largest_micro_batch, least)
        more = (-(-self.layers // 2), self.layers)
        for recomputed in [least, *(count for count in more if count > least)]:
            try:
                option = self.option(self._largest(recomputed), recomputed)
            except NotRecomputable:
                if recomputed == least:  # the configured number
                    raise
                return
            yield option
            if option.fits and option.micro_batch == self.slot:
                return

    def _largest(self, recomputed: int) -> int:
        """Returns the largest micro-batch that fits, else the smallest."""
        if self.predict(self.slot, recomputed).fits:  # most often
            return self.slot
        sizes = self._sizes
        fits = -1
        fails = len(sizes) - 1  # the last is the whole slot
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self.predict(sizes[middle], recomputed).fits:
                fits = middle
            else:
                fails = middle
        return sizes[max(fits, 0)]

    @cached_property
    def _sizes(self) -> list[int]:
        """Micro-batches that a model's batch norms accept: some refuse a last one of one sample."""
        sizes = even_sizes(self.slot)
        if not self._has_norms:
            return sizes
        try:
            self.predict(1, self.least)
        except norms.BatchNormRefused:
            return [size for size in sizes if norms.smallest_piece(self.slot, size) > 1]
        return sizes

    def predict(self, micro_batch: int, recomputed: int) -> Prediction:
        if (pair := (micro_batch, recomputed)) not in self._traced:
            config = with_changes(self.config, _overrides(*pair))
            passes = self._passes(micro_batch)
            self._traced[pair] = predict_task(
                self.task, config, self.target, micro_batch, passes, self.count
            )
        return self._traced[pair]

    def _passes(self, micro_batch: int) -> int:
        return self.slots_each * -(-self.slot // micro_batch)

    def option(self, micro_batch: int, recomputed: int) -> Option:
        prediction = self.predict(micro_batch, recomputed)
        passes = self._passes(micro_batch)
        # a ring all-reduce of fp32 gradients: each card sends and receives 2 (n - 1) / n of them
        sent = 4 * prediction.trained * 2 * (self.count - 1) / self.count
        reduced = sent / np.array(_LINK_GB_S) / 1e9
        in_passes = passes * np.array(prediction.pass_seconds)
        low, high = (in_passes + prediction.rest_seconds + reduced).tolist()
        return Option(micro_batch, passes, recomputed, prediction, (low, high))


def _overrides(micro_batch: int, recomputed: int) -> dict[str, Any]:
    return {"training.micro_batch": micro_batch, "training.gradient_checkpointing": recomputed}


def even_sizes(slot: int) -> list[int]:
    return sorted({-(-slot // passes) for passes in range(1, slot + 1)})


def _nothing_fits(search: _Search, options: list[Option]) -> str:
    least = min(options, key=lambda option: option.prediction.peak_bytes)
    needed = least.prediction.peak_bytes
    card = search.target.card.name
    limit = search.target.limit_bytes
    larger = [name for name, card in CARDS.items() if Target(card).limit_bytes >= needed]
    advice = "No card in the table holds it."
    if larger:
        advice = f"It would fit on {', '.join(larger)}."
    return (
        f"No micro-batch of {search.config.run.name} fits on {card}: with {least.recomputed} of"
        f" {search.layers} layers recomputed, {least.micro_batch} sample(s) at once still take"
        f" {needed / GIB:.2f} of the {limit / GIB:.2f} GiB that a plan may use. {advice} Or make the"
        " model or its input smaller (workload.*)."
    )
