"""The gate: how much a network has to say beside a simple method, by what validation surely shows.

Each `task` is a `Supervised` whose answers start from its simple method.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainbook.supervised import calibration, scoring, simple
from trainbook.supervised.intervals import Interval, least, of_gain, weights_of_draws
from trainbook.supervised.scoring import Judged
from trainbook.supervised.targets import class_counts

GATES = tuple((np.arange(9) / 8).tolist())
LEAD = "network_lead"  # a buffer of the model: the network's gain over the simple method, with its interval
_CONSTANT = len(GATES)  # the place of the constant answer beside those of the gates
_MOST_ROWS = 20_000  # that an answer is calibrated with
# On one side. Every validation asks: of 102 and 136 partitions of held-out data none fell below the simple method by
# .005 so; at .95 two of 16 did
_SURE = 0.995
# Of the best of seven mixtures over the network alone: each may be better by chance
_SURER = 1 - (1 - _SURE) / (len(GATES) - 2)
# Of classes, where the simple method is no better than a constant. The mean of numbers is an answer like others
_LIKELY = 0.95
_CLOSE = 0.005  # of a metric: as good as equal
_FEW = 10  # groups: Student's quantile is a third above the normal one and more
MOST_UNITS = 400  # of validation: of more units several are one
_DRAWS = 1000
_NOTHING = Interval(math.nan, math.nan, math.nan)


class Opened(NamedTuple):
    """The share of the network in the answer, and its gain alone over the simple method."""

    gate: float
    lead: Interval = _NOTHING


def with_buffers(make: Callable[[Any], nn.Module]) -> Callable[[Any], nn.Module]:
    """Wraps a task's `model`: what validation tells of it are buffers, so that checkpoints and archives have that."""

    @functools.wraps(make)
    def model(task: Any) -> nn.Module:
        network = make(task)
        if not isinstance(network, nn.Module):
            return network
        if task._starts:
            network.register_buffer(LEAD, torch.full((3,), math.nan))
        if calibration.is_for(task):
            network.register_buffer(calibration.POWERS, torch.ones(len(calibration.ANSWERS)))
        return network

    return model


def open_by(task: Any, model: nn.Module, scores: Tensor, start: Tensor, network: Judged) -> None:
    """Sets the gate by a validation, with the lead that it was set by."""
    found = opened(task, scores, start, network)
    model.get_buffer(simple.GATE).fill_(found.gate)
    lead = model.get_buffer(LEAD)
    lead.copy_(torch.tensor(found.lead))


def about(task: Any, model: nn.Module) -> str:
    """Returns sentences on who answers, and why."""
    name = repr(task._simple.name)
    gate = float(model.get_buffer(simple.GATE))
    lead = Interval(*model.get_buffer(LEAD).tolist())
    beside = "validation shows no gain of the network"
    if lead.has_bounds:
        beside = f"the network is {lead.signed} beside {name} on validation"
    if gate == 1:
        return f"The gate is open by 1: the network alone answers; {beside}."
    if gate:
        return (
            f"The gate is open by {gate:g}: the answer is that share of the network, and {name} "
            f"for the rest; {beside}."
        )
    if lead.low > 0:
        return (
            f"The gate is shut: {beside}, but its loss is not surely below that of the classes' shares: it may have "
            f"learned nothing. So {name} alone answers."
        )
    if lead.high < 0:
        return (
            f"The gate is shut: {beside}, surely below, so {name} alone answers. "
            "Do not use this network."
        )
    return (
        f"The gate is shut: {beside}. It does not surely gain, so {name} alone answers; "
        f"both have a row, and `trainbook predict --answer network` takes the other one.{_few_groups(task, lead)}"
    )


def _few_groups(task: Any, lead: Interval) -> str:
    """Returns a sentence where a network that seems to gain is judged by few groups: folds judge by all."""
    if not lead.value > 0 or not task._has_groups or task.config.folds.number:
        return ""
    number = len({*task._groups("validation")})
    if number >= _FEW:
        return ""
    return (
        f" Only {number} {task._unit}s validate, too few to tell: `folds: 5` compares both by all."
    )


