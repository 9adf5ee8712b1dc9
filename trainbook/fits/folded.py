"""Predicts a deep model by traces of a few of its layers: layers of a kind take equal memory and time.

The base is a model of the first layer, the last, and one of each other kind. For each kind, a trace
of the base with one more layer gives the memory and time of a layer. The peak may move to another
part of the step as layers are added, so each stretch of the step is extrapolated, and the highest is
the peak.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from lib.planner import Prediction, kernels
from lib.planner.log import Followed
from lib.planner.trace import tied
from trainbook.fits import language
from trainbook.fits.language import Question

_INSERTED = 1  # the place of an inserted layer: behind the first, so that the ends stay
_SAME = 1e-3  # of the parameters: packed ones are padded
_FEW = 6  # at most so many layers are traced whole
Kind = tuple[Any, ...]
Stretch = tuple[str, int]


@dataclass(frozen=True)
class Traces:
    """The trace of the base; and for each kind one with a layer more, and the number of further layers."""

    base: Followed
    more: tuple[tuple[Followed, int], ...]

    def difference(self, stretch: Stretch) -> int:
        """Returns the bytes that all further layers add to a stretch."""
        in_base = _size(self.base, stretch)
        return sum(count * (_size(other, stretch) - in_base) for other, count in self.more)


def _size(trace: Followed, stretch: Stretch) -> int:
    return sum(trace.stretches.get(stretch, {}).values())


def fits(question: Question) -> Prediction:
    """Predicts as `language.fits` does, in seconds. Raises BadInput."""
    return Folded(question).at(question.length)


def peak_of(prediction: Prediction) -> float:
    """Returns the peak in bytes, infinite if only the allocator's segments do not fit."""
    if prediction.peak_bytes <= prediction.limit_bytes and not prediction.fits:
        return math.inf
    return prediction.peak_bytes


class Folded:
    """A question at several lengths."""

    def __init__(self, question: Question):
        language.check(question)
        self.question = question
        self.settings = language.settings_of(question.model)
        with torch.device("meta"):
            whole: Any = tied(language.untrained(self.settings))
        self.parameters = sum(parameter.numel() for parameter in whole.parameters())
        self.lists = _by_layer(whole.config)
        count = whole.config.num_hidden_layers
        self.kinds: list[Kind] = [()] * count
        if self.lists:
            self.kinds = list(zip(*self.lists.values(), strict=True))
        self.is_whole = count <= _FEW
        self._traces: dict[int, Traces] = {}

    def at(self, length: int) -> Prediction:
        """Predicts for sequences of a length."""
        question = replace(self.question, length=length)
        if self.is_whole:
            return language.traced(question, self.settings)
        places, *inserted = self._places()
        base = language.traced(question, self._of_layers(places), has_state=True)
        left = Counter(self.kinds) - Counter(self.kinds[place] for place in places)
        more = []
        for layers, count in zip(inserted, left.values(), strict=True):
            other = language.traced(question, self._of_layers(layers), has_state=True)
            more.append((_without_inserted(other), count))
        traces = Traces(base, tuple(more))
        prediction = _continued(traces)
        parameters = prediction.parameters
        if question.method != "full":  # without the adapters
            parameters -= prediction.trained
        is_like = math.isclose(parameters, self.parameters, rel_tol=_SAME)
        # layers that differ in more than their settings, and sentences that count operators
        if not is_like or len(base.unseen) > 1 or base.most_peak_bytes:
            self.is_whole = True
            return self.at(length)
        self._traces[length] = traces
        return prediction

    def peak_at(self, length: int) -> float:
        """Returns `peak_of` for a length.

        The bytes of further layers are proportional to the length, so two lengths determine them.
        """
        if len(self._traces) < 2:
            return peak_of(self.at(length))
        question = replace(self.question, length=length)
        places = self._places()[0]
        base = language.traced(question, self._of_layers(places), has_state=True)
        (first, one), (second, other) = list(self._traces.items())[:2]
        share = (length - first) / (second - first)

        def total(stretch: Stretch) -> float:
            start = one.difference(stretch)
            rise = other.difference(stretch) - start
            return _size(base, stretch) + start + share * rise

        return round(max(map(total, base.stretches)))

    def _places(self) -> list[list[int]]:
        """Returns the places of the base's layers, and for each kind with a layer of it inserted."""
        kinds = self.kinds
        ends = (kinds[0], kinds[-1])
        others = [kinds.index(kind) for kind in dict.fromkeys(kinds) if kind not in ends]
        places = [0, *others, len(kinds) - 1]
        left = Counter(kinds) - Counter(kinds[place] for place in places)
        models = [places]
        for kind in left:
            models.append([*places[:_INSERTED], kinds.index(kind), *places[_INSERTED:]])
        return models

    def _of_layers(self, places: Sequence[int]) -> dict[str, Any]:
        """Returns the settings of a model with the layers at these places."""
        settings = {**self.settings, "num_hidden_layers": len(places)}
        for name, values in self.lists.items():
            settings[name] = [values[place] for place in places]
        return settings


def _by_layer(config: Any) -> dict[str, list[Any]]:
    """Returns the settings with a value for each layer, such as the kind of its attention."""
    count = config.num_hidden_layers
    lists = {name: value for name, value in config.to_dict().items() if isinstance(value, list)}
    return {name: value for name, value in lists.items() if len(value) == count}


def _continued(traces: Traces) -> Prediction:
    """Adds all further layers to the prediction of the base."""
    base = traces.base

    def total(value: Callable[[Followed], Any]) -> Any:
        in_base = value(base)
        return in_base + sum(count * (value(other) - in_base) for other, count in traces.more)

    def each(values: Callable[[Followed], Mapping[str, int]]) -> dict[str, int]:
        totals = {}
        for name in values(base):

            def value(trace: Followed, name: str = name) -> int:
                return values(trace).get(name, 0)

            totals[name] = round(total(value))
        return totals

    def at(stretch: Stretch) -> dict[str, int]:
        return each(lambda p: p.stretches.get(stretch, {}))

    by_category = max(map(at, base.stretches), key=lambda sizes: sum(sizes.values()))
    peak = sum(by_category.values())
    every = [base, *(other for other, _ in traces.more)]
    unused = max(p.reserved_bytes - p.peak_bytes for p in every)
    pass_cost = total(lambda p: np.array(p.pass_cost))
    rest_cost = total(lambda p: np.array(p.rest_cost))
    counts: dict[str, Any] = {}
    for name in ("parameters", "trained", "pass_kernels"):
        counts[name] = round(total(attrgetter(name)))
    return replace(
        base,
        peak_bytes=peak,
        reserved_bytes=peak + unused,
        fits=peak <= base.limit_bytes,
        by_category={name: size for name, size in by_category.items() if size > 0},
        moments=each(lambda p: p.moments),
        pass_seconds=kernels.bounds(pass_cost),
        rest_seconds=kernels.bounds(rest_cost),
        pass_flops=total(lambda p: p.pass_flops),
        attention=each(lambda p: p.attention),
        **counts,
    )


def _without_inserted(other: Followed) -> Followed:
    """Removes the stretches of the inserted layer, and numbers the others as in the base."""
    stretches = {}
    for (moment, layer), sizes in other.stretches.items():
        if layer != _INSERTED:
            stretches[moment, layer - (layer > _INSERTED)] = sizes
    return replace(other, stretches=stretches)
