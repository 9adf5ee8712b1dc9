"""Loads the simple method of a run; validates every value, since the archive is untrusted."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lib.errors import BadInput, printable
from trainbook.supervised import simple
from trainbook.supervised.simple import FORMS, NODES, Simple

_ARRAYS = {"middle": 1, "spread": 1, "weights": 3, "bias": 2, "trees": 4}  # name: dimensions
_MOST_POWER = 100.0  # of probabilities; `simple` tries up to 2
_METHODS = ("linear model of", "boosting of")


def simple_of(task: Any, values: Any) -> Simple:
    """Returns the method that `Simple.as_json` stored for a task, in fp32. Raises BadInput with the reason."""
    try:
        method = _parsed(values)
        _check_words(method, task._kind.name)
        _check_shapes(method.arrays, len(method.terms))
        _check_values(method.arrays)
        _check_trees(method.arrays)
        _check_outputs(method.arrays, task)
    except ValueError as error:
        raise BadInput(
            f"The stored simple method cannot be used: {printable(error, most=200)}. "
            "Copy the run or archive again, or train without it."
        ) from None
    return method


def _parsed(values: Any) -> Simple:
    if not isinstance(values, Mapping):
        raise ValueError("there is none (key 'simple' of what was learned from data)")
    if values.keys() != {*Simple._fields}:
        keys = ", ".join(map(str, values))
        raise ValueError(f"it has the keys {keys} instead of {', '.join(Simple._fields)}")
    terms = values["terms"]
    if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
        raise ValueError("terms is no list of texts")
    if not isinstance(values["arrays"], str):
        raise ValueError("arrays is no text")
    return Simple(**{**values, "terms": tuple(terms), "arrays": simple.unpacked(values["arrays"])})


def _check_words(method: Simple, kind: str) -> None:
    if method.what not in FORMS:
        raise ValueError(f"what is {method.what!r} instead of one of {', '.join(FORMS)}")
    if method.name not in ("constant", *(f"{model} {method.what}" for model in _METHODS)):
        raise ValueError(f"name is {method.name!r}")
    if method.kind != kind:
        raise ValueError(f"kind is {method.kind!r}, and the task's is {kind!r}")
    if not isinstance(method.power, float) or not 0 < method.power <= _MOST_POWER:
        raise ValueError(
            f"power is {method.power!r} instead of a number above 0, at most {_MOST_POWER:g}"
        )
    if bool(method.terms) != (method.what in simple.TEXTS):
        raise ValueError(f"it has {len(method.terms):,} terms for {method.what!r}")
    if len({*method.terms}) < len(method.terms):
        raise ValueError("terms has a text twice")


def _check_shapes(arrays: Mapping[str, np.ndarray], terms: int) -> None:
    shapes = {name: array.shape for name, array in arrays.items()}
    if {name: len(shape) for name, shape in shapes.items()} != _ARRAYS:
        raise ValueError(f"its arrays are {shapes}")
    models, features, outputs = shapes["weights"]
    trees = shapes["trees"][1]
    fitting = {
        "weights": (models, terms or features, outputs),
        "spread": (features,),
        "middle": (0,) if terms else (features,),
        "bias": (models, outputs),
        "trees": (models, trees, NODES, 6),
    }
    if shapes != fitting or min(models, features, outputs) < 1:
        raise ValueError(
            f"the shapes of its arrays do not fit each other: {shapes}, {terms:,} terms"
        )


def _check_values(arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if array.dtype != np.float32:
            raise ValueError(f"{name} is {array.dtype} instead of float32")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has NaN or infinity")
    if (arrays["spread"] <= 0).any():
        raise ValueError("spread has a number that is not above 0")


def _check_trees(arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError for a node whose feature, children or output are not there."""
    _, features, outputs = arrays["weights"].shape
    limits = {
        "feature": (0, features),
        "left child": (2, NODES),
        "right child": (3, NODES),
        "output": (5, outputs),
    }
    for name, (place, limit) in limits.items():
        numbers = arrays["trees"][..., place]
        is_outside = (numbers < 0) | (numbers >= limit)
        if (is_outside | (numbers != np.floor(numbers))).any():
            raise ValueError(f"a tree has a {name} that is no number from 0 to {limit - 1}")


def _check_outputs(arrays: Mapping[str, np.ndarray], task: Any) -> None:
    outputs = arrays["weights"].shape[2]
    classes = len(task._known_names())
    if task._kind.has_classes and classes and outputs != classes:
        raise ValueError(f"it has {outputs} outputs, and there are {classes} classes")
