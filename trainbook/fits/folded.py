"""Predicts a deep model by traces of a few of its layers: layers of a kind take equal memory and equal time.

A model of its first and last layer and one of each other kind is traced, and for each kind the same with one layer
more, which is what every further layer of that kind adds. The peak may move to another part of the step as layers are
added, so each stretch of the step is continued for itself, and the highest is the peak.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lib.planner import Prediction, kernels
from lib.planner.log import Followed
from lib.planner.trace import tied
from trainbook.fits import language
from trainbook.fits.language import Question

_INSERTED = 1  # the place of a layer more: behind the first, so that the ends stay
_SAME = 1e-3  # of the parameters: packed ones are padded
_FEW = 6  # a model of so many layers is traced whole
Kind = tuple[Any, ...]
Stretch = tuple[str, int]


@dataclass(frozen=True)
class Traces:
    """The trace of few layers; and each with one layer more, and how many layers of its kind the model has beyond."""

    base: Followed
    more: tuple[tuple[Followed, int], ...]

    def difference(self, stretch: Stretch) -> int:
        """Returns the bytes that all further layers add to a stretch."""
        return sum(
            count * (_size(other, stretch) - _size(self.base, stretch))
            for other, count in self.more
        )


def _size(trace: Followed, stretch: Stretch) -> int:
    return sum(trace.stretches.get(stretch, {}).values())


def fits(question: Question) -> Prediction:
    """Predicts as `language.fits` does, in seconds. Raises BadInput."""
    return Folded(question).at(question.length)


def peak_of(prediction: Prediction) -> float:
    """Returns the peak in bytes, infinite where segments do not fit although the peak does."""
    is_split = not prediction.fits and prediction.peak_bytes <= prediction.limit_bytes
    return math.inf if is_split else prediction.peak_bytes


class Folded:
    """A question at several lengths."""

    def __init__(self, question: Question):
        language.check(question)
        self.question = question
        self.settings = language.settings_of(question.model)
        with torch.device("meta"):
            whole = tied(language.untrained(self.settings))
        self.parameters = sum(parameter.numel() for parameter in whole.parameters())
        self.lists = _by_layer(whole.config)
        count = whole.config.num_hidden_layers
        self.kinds = [
            tuple(values[place] for values in self.lists.values()) for place in range(count)
        ]
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
        further = [
            language.traced(question, self._of_layers(more), has_state=True) for more in inserted
        ]
        traces = Traces(
            base, tuple(zip(map(_without_inserted, further), left.values(), strict=True))
        )
        prediction = _continued(traces)
        adapters = 0 if question.method == "full" else prediction.trained
        is_like = math.isclose(prediction.parameters - adapters, self.parameters, rel_tol=_SAME)
        # layers that differ in more than their settings say, and sentences that count operators
        if not is_like or len(base.unseen) > 1 or base.most_peak_bytes:
            self.is_whole = True
            return self.at(length)
        self._traces[length] = traces
        return prediction

    def peak_at(self, length: int) -> float:
        """Returns what `peak_of` does for a length.

        What further layers add grows in proportion to the length: two lengths tell it.
        """
        if len(self._traces) < 2:
            return peak_of(self.at(length))
        base = language.traced(
            replace(self.question, length=length), self._of_layers(self._places()[0]), True
        )
        (first, one), (second, other) = list(self._traces.items())[:2]
        share = (length - first) / (second - first)

        def total(stretch: Stretch) -> float:
            start = one.difference(stretch)
            return _size(base, stretch) + start + share * (other.difference(stretch) - start)

        return round(max(map(total, base.stretches)))

    def _places(self) -> list[list[int]]:
        """Returns the first, the last and one layer of each other kind by their places; and with one of each kind."""
        kinds = self.kinds
        others = [
            kinds.index(kind) for kind in dict.fromkeys(kinds) if kind not in (kinds[0], kinds[-1])
        ]
        places = [0, *others, len(kinds) - 1]
        left = Counter(kinds) - Counter(kinds[place] for place in places)
        return [
            places,
            *([*places[:_INSERTED], kinds.index(kind), *places[_INSERTED:]] for kind in left),
        ]

    def _of_layers(self, places: Sequence[int]) -> dict[str, Any]:
        chosen = {name: [values[place] for place in places] for name, values in self.lists.items()}
        return {**self.settings, **chosen, "num_hidden_layers": len(places)}


def _by_layer(config: Any) -> dict[str, list[Any]]:
    """Returns the settings with a value for each layer, such as whether its attention is local."""
    lists = {name: value for name, value in config.to_dict().items() if isinstance(value, list)}
    return {name: value for name, value in lists.items() if len(value) == config.num_hidden_layers}


def _continued(traces: Traces) -> Prediction:
    """Adds to the base what each of the further layers adds."""
    base = traces.base
    more = traces.more

    def total(value: Callable[[Followed], Any]) -> Any:
        return value(base) + sum(count * (value(other) - value(base)) for other, count in more)

    def each(values: Callable[[Followed], Mapping[str, int]]) -> dict[str, int]:
        return {
            name: round(total(lambda p, name=name: values(p).get(name, 0))) for name in values(base)
        }

    def at(stretch: Stretch) -> dict[str, int]:
        return each(lambda p: p.stretches.get(stretch, {}))

    by_category = max(map(at, base.stretches), key=lambda sizes: sum(sizes.values()))
    peak = sum(by_category.values())
    unused = max(p.reserved_bytes - p.peak_bytes for p in _every(traces))
    return replace(
        base,
        peak_bytes=peak,
        reserved_bytes=peak + unused,
        fits=peak <= base.limit_bytes,
        by_category={name: size for name, size in by_category.items() if size > 0},
        moments=each(lambda p: p.moments),
        parameters=round(total(lambda p: p.parameters)),
        trained=round(total(lambda p: p.trained)),
        pass_seconds=kernels.bounds(total(lambda p: np.array(p.pass_cost))),
        rest_seconds=kernels.bounds(total(lambda p: np.array(p.rest_cost))),
        pass_kernels=round(total(lambda p: p.pass_kernels)),
        pass_flops=total(lambda p: p.pass_flops),
        attention=each(lambda p: p.attention),
    )


def _every(traces: Traces) -> Iterator[Followed]:
    yield traces.base
    yield from (other for other, _ in traces.more)


def _without_inserted(other: Followed) -> Followed:
    """Returns it with the numbers that its layers have in the base, without the stretches of the inserted one."""
    stretches = {
        (moment, layer - (layer > _INSERTED)): sizes
        for (moment, layer), sizes in other.stretches.items()
        if layer != _INSERTED
    }
    return replace(other, stretches=stretches)
