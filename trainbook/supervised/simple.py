"""A strong simple method beside the network: scikit-learn's, fitted to what batches hold, kept as arrays in JSON.

Words, and tokens with their neighbours, have TF-IDF and a linear model, pictures pooled colours and gradients with one,
tables, and pixels with their surroundings, boosting if that is better. There is a model without each fold of training
samples: a sample is scored by the mean of all. A run may start from it: then the network has a say, by a gate, only as
far as validation shows a gain.
"""

import base64
import functools
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import numpy as safe
from torch import Tensor, nn
from torch.nn import functional as F

from lib import private
from lib.errors import BadInput, printable
from lib.report.progress import working
from lib.task import Batch
from trainbook.supervised import scoring
from trainbook.supervised.samples import FOLDS, prepared
from trainbook.supervised.targets import class_counts

UNSEEN = -10.0  # the score of a class without an example
AT_ONCE = 16
_MOST = 10_000  # samples, and rows, that are learned from
_MOST_BYTES = 2**28  # of arrays in an archive
_MOST_CLASSES = 100  # the commonest ones are learned
_MOST_TERMS = 20_000
_MOST_WEIGHTS = 200_000
_MOST_OUTPUTS = 1000  # a language model has more, and no simple method beside it
_SIDES = (5, 15)  # of squares around a pixel
_MOST_SIDE = 128  # of pictures: larger ones are scaled to it
_GRIDS = (1, 2, 4)  # cells a side that pictures are pooled to
_ANGLES = 8  # directions of their gradients
_POWERS = (2.0 ** np.arange(-3, 1.1, 0.25)).tolist()  # small data makes probabilities too sure
_LEAVES = 15
_DEPTH = 6
_ROUNDS = 100
_MOST_TREES = 300
_TRIED = {  # by what is seen: the inverse strength of a linear model's penalty; 0: boosting
    "words": (1, 10),
    "neighbours": (1,),
    "pooled pixels": (0.01, 1),
    "surroundings": (1, 0),
    "numbers": (1, 100, 0),
}
FORMS = tuple(_TRIED)
TEXTS = ("words", "neighbours")
NODES = 2 * _LEAVES - 1  # of a tree
KEY = "simple"  # of batches and of what is learned
GATE = "simple_gate"  # a buffer of the model
_ARRAYS = ("weights", "bias", "trees")
_BOOSTING = {
    "max_leaf_nodes": _LEAVES,
    "max_depth": _DEPTH,
    "early_stopping": False,
    "random_state": 0,
}


class Simple(NamedTuple):
    """A fitted method; `arrays`: middle, spread or IDF, and by fold weights, bias and trees (trees, nodes, 6)."""

    name: str
    what: str  # is seen
    kind: str
    power: float
    terms: tuple[str, ...]  # of texts
    arrays: Mapping[str, np.ndarray]

    def values(self, rows: Any) -> Any:
        """Returns (rows, features): sparse TF-IDF of texts, or numbers with mean 0 and deviation 1, unknown ones 0."""
        middle = self.arrays["middle"]
        spread = self.arrays["spread"]
        if not self.terms:
            return np.nan_to_num((rows - middle) / spread).astype(np.float32)
        vectors = _vectors(self.what, vocabulary=self.terms)
        vectors.idf_ = spread
        return vectors.transform(rows)

    def scores(self, task: Any, batch: Batch) -> Tensor:
        """Returns log-probabilities, classes last, or numbers or logits in the labels' shape. Raises BadInput."""
        labels = batch["labels"]
        rows = self._rows(task, batch)
        scores = self.means(self.values(rows))
        has_classes = task._kind.has_classes
        if not has_classes and scores.size != labels.numel():
            raise BadInput(
                f"The simple method {self.name!r} has {scores.shape[1]} outputs a sample, and the "
                f"labels have the shape {tuple(labels.shape)}. It was fitted to other data."
            )
        tensor = torch.from_numpy(self.power * scores).float()
        if has_classes:
            return tensor.log_softmax(-1).view(*labels.shape, -1)
        return tensor.view(labels.shape)

    def _rows(self, task: Any, batch: Batch) -> np.ndarray:
        """Returns what the method sees of a batch. Raises BadInput if it was fitted to something else."""
        form, rows = seen(task, batch) or ("nothing", np.zeros(0))
        width = self.arrays["weights"].shape[1]
        if form != self.what or (not self.terms and rows.shape[1] != width):
            needs = self.what if self.terms else f"{self.what}, {width} numbers each"
            raise BadInput(
                f"The simple method {self.name!r} needs {needs}. "
                f"A batch has {form} of shape {rows.shape}: features() has changed."
            )
        return rows

    def means(self, values: Any) -> np.ndarray:
        """Returns (rows, outputs) the mean of the models of all folds."""
        models = zip(*(self.arrays[name] for name in _ARRAYS), strict=True)
        return np.mean([_scored(values, *model) for model in models], 0)

    def as_json(self) -> dict[str, Any]:
        arrays = {name: array.astype(np.float32) for name, array in self.arrays.items()}
        return {**self._asdict(), "arrays": packed(arrays)}


