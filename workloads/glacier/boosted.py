"""Boosting inside a network: trees as buffers, which answer as far as validation does not show the network's gain."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

METHODS = ("boosting of pixels", "boosting with surroundings")  # from the plainest
EVERYWHERE = (slice(None), slice(None))  # rows and columns
_NODES = 61  # of a tree of 31 leaves, scikit-learn's most
_NO_CATEGORIES = np.zeros((0, 8), np.uint32), np.zeros(0, np.uint32)  # all features are numbers
_LEAST = -14.0  # log-probability of a class without an example


class Boosted(nn.Module):
    """The trees of METHODS, and which of them answers with how much of the network.

    `nodes` are (methods, trees, nodes, 6): feature, threshold, left, right, whether NaN goes left, value. A leaf has no
    children, 0. Tree t adds to class t % classes. They are buffers, so that checkpoints and archives have them.
    """

    nodes: Tensor
    bias: Tensor
    method: Tensor
    weight: Tensor

    def __init__(self, classes: int, rounds: int, indices: Sequence[tuple[int, int]]):
        super().__init__()
        self.indices = indices
        self.register_buffer("nodes", torch.zeros(len(METHODS), rounds * classes, _NODES, 6))
        self.register_buffer("bias", torch.zeros(len(METHODS), classes))
        self.register_buffer("method", torch.zeros((), dtype=torch.int64))
        self.register_buffer("weight", torch.zeros(()))

    def take(self, fitted: Sequence[Any]) -> None:
        """Copies fitted classifiers of scikit-learn, one for each of METHODS."""
        self.bias.fill_(_LEAST)
        for nodes, bias, model in zip(self.nodes, self.bias, fitted, strict=True):
            present = np.asarray(model.classes_).astype(int)
            outputs = present[1:] if len(present) == 2 else present  # of two classes the second alone has trees
            bias[torch.from_numpy(present)] = 0
            for turn, trees in enumerate(getattr(model, "_predictors", ())):
                for output, tree in zip(outputs.tolist(), trees, strict=True):
                    nodes[turn * len(bias) + output, : len(tree.nodes)] = torch.from_numpy(_columns(tree.nodes))
            if hasattr(model, "_baseline_prediction"):
                bias[torch.from_numpy(outputs)] = torch.from_numpy(model._baseline_prediction).float().flatten()

    def log_p(self, image: Tensor, method: int, places: tuple[slice, slice] = EVERYWHERE) -> Tensor:
        """(B, bands, S, S) -> (B, classes, s, s) log-probabilities of the pixels in these rows and columns."""
        from workloads.glacier.baselines import features

        size, scores = image.shape[2:], []
        for tile in image.float().cpu().numpy():
            seen = features(tile, self.indices).reshape(*size, -1)[places]
            scores.append(self._scores(method, seen.reshape(-1, seen.shape[-1])).view(*seen.shape[:2], -1))
        return torch.stack(scores).to(image.device).log_softmax(-1).movedim(-1, 1)

    def _scores(self, method: int, values: np.ndarray) -> Tensor:
        """(pixels, features) -> (pixels, classes)."""
        bias, rows = self.bias[method].double().cpu().numpy(), np.ascontiguousarray(values, np.float64)
        scores = np.tile(bias, (len(rows), 1))
        for number, tree in _trees(self.nodes[method].double().cpu().numpy(), rows.shape[1]):
            scores[:, number % len(bias)] += tree.predict(rows, *_NO_CATEGORIES, torch.get_num_threads())
        return torch.from_numpy(scores).float()

    def answer(self, image: Tensor, network: Tensor, places: tuple[slice, slice] = EVERYWHERE) -> Tensor:
        """Returns the chosen mixture of boosting and the network's (B, classes, s, s) log-probabilities, there."""
        weight = float(self.weight)
        if weight == 1:
            return network
        return (1 - weight) * self.log_p(image, int(self.method), places) + weight * network


def _columns(nodes: np.ndarray) -> np.ndarray:
    """Returns (nodes, 6) of a tree of scikit-learn's boosting; thresholds are rounded down: fp32 meets them so."""
    is_inner = ~nodes["is_leaf"].astype(bool)
    threshold = nodes["num_threshold"].astype(np.float32)
    threshold = np.where(threshold > nodes["num_threshold"], np.nextafter(threshold, np.float32(-np.inf)), threshold)
    children = (nodes[side] * is_inner for side in ("left", "right"))
    columns = (nodes["feature_idx"], threshold, *children, nodes["missing_go_to_left"], nodes["value"])
    return np.stack(columns, 1).astype(np.float32)


def _trees(columns: np.ndarray, width: int) -> Iterator[tuple[int, Any]]:
    """Yields the number and scikit-learn's predictor of each of (trees, nodes, 6) that says anything.

    Its loop has no bounds: a node whose children do not come after it, or whose feature there is not, is a leaf.
    """
    from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
    from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor

    feature, left, right = (np.floor(np.nan_to_num(columns[..., n])) for n in (0, 2, 3))
    after, end = np.arange(columns.shape[1]), columns.shape[1]
    is_inner = (left > after) & (right > after) & (left < end) & (right < end) & (feature >= 0) & (feature < width)
    nodes = np.zeros(columns.shape[:2], PREDICTOR_RECORD_DTYPE)
    nodes["is_leaf"] = ~is_inner
    for name, values in (("feature_idx", feature), ("left", left), ("right", right)):
        nodes[name] = np.where(is_inner, values, 0)
    nodes["num_threshold"], nodes["missing_go_to_left"] = columns[..., 1], columns[..., 4] > 0
    nodes["value"] = columns[..., 5]
    for number in np.flatnonzero(is_inner[:, 0] | (columns[:, 0, 5] != 0)):
        yield number, TreePredictor(nodes[number], _NO_CATEGORIES[0], _NO_CATEGORIES[0])