def opened(task: Any, scores: Tensor, start: Tensor, network: Judged) -> Opened:
    """Returns 1 if the network is surely better than the simple method, else the best sure share of it, else 0.

    A share that is surely better than the network takes its place. Better: by the metric of `selection`, over paired
    draws of validation's groups; by the loss, and no worse by the metric, where that does not follow from sums. A
    simple method that is no better than a constant has no share; beside one a network that has learned nothing is
    shut out, because any answer but the commonest raises macro F1.
    """
    unit, units = units_of(task, network)
    if units < 2:
        return Opened(0.0)
    answers = [start + gate * (scores - start) for gate in GATES]
    rows = [_row(task, each, network) for each in answers]
    constant = _constant(task, network)
    gains = Gains(task, [*rows, *constant], unit, units, answers)
    over_simple = [gains.of(place, 0) for place in range(len(GATES))]
    lead = over_simple[-1]
    is_constant = task._simple.is_constant
    if constant and gains.follow_from_sums:
        is_constant |= gains.of(0, _CONSTANT).high <= _CLOSE
    if is_constant:
        sure = _LIKELY if task._kind.has_classes else _SURE
        lead = gains.of(_CONSTANT - 1, 0, sure)
        is_noise = task._kind.has_classes and not _has_learned(scores, network, unit, units)
        return Opened(float(lead.low > 0 and not is_noise), lead)
    best = chosen(gains, over_simple)
    return Opened(0.0 if best is None else GATES[best], lead)


def chosen(gains: "Gains", over_simple: Sequence[Interval]) -> int | None:
    """Returns the place of the answer that is surely better than the first, the simple method; None without any.

    The last one, the network alone, stands unless another is surely better than it.
    """
    best = surest(over_simple)
    last = len(over_simple) - 1
    is_last_sure = best is not None and over_simple[last].low > 0
    if best is not None and is_last_sure and not gains.of(best, last, _SURER).low > 0:
        return last
    return best


def surest(gains: Sequence[Interval]) -> int | None:
    """Returns the place of the largest of the gains that are surely above 0."""
    sure = [place for place, gain in enumerate(gains) if gain.low > 0]
    return max(sure, key=lambda place: gains[place].value, default=None)


def units_of(task: Any, network: Judged) -> tuple[np.ndarray, int]:
    """Returns the unit of each validation sample, groups or samples, of which several may be one; and their number."""
    if task._has_groups:
        groups = task._groups("validation")
    else:
        groups = range(1 + int(network.sample.max()))
    names, unit = np.unique(np.array(groups), return_inverse=True)
    return unit % MOST_UNITS, min(len(names), MOST_UNITS)


class Gains:
    """Paired gains of answers to a validation over each other, by the selected metric.

    By the loss, for which `answers` are the scores, where the metric does not follow from sums.
    """

    def __init__(
        self,
        task: Any,
        rows: Sequence[Judged],
        unit: np.ndarray,
        units: int,
        answers: Sequence[Tensor] = (),
    ):
        self.task = task
        self.place, self.sign = task._selected
        self.weights = np.array([*weights_of_draws(units, _DRAWS)], np.float64)
        named = {str(number): row for number, row in enumerate(rows)}
        self.tallies = task._kind.tallied(task.metrics, named, unit, units)
        self.follow_from_sums = self.tallies is not None and self._is_known()
        if self.follow_from_sums:
            return
        alone = rows[0]
        pairs = [{"both": row, "alone": alone} for row in rows]
        self.is_worse = [task._strongest(pair) == "alone" for pair in pairs]
        self.losses, self.sizes = _losses(task, answers, alone, unit, units)

    def _is_known(self) -> bool:
        """Returns whether the selected metric follows from sums."""
        if not self.task.metrics:
            return False
        values = self.task._kind.measured(self.task.metrics, self.tallies.sum(0))
        return not np.isnan(values[:, self.place]).all()

    def of(self, one: int, other: int, sure: float = _SURE) -> Interval:
        """Returns the gain of an answer over another, each by its place."""
        if not self.follow_from_sums:
            return self._of_loss(one, other, sure)
        pair = self.tallies[:, [one, other]]
        flat = pair.reshape(len(pair), -1)
        drawn = (self.weights @ flat).reshape(-1, *pair.shape[1:])
        sums = np.concatenate([pair.sum(0)[None], drawn])
        gains = self._measured(sums[:, 0], sums[:, 1]) - self._measured(sums[:, 1], sums[:, 0])
        gains *= self.sign
        differing = (pair[:, 0] != pair[:, 1]).reshape(len(pair), -1).any(1)
        largest = scoring.largest_gain(self.task.metrics[self.place])
        return of_gain(float(gains[0]), gains[1:], int(differing.sum()), sure, largest)

    def _measured(self, sums: np.ndarray, reference: np.ndarray) -> np.ndarray:
        values = self.task._kind.measured(self.task.metrics, sums, reference)
        return values[:, self.place]

    def _of_loss(self, one: int, other: int, sure: float) -> Interval:
        """Returns the gain by the loss; nothing for an answer that is worse than the simple method by the metric."""
        if self.is_worse[one]:
            return _NOTHING
        each = self.losses[:, other] - self.losses[:, one]
        gains = self.weights @ each / np.maximum(self.weights @ self.sizes, 1)
        whole = each.sum() / self.sizes.sum()
        return of_gain(float(whole), gains, int((each != 0).sum()), sure)