def packed(arrays: Mapping[str, np.ndarray]) -> str:
    return base64.b64encode(zlib.compress(safe.save({**arrays}))).decode("ascii")


def unpacked(text: str) -> dict[str, np.ndarray]:
    """Returns the arrays that `packed` took. Raises ValueError for anything else."""
    try:
        compressed = base64.b64decode(text, validate=True)
        return safe.load(zlib.decompressobj().decompress(compressed, _MOST_BYTES))
    except (SafetensorError, zlib.error) as error:
        raise ValueError(error) from None


def seen(task: Any, batch: Batch) -> tuple[str, np.ndarray] | None:
    """Returns what the method sees of a batch, with its name: texts, or (rows, numbers); None for another form."""
    x = task.features(batch)
    if not isinstance(x, Tensor) and task._kind.has_positions:
        length = batch["labels"].shape[1]
        rows = [[*words, *[""] * (length - len(words))] for words in x]
        return "neighbours", _neighbours(rows, task._kind.neighbours)
    if not isinstance(x, Tensor):
        return "words", np.array(x, object)
    is_ids = x.dim() == 2 and not x.is_floating_point()
    if task._kind.has_positions:
        return _seen_around(task._kind, x, batch["labels"], is_ids)
    if is_ids:
        return "words", np.array([" ".join(map(str, row)) for row in x.tolist()], object)
    x = x.float()
    if x.dim() == 4:
        return "pooled pixels", _pooled(x).numpy()
    if x.dim() < 3:
        return "numbers", x.view(len(x), -1).numpy()
    return None


