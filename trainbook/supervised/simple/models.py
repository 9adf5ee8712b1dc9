"""Fitted models as arrays: linear ones, trees, and how often each word has each class.

A tree is (nodes, 5 + values): feature, threshold, left child, right child, the output that the first value is added to,
values. A leaf is its own child, and every other child comes after its parent.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, special

from lib import private
from trainbook.supervised.simple.estimators import estimator
from trainbook.supervised.simple.gate import UNSEEN

ABOUT = 5  # numbers of a node before its values
_AT_ONCE = 2**22  # values of leaves
_SMALL = 1e-3  # of the largest weight: smaller ones are 0
_SEEN = 0.5  # how often each word has each class in advance, by how often all words have it


class Model(NamedTuple):
    weights: np.ndarray  # (columns, outputs)
    bias: np.ndarray  # (outputs)
    trees: np.ndarray  # (trees, nodes, 5 + values)


def fitted(
    task: Any,
    how: str,
    strength: float,
    balanced: bool,
    values: Any,
    target: np.ndarray,
    width: int,
) -> Model:
    """Fits each column of numbers or marks, or all classes together. `how` is "constant", "counts", or a model's."""
    kind = task._kind
    is_forest = how == "forest"
    weights = np.zeros((values.shape[1], width), np.float32)
    bias = np.full(width, 0.0 if is_forest else UNSEEN)
    trees = [np.zeros((0, 1, ABOUT + 1))]
    for columns, rows, y in kind.problems(target):
        prior = np.broadcast_to(kind.prior(y, task.balanced), len(columns))
        bias[columns] = _shares(kind, prior) if is_forest else prior
        if how == "constant" or len(np.unique(y)) < 2:
            continue
        if how == "counts":
            weights[:, columns] = _counted(values, y, prior)
            continue
        several = len(columns) if kind.has_classes else width
        model = estimator(kind, how, strength, balanced, several)
        model.fit(values[rows], y)
        if is_forest:
            bias[columns] = 0
            trees += _grown(model, columns, width if kind.has_classes else 1)
            continue
        if kind.has_classes and len(columns) == 2:  # the model has a score of the second
            bias[columns] = 0
            columns = columns[1:]
        if how == "boosting":
            bias[columns] = private.boosting_begins_with(model)
            if balanced:  # in place of weights, for whose bins scikit-learn takes ten times as long
                bias[columns] -= _of_shares(y)[-len(columns) :]
            trees += _boosted(model, columns)
            continue
        bias[columns] = model.intercept_
        weights[:, columns] = _large(np.reshape(model.coef_, (len(columns), -1)).T)
    return Model(weights, bias, stacked(trees))


def _of_shares(target: np.ndarray) -> np.ndarray:
    """Returns the addition of class shares to scores; for two classes, the second one's."""
    _, counts = np.unique(target, return_counts=True)
    scores = np.log(counts / len(target))
    return scores[1:] - scores[0] if len(counts) == 2 else scores


def linked(kind: Any, how: str, values: np.ndarray) -> np.ndarray:
    """Returns scores unchanged; a forest's shares as logarithms, or logits."""
    if how != "forest" or not kind.has_probabilities:
        return values
    shares = np.clip(values, np.exp(UNSEEN), 1 - np.exp(UNSEEN))
    if kind.has_classes:
        return np.log(shares)
    return special.logit(shares)


def _shares(kind: Any, prior: np.ndarray) -> np.ndarray:
    """Returns the shares whose scores, by `linked`, are a prior; a number unchanged."""
    if kind.has_classes:
        return special.softmax(prior)
    return special.expit(prior) if kind.has_probabilities else prior


def _large(weights: np.ndarray) -> np.ndarray:
    """Returns weights with 0 for those that tell nothing: zeros are not stored."""
    return np.where(np.abs(weights) < _SMALL * np.abs(weights).max(), 0, weights)


