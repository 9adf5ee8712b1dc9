"""A stored simple method may be anybody's: it is checked whole before it answers."""

import base64
import zlib

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from tests.trainbook.supervised.tasks import Heights, Words
from trainbook.supervised import simple
from trainbook.supervised.stored import simple_of


def stored(**changes):
    """Returns a boosting of two numbers with one output, whose one tree splits at 0.5, with some values changed."""
    tree = np.zeros((simple.NODES, 6))
    tree[0] = [1, 0.5, 1, 2, 0, 0]
    tree[1:3] = [[0, 0, 1, 1, -1, 0], [0, 0, 2, 2, 1, 0]]
    trees = np.stack([tree[None]] * 2)
    weights = np.zeros((2, 2, 1))
    bias = np.ones((2, 1))
    arrays = {"middle": np.zeros(2), "spread": np.ones(2), "weights": weights, "bias": bias}
    arrays["trees"] = trees
    for name in arrays.keys() & changes.keys():
        arrays[name] = changes.pop(name)(arrays[name])
    packed = simple.packed({name: array.astype(np.float32) for name, array in arrays.items()})
    about = {
        "name": "boosting of numbers",
        "what": "numbers",
        "kind": "numbers",
        "power": 1.0,
        "terms": [],
    }
    return {**about, "arrays": packed, **changes}


def changed(column, value, places=...):
    """Returns a change of one column of all nodes, or of those at some places."""

    def change(trees):
        trees = trees.copy()
        trees[:, :, places, column] = value
        return trees

    return change


def filled(value):
    return lambda array: np.full_like(array, value)


BOMB = base64.b64encode(zlib.compress(bytes(2**29), 1)).decode()
DAMAGES = {
    "child out of range on the other side": ({"trees": changed(3, 10**6, 0)}, "right child"),
    "child before the first": ({"trees": changed(2, -1)}, "left child"),
    "feature in a deep node": ({"trees": changed(0, 999, 5)}, "feature"),
    "output": ({"trees": changed(5, 77)}, "output"),
    "half a child": ({"trees": changed(2, 0.5)}, "left child"),
    "NaN in trees": ({"trees": filled(np.nan)}, "trees has NaN"),
    "NaN in weights": ({"weights": filled(np.nan)}, "weights has NaN"),
    "infinite weights": ({"weights": filled(np.inf)}, "weights has NaN or infinity"),
    "spread 0": ({"spread": filled(0)}, "spread"),
    "one feature fewer": ({"weights": lambda a: a[:, :1]}, "do not fit each other"),
    "bias of other models": ({"bias": lambda a: a[:1]}, "do not fit each other"),
    "no models": (
        {"weights": lambda a: a[:0], "bias": lambda a: a[:0], "trees": lambda a: a[:0]},
        "do not fit",
    ),
    "flat trees": ({"trees": lambda a: a[0]}, "its arrays are"),
    "power a text": ({"power": "1.0"}, "power is '1.0'"),
    "power NaN": ({"power": float("nan")}, "power is nan"),
    "power without an end": ({"power": 1e300}, r"power is 1e\+300"),
    "what is seen": ({"what": "words"}, "name is|terms for 'words'"),
    "unknown form": ({"what": "smells"}, "what is 'smells'"),
    "what is unhashable": ({"what": ["words"]}, "what is"),
    "kind": ({"kind": "classes"}, "kind is 'classes', and the task's is 'numbers'"),
    "kind a number": ({"kind": 5}, "kind is 5"),
    "terms of numbers": ({"terms": ["x"] * 3}, "3 terms for 'numbers'"),
    "terms a text": ({"terms": "x"}, "terms is no list"),
    "arrays a text": ({"arrays": "x"}, "cannot be used"),
    "arrays a list": ({"arrays": []}, "arrays is no text"),
    "a bomb": ({"arrays": BOMB}, "cannot be used"),
    "a name that moves the cursor": ({"name": "\x1b[2Jx"}, "name is"),
    "a key more": ({"more": 1}, "it has the keys"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_simple_method_is_refused_by_what_is_wrong(name, configured):
    changes, words = DAMAGES[name]
    with pytest.raises(BadInput, match=words) as refusal:
        simple_of(Heights(configured("Heights")), stored(**changes))
    assert "\x1b" not in str(refusal.value)


@pytest.mark.parametrize("values", [None, [], "x"])
def test_a_run_that_starts_from_a_simple_method_and_has_none_is_refused(values, configured):
    task = Heights(configured("Heights", {"training.start_from_baseline": True}))
    task.take_learned({"variance of targets": 1.0, "simple": values})
    with pytest.raises(BadInput, match="there is none"):
        _ = task._simple


def test_an_undamaged_one_answers_as_its_trees_say(configured):
    task = Heights(configured("Heights"))
    batch = task.labelled([((0.0, 0.4), 0.0), ((0.0, 0.6), 0.0)])
    assert simple_of(task, stored()).scores(task, batch).tolist() == [0.0, 2.0]


def test_a_method_of_other_classes_is_refused(configured, words):
    task = Words(configured("Words"), words)
    values = stored(kind="classes")
    with pytest.raises(BadInput, match="it has 1 outputs, and there are 2 classes"):
        simple_of(task, values)


def test_a_batch_of_another_width_or_another_number_of_targets_is_refused(configured):
    task = Heights(configured("Heights"))
    method = simple_of(task, stored())
    with pytest.raises(
        BadInput, match=r"needs numbers, 2 numbers each. A batch has numbers of shape \(1, 3\)"
    ):
        method.scores(task, {"x": torch.zeros(1, 3), "labels": torch.zeros(1)})
    with pytest.raises(BadInput, match="has 1 outputs a sample, and the labels have the shape"):
        method.scores(task, {"x": torch.zeros(1, 2), "labels": torch.zeros(1, 2)})


def test_more_classes_than_the_model_has_outputs_are_refused():
    with pytest.raises(BadInput, match="2 classes more than the model has outputs"):
        simple.shaped(torch.zeros(3, 5), torch.zeros(3, 3))
