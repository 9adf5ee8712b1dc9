"""Fits gradient boosting to a bounded sample of pixels, with and without their surroundings.

In a gated network its trees are buffers, and answer unless validation shows the network's gain.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib import private
from trainbook import Judged
from workloads.glacier.encoded import Encoded
from workloads.glacier.judging import MIXED, judged
from workloads.glacier.model import difference
from workloads.glacier.settings import IGNORE

Tile = tuple[Any, ...]  # begins with bands (C, H, W) floats and mask (H, W) integers or IGNORE
Fitted = dict[
    str, tuple[int, Any]
]  # by method the number of features, and a classifier of scikit-learn

SIDES = (5, 15)  # pixels of the squares around a pixel whose means are features
# For each method the sides of its squares, and whether classes are balanced
METHODS = {
    "boosting of pixels": ((), False),
    "boosting with surroundings": (SIDES, False),
    "balanced boosting with surroundings": (SIDES, True),
}
HELD = tuple(METHODS)[:2]  # in a network, the plainest first
ON_ENCODER = (
    "boosting on encoder"  # with surroundings too; the last in a network that holds an encoder
)
EVERYWHERE = (slice(None), slice(None))  # rows and columns
_EVERY = 2  # pixels of the sample give one to methods with surroundings, which have three times the features
_MOST_TILES = 400
_MOST_PIXELS = 2_000_000  # that are scored, which bounds the time
_NODES = 61  # a tree of 31 leaves, scikit-learn's most
_NO_CATEGORIES = np.zeros((0, 8), np.uint32), np.zeros(0, np.uint32)  # all features are numbers
_REACH = 6  # pixels of a Gaussian of the widest of MIXED, cut at 4 deviations
_LEAST = -14.0  # log-probability of a class without an example


def features(
    bands: np.ndarray, indices: Sequence[tuple[int, int]] = (), encoded: Encoded | None = None
) -> np.ndarray:
    """(C, H, W) -> (H * W, features) float32: bands and indices, their means over squares of SIDES, and components.

    A mean is over pixels with data; without any it is NaN. Components are of `encoded`.
    """
    from scipy.ndimage import uniform_filter

    image = torch.from_numpy(np.ascontiguousarray(bands, np.float32))
    differences = [difference(image, *pair) for pair in indices]
    planes = torch.cat([image, *differences]).numpy()
    known = ~np.isnan(planes)
    values = np.where(known, planes, 0)
    parts = [planes]
    for side in SIDES:
        shape = (1, side, side)
        total = uniform_filter(values, size=shape, mode="constant")
        number = uniform_filter(known.astype(np.float32), size=shape, mode="constant")
        mean = np.full_like(total, np.nan)
        np.divide(total, number, out=mean, where=number > 0.5 / side**2)
        parts.append(mean)
    if encoded is not None:
        parts.append(encoded(image).cpu().numpy())
    stacked = np.concatenate(parts)
    return stacked.reshape(len(stacked), -1).T


def sample(
    tiles: Sequence[Tile], seed: int, pixels: int, indices: Any = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws (N, features) float32 and (N) classes of at most `pixels` valid pixels, equally many a tile.

    The third are (N, 2) numbers of tile and pixel.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(tiles))[:_MOST_TILES]
    quota = -(-pixels // max(1, len(chosen)))
    values = []
    labels = []
    places = []
    for index in sorted(chosen):
        bands, mask = tiles[int(index)][:2]
        mask = mask.reshape(-1)
        valid = np.flatnonzero(mask != IGNORE)
        valid = np.sort(rng.permutation(valid)[:quota])
        values.append(features(bands, indices)[valid])
        labels.append(mask[valid])
        places.append(np.stack([np.full(len(valid), index), valid], 1))
    columns = [np.concatenate(parts)[:pixels] for parts in (values, labels, places)]
    return columns[0], columns[1], columns[2]


def fitted(values: np.ndarray, labels: np.ndarray, seed: int, rounds: int, balanced: bool) -> Any:
    """Fits histogram gradient boosting (LightGBM, Ke et al., NeurIPS 2017, as scikit-learn has it)."""
    # Takes a second, which only runs with a baseline need
    from sklearn.dummy import DummyClassifier
    from sklearn.ensemble import HistGradientBoostingClassifier

    if labels.min() == labels.max():
        return DummyClassifier().fit(values, labels)
    # No early stopping: neighbours of held-out pixels would be trained on
    options = {
        "early_stopping": False,
        "random_state": seed % 2**32,
        "class_weight": "balanced" if balanced else None,
    }
    return HistGradientBoostingClassifier(max_iter=rounds, **options).fit(values, labels)


def scored(part: Sequence[Tile]) -> np.ndarray:
    """Returns the numbers of the tiles on which baselines are scored: all, or an even sample."""
    number = min(len(part), _MOST_TILES)
    places = np.linspace(0, len(part) - 1, number).round()
    return np.unique(places.astype(np.int64))


def fit(
    train: Sequence[Tile],
    seed: int,
    indices: Any,
    pixels: int = 200_000,
    rounds: int = 100,
    encoded: Encoded | None = None,
) -> Fitted:
    """Fits METHODS, `encoded` and boosting on it to at most `pixels` of training tiles, with `rounds` trees a class."""
    values, labels, places = sample(train, seed, pixels, indices)
    plain = values.shape[1] // (1 + len(SIDES))  # bands and indices, which come first
    methods = {}
    for name, (sides, balanced) in METHODS.items():
        some = slice(None, None, _EVERY if sides else 1)
        width = plain * (1 + len(sides))
        model = fitted(values[some, :width], labels[some], seed, rounds, balanced)
        methods[name] = width, model
    if encoded is not None:
        some = slice(None, None, _EVERY)
        components = encoded.fit(train, places[some], values[some])
        values = np.concatenate([values[some], components], 1)
        model = fitted(values, labels[some], seed, rounds, False)
        methods[ON_ENCODER] = values.shape[1], model
    return methods


def compared(
    methods: Fitted,
    part: Sequence[Tile],
    classes: int,
    seed: int,
    indices: Sequence[tuple[int, int]],
    encoded: Encoded | None = None,
) -> dict[str, Judged]:
    """Returns the answers of each method on the tiles of `scored`."""
    numbers = scored(part)
    counts = {name: np.zeros((len(part), classes, classes), np.int64) for name in methods}
    rng = np.random.default_rng(seed)
    for index in numbers:
        bands, mask = part[int(index)][:2]
        mask = mask.reshape(-1)
        valid = mask != IGNORE
        # An equal share of every tile keeps scores unbiased
        share = _MOST_PIXELS / (len(numbers) * mask.size)
        if share < 1:
            valid &= rng.random(valid.size) < share
        pixels = features(bands, indices, encoded)[valid]
        for name, (width, model) in methods.items():
            guess = model.predict(pixels[:, :width]).astype(int)
            np.add.at(counts[name][index], (mask[valid], guess), 1)
    return {name: judged(of_tiles) for name, of_tiles in counts.items()}


class Boosted(nn.Module):
    """The trees of HELD and of boosting on `encoded`, what answers, and the weight of the network beside it.

    `method` is the number of the answer: of HELD, then of MIXED. `nodes` are (methods, trees, nodes, 6): feature,
    threshold, left, right, whether NaN goes left, value. The children of a leaf are 0. Tree t adds to class
    t % classes. Buffers are part of checkpoints and archives.
    """

    nodes: Tensor
    bias: Tensor
    method: Tensor
    weight: Tensor

    def __init__(
        self,
        classes: int,
        rounds: int,
        indices: Sequence[tuple[int, int]],
        encoded: Encoded | None = None,
    ):
        super().__init__()
        self.indices = indices
        self.encoded = encoded
        methods = len(HELD) + (encoded is not None)
        self.register_buffer("nodes", torch.zeros(methods, rounds * classes, _NODES, 6))
        self.register_buffer("bias", torch.zeros(methods, classes))
        self.register_buffer("method", torch.zeros((), dtype=torch.int64))
        self.register_buffer("weight", torch.zeros(()))

    def take(self, fitted: Sequence[Any]) -> None:
        """Copies fitted classifiers of scikit-learn, one for each of HELD and, with an encoder, that on it."""
        self.bias.fill_(_LEAST)
        for nodes, bias, model in zip(self.nodes, self.bias, fitted, strict=True):
            classes = np.asarray(model.classes_).astype(int)
            bias[torch.from_numpy(classes)] = 0
            # With two classes only the second has trees
            outputs = classes[1:] if len(classes) == 2 else classes
            for turn, trees in enumerate(private.boosted_trees(model)):
                for output, tree in zip(outputs.tolist(), trees, strict=True):
                    columns = torch.from_numpy(_columns(tree.nodes))
                    nodes[turn * len(bias) + output, : len(columns)] = columns
            first = private.boosting_begins_with(model)
            if first is not None:
                bias[torch.from_numpy(outputs)] = torch.from_numpy(first).float()

    def log_p(self, image: Tensor, method: int, places: tuple[slice, slice] = EVERYWHERE) -> Tensor:
        """(B, bands, S, S) -> (B, classes, s, s) log-probabilities of the pixels in `places`, rows and columns.

        `method` is one of HELD, or the number after them: boosting on encoder.
        """
        nodes = self.nodes[method].double().cpu().numpy()
        bias = self.bias[method].double().cpu().numpy()
        threads = torch.get_num_threads()
        encoded = self.encoded if method == len(HELD) else None
        tiles = []
        for tile in image.float().cpu().numpy():
            seen = features(tile, self.indices, encoded).reshape(*tile.shape[1:], -1)[places]
            rows = np.ascontiguousarray(seen.reshape(-1, seen.shape[-1]), np.float64)
            scores = np.tile(bias, (len(rows), 1))
            for number, tree in _trees(nodes, rows.shape[1]):
                added = tree.predict(rows, *_NO_CATEGORIES, threads)
                scores[:, number % len(bias)] += added
            of_tile = torch.from_numpy(scores).float()
            tiles.append(of_tile.view(*seen.shape[:2], -1))
        stacked = torch.stack(tiles).to(image.device)
        return stacked.log_softmax(-1).movedim(-1, 1)

    def answer(
        self, image: Tensor, network: Tensor, places: tuple[slice, slice] = EVERYWHERE
    ) -> Tensor:
        """Mixes boosting into the network's (B, classes, s, s) log-probabilities of `places`."""
        weight = float(self.weight)
        if weight == 1:
            return network
        share, sigma = self.mixture
        if not share:
            boosted = self.log_p(image, int(self.method), places)
        else:
            around, inner = _around(places, image.shape[-1]) if sigma else (places, EVERYWHERE)
            boosted = mixed(*self._pair(image, around), share, sigma)[..., *inner]
        return (1 - weight) * boosted + weight * network

    @property
    def number(self) -> int:
        """How many answers there are: HELD and, with an encoder, MIXED."""
        return len(HELD) + len(MIXED) * (self.encoded is not None)

    @property
    def mixture(self) -> tuple[float, float]:
        """The share of boosting on encoder in the answer, and the deviation of its Gaussian."""
        place = int(self.method) - len(HELD)
        return MIXED[place] if place >= 0 else (0.0, 0.0)

    def answers(self, image: Tensor, places: tuple[slice, slice]) -> Tensor:
        """(B, bands, S, S) -> (answers, B, classes, s, s) log-probabilities of the pixels in `places`.

        With an encoder `places` are without steps: a Gaussian needs the pixels around.
        """
        each = [self.log_p(image, method, places) for method in range(len(HELD))]
        if self.encoded is not None:
            around, inner = _around(places, image.shape[-1])
            pair = self._pair(image, around)
            each += [mixed(*pair, *option)[..., *inner] for option in MIXED]
        return torch.stack(each)

    def _pair(self, image: Tensor, places: tuple[slice, slice]) -> tuple[Tensor, Tensor]:
        """Returns the log-probabilities of boosting with surroundings, and on encoder."""
        return self.log_p(image, len(HELD) - 1, places), self.log_p(image, len(HELD), places)


