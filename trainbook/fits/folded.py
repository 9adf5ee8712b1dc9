"""Predicts a deep model by traces of a few of its layers: layers of a kind take equal memory and equal time.

A model of one layer of each kind is traced, and for each kind the same with one layer more, which is what every other
layer of that kind adds. The peak may move to another part of the step as layers are added, so each stretch of the step
is continued for itself, and the highest is the peak. Against traces of whole models: at most 0.6 % apart.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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


def fits(question: Question) -> Prediction:
    """Predicts as `language.fits` does, in seconds. Raises BadInput."""
    language.check(question)
    settings = language.settings_of(question.model)
    with torch.device("meta"):
        whole = language.untrained(settings)
    lists = _by_layer(whole.config)
    places, kinds = _few(lists, whole.config.num_hidden_layers)
    if len(kinds) <= _FEW:
        return language.traced(question, settings)
    base = language.traced(question, _of_layers(settings, lists, places), has_state=True)
    left = Counter(kinds) - Counter(kinds[place] for place in places)
    more = {}
    for kind in left:
        inserted = [*places[:_INSERTED], kinds.index(kind), *places[_INSERTED:]]
        more[kind] = language.traced(question, _of_layers(settings, lists, inserted), has_state=True)
    prediction = _continued(base, [(more[kind], count) for kind, count in left.items()])
    weights = sum(parameter.numel() for parameter in tied(whole).parameters())
    adapters = 0 if question.method == "full" else prediction.trained
    is_whole = math.isclose(prediction.parameters - adapters, weights, rel_tol=_SAME)
    # layers that differ in more than their settings say, and sentences that count operators
    if not is_whole or len(base.unseen) > 1 or base.most_peak_bytes:
        return language.traced(question, settings)
    return prediction


def _by_layer(config: Any) -> dict[str, list[Any]]:
    """Returns the settings with a value for each layer, such as whether its attention is local."""
    lists = {name: value for name, value in config.to_dict().items() if isinstance(value, list)}
    return {name: value for name, value in lists.items() if len(value) == config.num_hidden_layers}


def _few(lists: Mapping[str, list[Any]], count: int) -> tuple[list[int], list[Kind]]:
    """Returns the first, the last and one layer of each other kind by their places, and the kind of every layer."""
    kinds = [tuple(values[place] for values in lists.values()) for place in range(count)]
    others = [kinds.index(kind) for kind in dict.fromkeys(kinds) if kind not in (kinds[0], kinds[-1])]
    return [0, *others, count - 1], kinds


def _of_layers(settings: Mapping[str, Any], lists: Mapping[str, list[Any]], places: Sequence[int]) -> dict[str, Any]:
    chosen = {name: [values[place] for place in places] for name, values in lists.items()}
    return {**settings, **chosen, "num_hidden_layers": len(places)}


def _continued(base: Followed, more: Sequence[tuple[Followed, int]]) -> Prediction:
    """Adds to `base` what each of `more` has beyond it, times its number."""
    renumbered = [(_without_inserted(other), count) for other, count in more]

    def total(value: Callable[[Followed], Any]) -> Any:
        return value(base) + sum(count * (value(other) - value(base)) for other, count in renumbered)

    def each(values: Callable[[Followed], Mapping[str, int]]) -> dict[str, int]:
        return {name: round(total(lambda p, name=name: values(p).get(name, 0))) for name in values(base)}

    def at(stretch: tuple[str, int]) -> dict[str, int]:
        return each(lambda p: p.stretches.get(stretch, {}))

    by_category = max(map(at, base.stretches), key=lambda sizes: sum(sizes.values()))
    peak = sum(by_category.values())
    return replace(
        base,
        peak_bytes=peak,
        reserved_bytes=peak + base.reserved_bytes - base.peak_bytes,
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


def _without_inserted(other: Followed) -> Followed:
    """Returns it with the numbers that its layers have in the base, without the stretches of the inserted one."""
    stretches = {
        (moment, layer - (layer > _INSERTED)): sizes
        for (moment, layer), sizes in other.stretches.items()
        if layer != _INSERTED
    }
    return replace(other, stretches=stretches)
