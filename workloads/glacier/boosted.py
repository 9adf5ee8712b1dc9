"""Boosting inside a network: trees as buffers, which answer as far as validation does not show the network's gain."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

METHODS = ("boosting of pixels", "boosting with surroundings")  # from the plainest
_NODES = 61  # of a tree of 31 leaves, scikit-learn's most
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

    def log_p(self, image: Tensor, method: int, every: int = 1) -> Tensor:
        """(B, bands, S, S) -> (B, classes, s, s) log-probabilities of every so many-th row and column of pixels."""
        from workloads.glacier.baselines import features

        places, size, rows = slice(None, None, every), image.shape[2:], []
        for tile in image.float().cpu().numpy():
            rows.append(features(tile, self.indices).reshape(*size, -1)[places, places])
        x = torch.from_numpy(np.stack(rows)).to(image.device).movedim(-1, 0)  # (features, B, s, s)
        scores = self.bias[method][:, None].repeat(1, x[0].numel())
        for number, tree in enumerate(self.nodes[method].tolist()):
            _add(tree, x.flatten(1), scores[number % len(scores)])
        return scores.log_softmax(0).view(-1, *x.shape[1:]).movedim(0, 1)

    def answer(self, image: Tensor, network: Tensor) -> Tensor:
        """Returns the chosen mixture of boosting and the network's log-probabilities, (B, classes, S, S)."""
        weight = float(self.weight)
        return network if weight == 1 else (1 - weight) * self.log_p(image, int(self.method)) + weight * network


def _columns(nodes: np.ndarray) -> np.ndarray:
    """Returns (nodes, 6) of a tree of scikit-learn's boosting; thresholds are rounded down: fp32 meets them so."""
    is_inner = ~nodes["is_leaf"].astype(bool)
    threshold = nodes["num_threshold"].astype(np.float32)
    threshold = np.where(threshold > nodes["num_threshold"], np.nextafter(threshold, np.float32(-np.inf)), threshold)
    children = (nodes[side] * is_inner for side in ("left", "right"))
    columns = (nodes["feature_idx"], threshold, *children, nodes["missing_go_to_left"], nodes["value"])
    return np.stack(columns, 1).astype(np.float32)


def _add(tree: Sequence[Sequence[float]], x: Tensor, scores: Tensor) -> None:
    """Adds a tree's values to (pixels) scores, by (features, pixels). Children come after their parent."""
    todo = [(0, torch.arange(len(scores), device=x.device))]
    while todo:
        node, pixels = todo.pop()
        feature, threshold, left, right, is_nan_left, value = tree[node]
        if min(left, right) <= node:
            scores[pixels] += value
        elif len(pixels):
            seen = x[int(feature)][pixels]
            is_left = seen <= threshold
            if is_nan_left:
                is_left |= seen.isnan()
            todo += [(int(left), pixels[is_left]), (int(right), pixels[~is_left])]