def _seen_around(
    kind: Any, x: Tensor, labels: Tensor, is_ids: bool
) -> tuple[str, np.ndarray] | None:
    """Returns what the method sees of each token or pixel, with its name; None for another form."""
    if is_ids:
        if x.shape != labels.shape:
            return None
        return "neighbours", _neighbours(x.tolist(), kind.neighbours)
    x = x.float()
    if x.dim() != 4 or x.shape[2:] != labels.shape[1:]:
        return None
    means = [F.avg_pool2d(x, side, 1, side // 2, count_include_pad=False) for side in _SIDES]
    planes = torch.cat([x, *means], 1)
    return "surroundings", planes.movedim(1, -1).flatten(0, -2).numpy()


def _neighbours(rows: Sequence[Sequence[Any]], offsets: Sequence[int]) -> np.ndarray:
    """Returns a text for each position: the tokens at `offsets` from it, each with the number of its offset."""
    texts = []
    for row in rows:
        for place in range(len(row)):
            places = [*enumerate(place + offset for offset in offsets)]
            around = [f"{number}:{row[at]}" for number, at in places if 0 <= at < len(row)]
            texts.append(" ".join(around))
    return np.array(texts, object)


def _pooled(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, numbers) means and squares of colours, and shares of directions of gradients, in grids."""
    if max(x.shape[2:]) > _MOST_SIDE:
        x = F.adaptive_avg_pool2d(x, _MOST_SIDE)
    down, across = torch.gradient(x.mean(1, keepdim=True), dim=(2, 3))
    turns = torch.atan2(down, across) % torch.pi * (_ANGLES / torch.pi)
    angle = turns.long().clamp(max=_ANGLES - 1)
    edges = torch.zeros(len(x), _ANGLES, *x.shape[2:])
    edges.scatter_(1, angle, torch.hypot(down, across))
    strength = edges.mean((1, 2, 3), keepdim=True).clamp(min=1e-9)
    planes = torch.cat([x, x * x, edges / strength], 1)
    return torch.cat([F.adaptive_avg_pool2d(planes, cells).flatten(1) for cells in _GRIDS], 1)


@functools.lru_cache(maxsize=4)  # each batch asks
def _vectors(what: str, **options: Any) -> Any:
    # a second that a process without it does not need
    from sklearn.feature_extraction.text import TfidfVectorizer

    grams = (1, 2) if what == "words" else (1, 1)
    return TfidfVectorizer(ngram_range=grams, token_pattern=r"[^ ]+", sublinear_tf=True, **options)


def _scored(values: Any, weights: np.ndarray, bias: np.ndarray, trees: np.ndarray) -> np.ndarray:
    """(rows, features) -> (rows, outputs) scores of one model."""
    scores = np.asarray(values @ weights, np.float64) + bias
    if not len(trees):
        return scores
    feature, left, right, output = (trees[..., n].astype(np.int64) for n in (0, 2, 3, 5))
    tree = np.arange(len(trees))
    for first in range(0, len(scores), _MOST):
        some = values[first : first + _MOST]
        rows = np.arange(len(some))[:, None]
        node = np.zeros((len(some), len(trees)), np.int64)
        for _ in range(_DEPTH):
            is_left = some[rows, feature[tree, node]] <= trees[tree, node, 1]
            node = np.where(is_left, left[tree, node], right[tree, node])
        added = scores[first : first + _MOST]
        np.add.at(added.T, output[:, 0], trees[tree, node, 4].T)
    return scores


def fit(task: Any) -> Simple | None:
    """Fits the best method; None if batches have no form that one takes, or, with a line, if none can be fit."""
    try:
        with working("Fitting a simple method"), warnings.catch_warnings():
            # scikit-learn warns of fits that have not converged, and of columns without a number
            warnings.simplefilter("ignore")
            return _best(task)
    except ValueError as error:  # of scikit-learn, for example if all texts are the same
        print(f"No simple method stands beside the network: {printable(error, most=200)}.")
        return None


class _Rows(NamedTuple):
    """What is seen of training samples, a row a target: `values` (rows, ...), targets and folds (rows)."""

    what: str
    values: np.ndarray
    target: np.ndarray
    fold: np.ndarray


class _Tried(NamedTuple):
    """A method that was tried: its loss on held-out rows, the power that gives it, and the models of all folds."""

    loss: float
    power: float
    arrays: dict[str, np.ndarray]
    penalty: float | None  # None: a constant; 0: boosting


def _best(task: Any) -> Simple | None:
    """Returns the method with the least loss on folds that it did not see."""
    kind = task._kind
    counts = np.zeros(0)
    if kind.has_classes:
        counts = class_counts(task, "train")
    if max(task._width, len(counts)) > _MOST_OUTPUTS:
        return None
    rows = _collected(task, counts.argsort()[-_MOST_CLASSES:])
    if rows is None:
        return None
    width = rows.target.shape[-1]
    if kind.has_classes:
        width = max(len(task._known_names()), len(counts))
    constant = _constant(kind.name, rows, width)
    values = constant.values(rows.values)
    penalties: list[float | None] = [None]
    penalties += [each for each in _TRIED[rows.what] if each or width <= _MOST_CLASSES]
    tried = [_held_out(task, rows._replace(values=values), width, each) for each in penalties]
    best = min(tried, key=lambda method: method.loss)
    name = constant.name
    if best.penalty is not None:
        name = f"{'linear model' if best.penalty else 'boosting'} of {rows.what}"
    arrays = {**constant.arrays, **best.arrays}
    return constant._replace(name=name, power=best.power, arrays=arrays)


def _constant(kind: str, rows: _Rows, width: int) -> Simple:
    """Returns a method without weights, which has the terms of texts, or middle and spread of numbers."""
    if rows.values.ndim > 1:
        middle = np.nan_to_num(np.nanmean(rows.values, 0))
        spread = np.nan_to_num(np.nanstd(rows.values, 0))
        spread[spread < 1e-9] = 1
        return Simple("constant", rows.what, kind, 1.0, (), {"middle": middle, "spread": spread})
    most = max(500, min(_MOST_TERMS, _MOST_WEIGHTS // width))
    most_often = 0.9 if rows.what == "words" else 1.0  # without what fills
    vectors = _vectors(rows.what, max_features=most, max_df=most_often).fit(rows.values)
    terms = tuple(vectors.get_feature_names_out().tolist())
    arrays = {"middle": np.zeros(0), "spread": vectors.idf_}
    return Simple("constant", rows.what, kind, 1.0, terms, arrays)


def _collected(task: Any, common: np.ndarray) -> _Rows | None:
    """Returns what is seen of training samples whose class is in `common`; None for an unknown form."""
    part = task.parts["train"]
    even = np.linspace(0, len(part) - 1, min(len(part), _MOST))
    places = np.unique(even.astype(int)).tolist()
    collected = []
    for first in range(0, len(places), AT_ONCE):
        some = places[first : first + AT_ONCE]
        rows = _batch_rows(task, some, common, len(places))
        if rows is None:
            break
        collected.append(rows)
    if not collected:
        return None
    _, *columns = zip(*collected, strict=True)
    values, target, fold = map(np.concatenate, columns)
    return _Rows(collected[0].what, values, target, fold)


def _batch_rows(task: Any, places: Sequence[int], common: np.ndarray, samples: int) -> _Rows | None:
    """Returns the rows of some training samples of `samples`, of which not more than `_MOST` are learned from."""
    kind = task._kind
    part = task.parts["train"]
    batch = task.labelled([prepared(task, part.samples[place]) for place in places])
    form = seen(task, batch)
    if form is None:
        return None
    what, values = form
    target = kind.rows_seen(kind.placed(batch["labels"])).numpy()
    rows_a_sample = len(target) // len(places)
    step = max(1, samples * len(target) // len(places) // _MOST)
    chosen = np.flatnonzero(kind.learnable(target, common))[::step]
    fold = np.repeat([part.fold(place) for place in places], rows_a_sample)
    return _Rows(what, values[chosen], target[chosen], fold[chosen])


def losses(kind: Any, scores: Tensor, true: np.ndarray, counts: np.ndarray | None) -> Tensor:
    """Returns (targets) what each adds to the loss, classes balanced by `counts`; unknown numbers and marks nothing."""
    weights = None
    if counts is not None:
        weights = torch.from_numpy(scoring.balanced(counts, scores.shape[-1]))
    return kind.losses(scores, torch.from_numpy(true), weights)


def _held_out(task: Any, rows: _Rows, width: int, penalty: float | None) -> _Tried:
    """Tries a method on the rows of each fold by a model of the others."""
    kind = task._kind
    values, target = rows.values, rows.target
    scores = np.zeros((len(target), width))
    models = []
    for number in range(FOLDS):
        here = rows.fold == number
        others = np.flatnonzero(~here | here.all())
        models.append(_fitted(task, values[others], target[others], width, penalty))
        scores[here] = _scored(values[here], *models[-1])
    counts = np.bincount(target, minlength=width) if task.balanced else None
    powers = _POWERS if kind.has_probabilities else [1.0]
    each = []
    for power in powers:
        loss = losses(kind, torch.from_numpy(power * scores), target, counts).mean()
        each.append((float(loss), power))
    return _Tried(*min(each), _stacked(models), penalty)


def _stacked(models: Sequence[Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns weights, bias and trees of all models by name, filled to the most trees."""
    weights, bias, trees = zip(*models, strict=True)
    most = max(map(len, trees))
    rest = ((0, 0), (0, 0))
    padded = [np.pad(tree, ((0, most - len(tree)), *rest)) for tree in trees]
    arrays = (np.stack(weights), np.stack(bias), np.stack(padded))
    return dict(zip(_ARRAYS, arrays, strict=True))


def _fitted(
    task: Any, values: Any, target: np.ndarray, width: int, penalty: float | None
) -> list[np.ndarray]:
    """Fits each column of numbers or marks, or all classes together; returns weights, bias and trees."""
    kind = task._kind
    trees = [np.zeros((0, NODES, 6))]
    weights = np.zeros((values.shape[1], width))
    bias = np.full(width, UNSEEN)
    for columns, rows, y in kind.problems(target):
        bias[columns] = kind.prior(y, task.balanced)
        if penalty is None or len(np.unique(y)) < 2:
            continue
        most = _MOST_TREES // (len(columns) if kind.has_classes else width)
        rounds = max(10, min(_ROUNDS, most))
        model = kind.estimator(penalty, task.balanced, {**_BOOSTING, "max_iter": rounds})
        model.fit(values[rows], y)
        outputs = columns
        if kind.has_classes:
            bias[columns] = 0
            outputs = columns[1:] if len(columns) == 2 else columns  # of two: the second's score
        bias[outputs] = model.intercept_ if penalty else private.boosting_begins_with(model)
        if penalty:
            weights[:, outputs] = np.reshape(model.coef_, (len(outputs), -1)).T
            continue
        for of_round in private.boosted_trees(model):
            pairs = zip(of_round, outputs, strict=True)
            trees += [_tree(tree.nodes, output) for tree, output in pairs]
    return [weights, bias, np.concatenate(trees)]


def _tree(nodes: np.ndarray, output: int) -> np.ndarray:
    """Returns (1, nodes, 6) of a tree of scikit-learn's boosting, where a leaf is its own child."""
    is_leaf = nodes["is_leaf"].astype(bool)
    places = np.arange(len(nodes))
    left, right = (np.where(is_leaf, places, nodes[side]) for side in ("left", "right"))
    outputs = np.full(len(nodes), output)
    split = (nodes["feature_idx"], nodes["num_threshold"])
    columns = np.stack([*split, left, right, nodes["value"], outputs], 1)
    return np.pad(columns, ((0, NODES - len(nodes)), (0, 0)))[None]


def with_buffers(make: Callable[[Any], nn.Module]) -> Callable[[Any], nn.Module]:
    """Wraps a task's `model`: the gate is a buffer, so that checkpoints, ranks and archives have it."""

    @functools.wraps(make)
    def model(task: Any) -> nn.Module:
        network = make(task)
        if task._starts and isinstance(network, nn.Module):
            network.register_buffer(GATE, torch.zeros(()))
        return network

    return model


def batch(task: Any, batch: Batch) -> Batch:
    if task._starts:
        return {**batch, KEY: task._simple.scores(task, batch)}
    return batch


def shaped(start: Tensor, outputs: Tensor) -> Tensor:
    """Returns the simple method's scores in the shape of outputs: of further classes it has seen no example.

    Raises BadInput for classes that the outputs lack.
    """
    if start.numel() == outputs.numel():
        return start.view(outputs.shape)
    lacking = start.shape[-1] - outputs.shape[-1]
    if lacking > 0:
        raise BadInput(f"The simple method has {lacking} classes more than the model has outputs.")
    return F.pad(start, (0, -lacking), value=UNSEEN)


def gated(model: nn.Module, scores: Tensor, start: Tensor) -> Tensor:
    """Returns the simple method's scores, moved towards the network's by the gate: of classes a product of both."""
    start = shaped(start, scores)
    return start + model.get_buffer(GATE).to(scores.device) * (scores - start)