def _row(task: Any, scores: Tensor, network: Judged) -> Judged:
    """Returns an answer by its scores, with probabilities if a metric needs them."""
    kind = task._kind
    shares = None
    if scoring.needs_probabilities(task.metrics):
        shares = kind.averaged(scores).numpy()
    return Judged(network.true, kind.guess(scores).numpy(), None, shares, network.sample)


def _constant(task: Any, network: Judged) -> list[Judged]:
    """Returns the answer of the commonest class of the training targets; nothing for targets of another kind."""
    if not task._kind.has_classes or scoring.needs_probabilities(task.metrics):
        return []
    commonest = int(class_counts(task, "train").argmax())
    guess = np.full(len(network.true), commonest)
    return [network._replace(guess=guess, counts=None, shares=None)]


def _losses(
    task: Any, answers: Sequence[Tensor], known: Judged, unit: np.ndarray, units: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (units, answers) sums of losses, and (units) the number of targets."""
    counts = class_counts(task, "train") if task.balanced else None
    units_of_targets = unit[known.sample]
    sums = []
    for answer in answers:
        each = simple.losses(task._kind, answer, known.true, counts).double().numpy()
        sums.append(np.bincount(units_of_targets, each, units))
    return np.stack(sums, 1), np.bincount(units_of_targets, minlength=units)


def _has_learned(scores: Tensor, network: Judged, unit: np.ndarray, units: int) -> bool:
    """Returns whether the network, calibrated, surely has less loss than the shares of the classes."""
    true = torch.from_numpy(network.true)
    there = torch.bincount(true, minlength=scores.shape[-1]).clamp(min=1)
    of_shares = -(there / there.sum()).log()[true]
    of_network = F.cross_entropy(_calibrated(scores, true), true, reduction="none")
    each = (of_shares - of_network).double().numpy()
    units_of_targets = unit[network.sample]
    sums = np.bincount(units_of_targets, each, units)
    sizes = np.bincount(units_of_targets, minlength=units)
    without_each = (sums.sum() - sums) / np.maximum(sizes.sum() - sizes, 1)
    return bool(least(each.mean(), without_each, _SURE) > 0)


def _calibrated(scores: Tensor, true: Tensor) -> Tensor:
    """Returns a power of probabilities, times a factor for each class, that has the least loss."""
    every = -(-len(true) // _MOST_ROWS)
    with torch.inference_mode(False), torch.enable_grad():
        some = scores[::every].float().clone()
        classes = true[::every].clone()
        scale = some.std().clamp(
            min=1e-6
        )  # of a network that is sure of all the first step is far too long
        some = some / scale
        power = torch.ones((), requires_grad=True)
        factors = torch.zeros(scores.shape[-1], requires_grad=True)
        optimizer = torch.optim.LBFGS([power, factors], max_iter=20, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(power * some + factors, classes)
            value.backward()
            return value

        optimizer.step(loss)
    return power.detach() / scale * scores + factors.detach()