def _counted(values: Any, target: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Returns (columns, classes) by how much each word raises the logarithm of each class's share."""
    _, numbers = np.unique(target, return_inverse=True)
    shares = special.softmax(prior)
    each = sparse.csr_array((np.ones(len(target)), (np.arange(len(target)), numbers)))
    counts = (values.T @ each).toarray()
    raised = (counts + _SEEN * shares) / (counts.sum(1, keepdims=True) + _SEEN)
    return np.log(raised) - np.log(shares)


def _boosted(model: Any, outputs: np.ndarray) -> list[np.ndarray]:
    trees = []
    for of_round in private.boosted_trees(model):
        for tree, output in zip(of_round, outputs, strict=True):
            nodes = tree.nodes
            is_leaf = nodes["is_leaf"].astype(bool)
            children = (nodes["left"], nodes["right"])
            split = (nodes["feature_idx"], nodes["num_threshold"])
            trees.append(_tree(is_leaf, *split, *children, output, nodes["value"][:, None]))
    return trees


def _grown(model: Any, columns: np.ndarray, width: int) -> list[np.ndarray]:
    """Returns the trees of a forest, whose leaves have numbers, or shares: of each class, or of a mark."""
    trees = []
    for each in model.estimators_:
        tree = each.tree_
        values = tree.value[:, 0] / len(model.estimators_)
        output = columns[0]
        if width > 1:
            output = 0
            wide = np.zeros((len(values), width))
            wide[:, columns] = values
            values = wide
        children = (tree.children_left, tree.children_right)
        is_leaf = tree.children_left < 0
        trees.append(
            _tree(is_leaf, tree.feature, tree.threshold, *children, output, values[:, -width:])
        )
    return trees


def _tree(
    is_leaf: np.ndarray,
    feature: np.ndarray,
    threshold: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    output: int,
    values: np.ndarray,
) -> np.ndarray:
    """Returns (1, nodes, 5 + values). Thresholds are rounded down to fp32: numbers of fp32 go the same ways."""
    places = np.arange(len(is_leaf))
    rounded = threshold.astype(np.float32)
    below = np.where(rounded > threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    about = np.stack(
        [
            np.where(is_leaf, 0, feature),
            np.where(is_leaf, 0, below),
            np.where(is_leaf, places, left),
            np.where(is_leaf, places, right),
            np.full(len(places), output),
        ],
        1,
    )
    return np.concatenate([about, values], 1)[None]


def stacked(trees: Sequence[np.ndarray]) -> np.ndarray:
    """Returns (trees, nodes, 5 + values) of arrays of trees, with leaves that nothing leads to."""
    nodes = max(tree.shape[1] for tree in trees)
    size = max(tree.shape[2] for tree in trees)
    every = []
    for tree in trees:
        more = np.zeros((len(tree), nodes, size))
        more[..., 2:4] = np.arange(nodes)[:, None]
        more[:, : tree.shape[1], : tree.shape[2]] = tree
        every.append(more)
    return np.concatenate(every)


def mean(models: Sequence[Model]) -> Model:
    """Returns one model with the mean scores of all."""
    weights = np.mean([model.weights for model in models], 0)
    bias = np.mean([model.bias for model in models], 0)
    trees = stacked([model.trees for model in models])
    trees[..., ABOUT:] /= len(models)
    return Model(weights, bias, trees)


def scored(values: Any, model: Model) -> np.ndarray:
    """(rows, columns) -> (rows, outputs) scores, or the shares of a forest."""
    weights, bias, trees = model
    scores = np.asarray(values @ weights, np.float64) + bias
    if not len(trees):
        return scores
    feature, left, right, output = (trees[..., n].astype(np.int64) for n in (0, 2, 3, 4))
    tree = np.arange(len(trees))
    size = trees.shape[2] - ABOUT
    at_once = max(1, _AT_ONCE // (len(trees) * size))
    for first in range(0, len(scores), at_once):
        some = values[first : first + at_once]
        rows = np.arange(len(some))[:, None]
        node = np.zeros((len(some), len(trees)), np.int64)
        while True:
            is_left = some[rows, feature[tree, node]] <= trees[tree, node, 1]
            after = np.where(is_left, left[tree, node], right[tree, node])
            if (after == node).all():
                break
            node = after
        added = scores[first : first + at_once]
        for number in np.unique(output[:, 0]):
            here = np.flatnonzero(output[:, 0] == number)
            leaves = trees[here, node[:, here], ABOUT:]
            added[:, number : number + size] += leaves.sum(1)
    return scores
