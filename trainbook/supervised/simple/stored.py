"""Reads simple methods that a run stored; an archive may be anybody's, so all of it is checked before it answers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lib.errors import BadInput, printable
from trainbook.supervised.simple.columns import VIEWS, View
from trainbook.supervised.simple.families import FAMILIES
from trainbook.supervised.simple.method import FIELDS, Method, unpacked
from trainbook.supervised.simple.models import ABOUT, Model

_DIMENSIONS = {"weights": 2, "bias": 1, "trees": 3}
_TYPES = {"bias": (np.float32,), "trees": (np.float32,), "weights": (np.float16, np.float32)}
_MOST_METHODS = 10
_MOST_POWER = 100.0  # of probabilities; up to 8 is tried
_OLD_FIELDS = {
    "name",
    "what",
    "kind",
    "power",
    "terms",
    "arrays",
}  # of checkouts before December 2026
_KNOWN = {(family.name, family.view, family.how) for tried in FAMILIES.values() for family in tried}


def restored(task: Any, values: Any) -> list[Method]:
    """Returns the methods that `as_json` stored for a task. Raises BadInput with what is wrong."""
    try:
        if not isinstance(values, list) or not values:
            raise ValueError(_absent(values))
        if len(values) > _MOST_METHODS:
            raise ValueError(f"there are {len(values):,}, and {_MOST_METHODS} are the most")
        return [_restored(task, each) for each in values]
    except ValueError as error:
        raise BadInput(
            f"The stored simple method cannot be used: {printable(error, most=200)}. "
            "Copy the run or archive again, or train without it."
        ) from None


def _absent(values: Any) -> str:
    if isinstance(values, Mapping) and values.keys() == _OLD_FIELDS:
        return "it is of an earlier version, whose methods this one does not have: train again"
    return "there is none (key 'simple' of what was learned from data)"


def _restored(task: Any, values: Any) -> Method:
    if not isinstance(values, Mapping):
        raise ValueError(f"it is a {type(values).__name__}")
    if values.keys() != {*FIELDS}:
        keys = ", ".join(map(str, values))
        raise ValueError(f"it has the keys {keys} instead of {', '.join(FIELDS)}")
    name, view, how, kind, power, text = (values[field] for field in FIELDS)
    _check_words(task, name, view, how, kind)
    if not isinstance(power, float) or not 0 < power <= _MOST_POWER:
        raise ValueError(f"power is {power!r} instead of a number above 0, at most {_MOST_POWER:g}")
    if not isinstance(text, str):
        raise ValueError("arrays is no text")
    arrays = unpacked(text)
    columns = _columns(VIEWS[view], arrays)
    model = _model(arrays, columns, task)
    return Method(name, view, how, kind, power, model, columns)


def _check_words(task: Any, name: Any, view: Any, how: Any, kind: Any) -> None:
    if not isinstance(view, str) or view not in VIEWS:
        raise ValueError(f"view is {view!r} instead of one of {', '.join(VIEWS)}")
    is_constant = name == task.constant and how == "constant"
    if not is_constant and not any((name, view, how) == known for known in _KNOWN):
        raise ValueError(f"name is {name!r}, of {view!r} by {how!r}")
    if kind != task._kind.name:
        raise ValueError(f"kind is {kind!r}, and the task's is {task._kind.name!r}")


def _columns(view: type[View], arrays: Mapping[str, np.ndarray]) -> View:
    """Returns the view of some arrays. Raises ValueError for arrays of another type, number or shape."""
    types = {**view.needs, **_TYPES}
    if arrays.keys() != types.keys():
        raise ValueError(f"its arrays are {', '.join(sorted(arrays))}")
    for name, array in arrays.items():
        allowed = np.atleast_1d(types[name]).tolist()
        if array.dtype not in allowed:
            raise ValueError(f"{name} is {array.dtype} instead of {np.dtype(allowed[0])}")
        if array.dtype != np.uint8 and not np.isfinite(array).all():
            raise ValueError(f"{name} has NaN or infinity")
    columns = view({name: arrays[name] for name in view.needs})
    columns.check()
    return columns


def _model(arrays: Mapping[str, np.ndarray], columns: View, task: Any) -> Model:
    shapes = {name: arrays[name].shape for name in _DIMENSIONS}
    if {name: len(shape) for name, shape in shapes.items()} != _DIMENSIONS:
        raise ValueError(f"its arrays have the shapes {shapes}")
    features, outputs = shapes["weights"]
    values = shapes["trees"][2] - ABOUT
    fits = features == columns.width and shapes["bias"] == (outputs,)
    if not fits or min(features, outputs) < 1 or values not in (1, outputs):
        raise ValueError(
            f"the shapes of its arrays do not fit each other: {shapes}, {columns.width:,} columns"
        )
    classes = len(task._known_names())
    if task._kind.has_classes and classes and outputs != classes:
        raise ValueError(f"it has {outputs} outputs, and there are {classes} classes")
    _check_trees(arrays["trees"], features, outputs)
    return Model(arrays["weights"].astype(np.float32), arrays["bias"], arrays["trees"])


def _check_trees(trees: np.ndarray, features: int, outputs: int) -> None:
    """Raises ValueError for a node whose feature, children or outputs are not there, or whose child comes before it."""
    nodes = trees.shape[1]
    values = trees.shape[2] - ABOUT
    own = np.arange(nodes)
    limits = {
        "feature": (0, 0, features),
        "left child": (2, own, nodes),
        "right child": (3, own, nodes),
        "output": (4, 0, outputs + 1 - values),
    }
    for name, (place, least, limit) in limits.items():
        numbers = trees[..., place]
        is_outside = (numbers < least) | (numbers >= limit)
        if (is_outside | (numbers != np.floor(numbers))).any():
            raise ValueError(f"a tree has a {name} that is not there")
