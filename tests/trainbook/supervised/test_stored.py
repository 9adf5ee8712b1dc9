"""A stored simple method may be anybody's: it is checked whole before it answers."""

import base64
import zlib

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from tests.trainbook.supervised.tasks import Heights, Words
from trainbook.supervised import simple
from trainbook.supervised.simple import restored
from trainbook.supervised.simple.columns import joined

NODES = 5


def stored(**changes):
    """Returns a boosting of two numbers with one output, whose one tree splits at 0.5, with some values changed."""
    tree = np.zeros((NODES, 6))
    tree[:, 2:4] = np.arange(NODES)[:, None]
    tree[0] = [1, 0.5, 1, 2, 0, 0]
    tree[1:3, 5] = [-1, 1]
    arrays = {"middle": np.zeros(2), "spread": np.ones(2), "weights": np.zeros((2, 1))}
    arrays |= {"bias": np.ones(1), "trees": tree[None]}
    for name in arrays.keys() & changes.keys():
        arrays[name] = changes.pop(name)(arrays[name])
    packed = simple.packed({name: array.astype(np.float32) for name, array in arrays.items()})
    about = {
        "name": "boosting of numbers",
        "view": "numbers",
        "how": "boosting",
        "kind": "numbers",
        "power": 1.0,
    }
    return [{**about, "arrays": packed, **changes}]


def changed(column, value, places=...):
    """Returns a change of one column of all nodes, or of those at some places."""

    def change(trees):
        trees = trees.copy()
        trees[:, places, column] = value
        return trees

    return change


def filled(value):
    return lambda array: np.full_like(array, value)


BOMB = base64.b64encode(zlib.compress(bytes(2**29), 1)).decode()
DAMAGES = {
    "child out of range on the other side": ({"trees": changed(3, 10**6, 0)}, "right child"),
    "child before the first": ({"trees": changed(2, -1)}, "left child"),
    "child before its parent, which has no end": ({"trees": changed(2, 0, 2)}, "left child"),
    "feature in a deep node": ({"trees": changed(0, 999, 4)}, "feature"),
    "output": ({"trees": changed(4, 77)}, "output"),
    "half a child": ({"trees": changed(2, 4.5, 0)}, "left child"),
    "NaN in trees": ({"trees": filled(np.nan)}, "trees has NaN"),
    "NaN in weights": ({"weights": filled(np.nan)}, "weights has NaN"),
    "infinite weights": ({"weights": filled(np.inf)}, "weights has NaN or infinity"),
    "spread 0": ({"spread": filled(0)}, "spread"),
    "one feature fewer": ({"weights": lambda a: a[:1]}, "do not fit each other"),
    "bias of other outputs": ({"bias": lambda a: a[:0]}, "do not fit each other"),
    "no columns": (
        {"weights": lambda a: a[:0], "middle": lambda a: a[:0], "spread": lambda a: a[:0]},
        "do not fit",
    ),
    "values of more outputs": ({"trees": lambda a: np.pad(a, ((0, 0), (0, 0), (0, 3)))}, "fit"),
    "flat trees": ({"trees": lambda a: a[0]}, "its arrays have the shapes"),
    "power a text": ({"power": "1.0"}, "power is '1.0'"),
    "power NaN": ({"power": float("nan")}, "power is nan"),
    "power without an end": ({"power": 1e300}, r"power is 1e\+300"),
    "another view": ({"view": "words"}, "name is 'boosting of numbers', of 'words'"),
    "unknown view": ({"view": "smells"}, "view is 'smells'"),
    "a view that is unhashable": ({"view": ["words"]}, "view is"),
    "kind": ({"kind": "classes"}, "kind is 'classes', and the task's is 'numbers'"),
    "kind a number": ({"kind": 5}, "kind is 5"),
    "arrays of words": (
        {"name": "linear model of words", "view": "words", "how": "margins"},
        "its arrays are bias, middle",
    ),
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
        restored(Heights(configured("Heights")), stored(**changes))
    assert "\x1b" not in str(refusal.value)


@pytest.mark.parametrize("values", [None, [], "x", {"simple": 1}])
def test_a_run_that_starts_from_a_simple_method_and_has_none_is_refused(values, configured):
    task = Heights(configured("Heights", {"training.start_from_baseline": True}))
    task.take_learned({"variance of targets": 1.0, "simple": values})
    with pytest.raises(BadInput, match="there is none"):
        _ = task._simple


def test_a_method_of_an_earlier_version_is_refused_with_what_to_do(configured):
    old = dict.fromkeys(("name", "what", "kind", "power", "terms", "arrays"), "x")
    with pytest.raises(BadInput, match="of an earlier version.* train again"):
        restored(Heights(configured("Heights")), old)


def test_many_methods_are_refused(configured):
    with pytest.raises(BadInput, match="there are 99, and 10 are the most"):
        restored(Heights(configured("Heights")), stored() * 99)


def test_an_undamaged_one_answers_as_its_trees_say(configured):
    task = Heights(configured("Heights"))
    batch = task.labelled([((0.0, 0.4), 0.0), ((0.0, 0.6), 0.0)])
    (method,) = restored(task, stored())
    assert method.scores(task, batch).tolist() == [0.0, 2.0]


TERMS = {
    "a term twice": (["a", "a"], [1, 1], "a text twice"),
    "fewer weights than terms": (["a", "b"], [1], "2 terms do not fit"),
    "no text": (b"\xff\xff", [1], "cannot be used"),
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_that_are_damaged_are_refused(name, configured, words):
    terms, weighed, sentence = TERMS[name]
    if isinstance(terms, bytes):
        terms = np.frombuffer(terms, np.uint8)
    else:
        terms = joined(terms)
    arrays = {"words": terms, "words weighed": np.array(weighed, np.float32)}
    arrays["weights"] = np.zeros((2, 2), np.float16)
    arrays |= {"bias": np.zeros(2, np.float32), "trees": np.zeros((0, 1, 6), np.float32)}
    about = {"name": "linear model of words", "view": "words", "how": "margins", "power": 1.0}
    values = [{**about, "kind": "classes", "arrays": simple.packed(arrays)}]
    with pytest.raises(BadInput, match=sentence):
        restored(Words(configured("Words"), words), values)


def test_a_method_of_other_classes_is_refused(configured, words):
    task = Words(configured("Words"), words)
    values = stored(kind="classes")
    with pytest.raises(BadInput, match="it has 1 outputs, and there are 2 classes"):
        restored(task, values)


def test_a_batch_of_another_width_or_another_number_of_targets_is_refused(configured):
    task = Heights(configured("Heights"))
    (method,) = restored(task, stored())
    with pytest.raises(
        BadInput, match=r"needs numbers, 2 numbers each. A batch has numbers of shape \(1, 3\)"
    ):
        method.scores(task, {"x": torch.zeros(1, 3), "labels": torch.zeros(1)})
    with pytest.raises(BadInput, match="has 1 outputs a sample, and the labels have the shape"):
        method.scores(task, {"x": torch.zeros(1, 2), "labels": torch.zeros(1, 2)})


def test_more_classes_than_the_model_has_outputs_are_refused():
    with pytest.raises(BadInput, match="2 classes more than the model has outputs"):
        simple.shaped(torch.zeros(3, 5), torch.zeros(3, 3))