def _around(
    places: tuple[slice, slice], size: int
) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Returns places that are wider by what a Gaussian reaches, in a tile of `size`, and the given ones within them."""
    wide = []
    inner = []
    for place in places:
        start, stop, _ = place.indices(size)
        first = max(0, start - _REACH)
        wide.append(slice(first, min(size, stop + _REACH)))
        inner.append(slice(start - first, stop - first))
    return (wide[0], wide[1]), (inner[0], inner[1])


def mixed(plain: Tensor, encoded: Tensor, share: float, sigma: float) -> Tensor:
    """Mixes (B, classes, S, S) log-probabilities, and smooths the probabilities over pixels."""
    mixture = (1 - share) * plain + share * encoded
    if not sigma:
        return mixture
    from scipy.ndimage import gaussian_filter

    p = gaussian_filter(mixture.softmax(1).cpu().numpy(), (0, 0, sigma, sigma), mode="nearest")
    return torch.from_numpy(p).to(mixture.device).clamp_min(1e-9).log()


def _columns(nodes: np.ndarray) -> np.ndarray:
    """Returns (nodes, 6) of a tree of scikit-learn; rounds thresholds down, so that fp32 splits alike."""
    is_inner = ~nodes["is_leaf"].astype(bool)
    threshold = nodes["num_threshold"].astype(np.float32)
    below = np.nextafter(threshold, np.float32(-np.inf))
    threshold = np.where(threshold > nodes["num_threshold"], below, threshold)
    columns = [nodes["feature_idx"], threshold]
    columns += [nodes[side] * is_inner for side in ("left", "right")]
    columns += [nodes["missing_go_to_left"], nodes["value"]]
    return np.stack(columns, 1).astype(np.float32)


def _trees(columns: np.ndarray, width: int) -> Iterator[tuple[int, Any]]:
    """Yields number and scikit-learn's predictor of each non-empty tree of (trees, nodes, 6).

    The predictor checks no bounds: nodes become leaves if a child does not follow them or their feature is unknown.
    """
    feature = _whole(columns[..., 0])
    left = _whole(columns[..., 2])
    right = _whole(columns[..., 3])
    end = columns.shape[1]
    after = np.arange(end)
    are_children = (left > after) & (right > after) & (left < end) & (right < end)
    is_inner = are_children & (feature >= 0) & (feature < width)
    nodes = private.tree_nodes(columns.shape[:2])
    nodes["is_leaf"] = ~is_inner
    for name, values in (("feature_idx", feature), ("left", left), ("right", right)):
        nodes[name] = np.where(is_inner, values, 0)
    nodes["num_threshold"] = columns[..., 1]
    nodes["missing_go_to_left"] = columns[..., 4] > 0
    nodes["value"] = columns[..., 5]
    has_value = columns[:, 0, 5] != 0
    for number in np.flatnonzero(is_inner[:, 0] | has_value).tolist():
        yield number, private.tree_of(nodes[number], _NO_CATEGORIES[0])


def _whole(values: np.ndarray) -> np.ndarray:
    return np.floor(np.nan_to_num(values))
