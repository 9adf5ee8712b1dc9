"""The strongest model that counting alone gives: words, their context, the run of the roles, multiplied and shifted."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from scipy import sparse

from lib.errors import BadInput
from lib.supervised import scoring, simple
from lib.training.splits import stratify
from workloads.legal.counting.features import Vocabulary
from workloads.legal.documents import Document

INNER = 5  # parts of the training documents, each scored by a model of the four others
CHAIN_WEIGHT, CONTEXT_WEIGHT = 0.5, 0.75  # exponents of the product, chosen on inner splits of the sample corpus
_GRID = np.arange(-1.5, 2.01, 0.25)  # of the offset of a class
_SMALLER = 0.001  # macro F1 that an offset of 1 must bring
_MOST_SENTENCES = 40_000  # that are counted: a minute a 7,500 on one core
_MOST_BYTES = 3_400_000  # of the weights as JSON; in state.json 12 MiB are the limit for all that a task has learned
_HELD_OUT = "held out "  # before the names of documents
_UNSEEN = 1.0  # examples that a class without any counts as
# Of the chain: steps of L-BFGS, the weight of the squared numbers (the inverse of a variance), the least probability
_STEPS, _PENALTY, _LEAST = 60, 1.0, 1e-9


def by_steps(lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns how many documents, the longest first, have each step; the sentences of these, step by step; and of all
    but the first steps' the places there of the sentences before."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    step, place = np.nonzero(np.arange(max(lengths))[:, None] < np.asarray(lengths)[order])
    counts, rows = np.bincount(step), (np.cumsum(lengths) - lengths)[order][place] + step
    return counts, rows, np.arange(counts[:1].sum(), len(rows)) - np.repeat(counts[:-1], counts[1:])


def forward_backward(
    emission: np.ndarray, transition: np.ndarray, counts: np.ndarray, before: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """(sentences by steps, classes), (classes, classes) -> log partition, marginals, expected numbers of each step."""
    most, step = emission.max(1, keepdims=True), np.exp(transition)
    local = np.exp(emission - most)
    alpha, beta, ahead = local.copy(), np.ones_like(local), np.zeros_like(local)
    scale, steps = np.ones((len(local), 1)), [*map(slice, np.cumsum(counts) - counts, np.cumsum(counts))]
    for t, here in enumerate(steps):
        alpha[here] *= alpha[steps[t - 1]][: counts[t]] @ step if t else 1
        scale[here] = alpha[here].sum(1, keepdims=True)
        alpha[here] /= scale[here]
    for t in range(len(steps) - 1, 0, -1):  # `ahead`: what a sentence says to the one before it
        ahead[steps[t]] = local[steps[t]] * beta[steps[t]] / scale[steps[t]]
        beta[steps[t - 1]][: counts[t]] = ahead[steps[t]] @ step.T
    marginal = alpha * beta
    expected = (alpha[before].T @ ahead[len(ahead) - len(before) :]) * step
    return float(np.log(scale).sum() + most.sum()), marginal / marginal.sum(1, keepdims=True), expected


@dataclass(frozen=True)
class Chain:
    """A conditional random field along a document, which learns that roles come in runs, and in which order.

    `scale` (classes + 1, classes) is of a sentence's scores, its last row the bias; `transition` (classes, classes) is
    of the step to the next sentence.
    """

    scale: np.ndarray
    transition: np.ndarray

    def log_marginals(self, scores: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """(sentences, classes) -> logarithms of the probability of each role, given the whole document."""
        counts, rows, before = by_steps(lengths)
        emission = _with_one(scores) @ self.scale
        marginals = np.empty_like(emission)
        marginals[rows] = forward_backward(emission[rows], self.transition, counts, before)[1]
        return np.log(marginals + _LEAST)

    @classmethod
    def fit(cls, scores: np.ndarray, truth: np.ndarray, lengths: Sequence[int]) -> "Chain":
        """Fits to (sentences, classes) scores of documents that were not in the fit of these scores."""
        from scipy.optimize import minimize

        (counts, rows, before), classes = by_steps(lengths), scores.shape[1]
        inputs, wanted = _with_one(scores)[rows], np.eye(classes)[truth[rows]]
        followed = wanted[before].T @ wanted[len(wanted) - len(before) :]
        cut = inputs.shape[1] * classes

        def loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
            scale, transition = numbers[:cut].reshape(-1, classes), numbers[cut:].reshape(classes, classes)
            emission = inputs @ scale
            partition, marginal, expected = forward_backward(emission, transition, counts, before)
            value = partition - (emission * wanted).sum() - (followed * transition).sum()
            slope = np.concatenate([(inputs.T @ (marginal - wanted)).ravel(), (expected - followed).ravel()])
            return value + _PENALTY / 2 * numbers @ numbers, slope + _PENALTY * numbers

        best = minimize(loss, np.zeros(cut + classes**2), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
        best = best.astype(np.float32).astype(np.float64)
        return cls(best[:cut].reshape(-1, classes), best[cut:].reshape(classes, classes))


def _with_one(scores: np.ndarray) -> np.ndarray:
    return np.concatenate([scores, np.ones((len(scores), 1))], 1)


# C and the steps of L-BFGS, mostly before its end. C by inner splits of the sample corpus; after 25 steps the first has
# its best macro F1, after 30 the second, and with 60 both differ by less than 0.01.
SENTENCE: dict[str, Any] = {"C": 3.0, "max_iter": 30}
CONTEXT: dict[str, Any] = {"C": 2.0, "max_iter": 45}


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """(..., classes) -> logarithms of probabilities."""
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def centred(scores: np.ndarray) -> np.ndarray:
    return scores - scores.mean(-1, keepdims=True)


@dataclass(frozen=True)
class Linear:
    """Logistic regression: weights (numbers, classes) and biases (classes) in float32, centred over the classes."""

    weights: np.ndarray
    bias: np.ndarray

    def scores(self, matrix: sparse.csr_matrix) -> np.ndarray:
        """Returns (rows, classes) in float64."""
        return np.asarray(matrix @ self.weights, np.float64) + self.bias

    @classmethod
    def mean(cls, models: Sequence["Linear"]) -> "Linear":
        """Returns the one model with the mean of all models' scores, rounded to float16, in which it is kept."""
        weights = np.mean([model.weights for model in models], 0, dtype=np.float64)
        bias = np.mean([model.bias for model in models], 0, dtype=np.float64)
        return cls(*(values.astype(np.float16).astype(np.float32) for values in (weights, bias)))

    @classmethod
    def fit(cls, matrix: sparse.csr_matrix, truth: np.ndarray, classes: int, options: dict[str, Any]) -> "Linear":
        """Fits to (rows) class numbers. A class without examples gets its bias alone, as rare as one would be."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression  # a second that not every process needs

        present, counts = np.unique(truth, return_counts=True)
        weights = np.zeros((matrix.shape[1], classes))
        bias = np.full(classes, np.log(_UNSEEN / (len(truth) + classes)))
        if len(present) < 2 or not matrix.shape[1]:
            bias[present] = np.log(counts / (len(truth) + classes))
            return cls(weights.astype(np.float32), centred(bias).astype(np.float32))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(class_weight="balanced", **options)
            model.fit(matrix, truth)
        rows, intercept = model.coef_, model.intercept_
        if len(model.classes_) == 2:  # of which it has the second's alone
            rows, intercept = (np.concatenate([-half, half]) for half in (rows / 2, intercept / 2))
        level = np.log(np.exp(intercept - intercept.max()).sum()) + intercept.max()
        weights[:, present], bias[present] = rows.T - rows.mean(0)[:, None], intercept - level
        return cls(weights.astype(np.float32), centred(bias).astype(np.float32))


@dataclass(frozen=True)
class Stack:
    """Scores of roles from counts: a product of two models, and an offset for each class for the best macro F1.

    `sentence` sees the sentence alone, and `chain` makes of its scores those of a whole document; `context` sees the
    neighbours and the position too. `held_out` has the scores of each training document (by its name) by models that
    were fitted without it.
    """

    classes: tuple[str, ...]
    vocabulary: Vocabulary
    sentence: Linear
    context: Linear
    chain: Chain
    offsets: np.ndarray  # (classes)
    held_out: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def fit(cls, documents: Sequence[Document], classes: Sequence[str], seed: int = 0) -> "Stack":
        """Fits to documents with roles: about 45 s on one core for 7,500 sentences of 7 roles.

        Of more than 40,000 sentences a random choice of whole documents is counted.
        """
        ordered = sorted(documents, key=lambda document: document.name)
        order = np.random.default_rng(seed).permutation(len(ordered))
        count = max(2, int((np.cumsum([len(ordered[place]) for place in order]) <= _MOST_SENTENCES).sum()))
        documents = [ordered[place] for place in sorted(order[:count])]
        number = {role: place for place, role in enumerate(classes)}
        truth = np.array([number[role] for document in documents for role in document.roles])
        lengths = np.array([len(document) for document in documents])
        part = np.repeat(inner_parts(documents, seed), lengths)  # (sentences)
        vocabulary = Vocabulary.of(documents, _MOST_BYTES // (9 * len(classes) + 8))
        own = vocabulary.own(documents)
        alone, held = _cross_fitted(own, truth, part, len(classes), SENTENCE)
        chained = _chained(own, held, truth, part, lengths)
        context, around = _cross_fitted(vocabulary.in_context(documents, own), truth, part, len(classes), CONTEXT)
        scores = product(chained, log_softmax(around))
        each = np.split(scores, np.cumsum(lengths)[:-1])
        held_out = {document.name: rows for document, rows in zip(documents, each, strict=True)}
        models = Linear.mean(alone), Linear.mean(context), Chain.fit(held, truth, lengths)
        return cls(tuple(classes), vocabulary, *models, best_offsets(scores, truth), held_out)

    def parts(self, document: Document) -> dict[str, np.ndarray]:
        """Returns (sentences, classes) log-probabilities of `sentence`, `context` and `crf`, a row each in a table."""
        own = self.vocabulary.own([document])
        alone = self.sentence.scores(own)
        context = self.context.scores(self.vocabulary.in_context([document], own))
        chained = self.chain.log_marginals(alone, [len(document)])
        return {"sentence": log_softmax(alone), "context": log_softmax(context), "crf": chained}

    def scores(self, document: Document) -> np.ndarray:
        """Returns (sentences, classes) scores, whose softmax are probabilities, without the offsets for macro F1."""
        parts = self.parts(document)
        return product(parts["crf"], parts["context"])

    def as_json(self, kept: Iterable[str] = ()) -> dict[str, Any]:
        """Returns the model for `from_json`, which gives the very same scores, with `held_out` of these documents."""
        arrays = {
            "frequency": self.vocabulary.frequency, "offsets": self.offsets, "scale": self.chain.scale,
            "transition": self.chain.transition, "sentence bias": self.sentence.bias, "context bias": self.context.bias,
            "sentence weights": self.sentence.weights.astype(np.float16),
            "context weights": self.context.weights.astype(np.float16),
            **{_HELD_OUT + name: self.held_out[name].astype(np.float32) for name in kept if name in self.held_out},
        }  # fmt: skip
        words = {"classes": [*self.classes], "terms": [*self.vocabulary.terms], "sentences": self.vocabulary.sentences}
        return {**words, "arrays": simple.packed(arrays)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Stack":
        """Returns the model that `as_json` gave. Raises BadInput for anything else."""
        try:
            arrays, terms = simple.unpacked(values["arrays"]), tuple(map(str, values["terms"]))
            vocabulary = Vocabulary(terms, arrays["frequency"], int(values["sentences"]))
            names = ("sentence", "context")
            linear = (Linear(arrays[f"{n} weights"].astype(np.float32), arrays[f"{n} bias"]) for n in names)
            chain = Chain(arrays["scale"], arrays["transition"])
            held_out = {n.removeprefix(_HELD_OUT): a for n, a in arrays.items() if n.startswith(_HELD_OUT)}
            stack = cls(tuple(values["classes"]), vocabulary, *linear, chain, arrays["offsets"], held_out)
            scores = stack.scores(Document("", "", ("a", "b"))) + stack.offsets
            if scores.shape != (2, len(stack.classes)) or not np.isfinite(scores).all():
                raise ValueError(f"scores are {scores.shape}, or not finite")
            return stack
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            how = "Start the run under another run.name, or take the checkpoint of the version of lib that wrote it."
            raise BadInput(f"The counts of this checkpoint cannot be read ({error}). {how}") from None


def product(chained: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Multiplies the probabilities of chain and context, each with its exponent, in logarithms."""
    return centred(CHAIN_WEIGHT * chained + CONTEXT_WEIGHT * context)


def best_offsets(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Returns (classes) offsets of held-out (sentences, classes) scores with the best macro F1, class by class."""
    classes, unit = scores.shape[1], np.zeros(len(truth), int)
    offsets = np.zeros(classes)
    for k in [*range(classes)] * 2:
        values = []
        for value in _GRID:
            shifted = scores + offsets
            shifted[:, k] = scores[:, k] + value
            sums = scoring.tallied("classes", scoring.Judged(truth, shifted.argmax(1)), unit, 1, classes)
            values.append(scoring.of_classes(sums)["macro_f1"][0] - _SMALLER * abs(value))
        offsets[k] = _GRID[int(np.argmax(values))]
    return offsets


def _cross_fitted(
    matrix: sparse.csr_matrix, truth: np.ndarray, part: np.ndarray, classes: int, options: dict[str, Any]
) -> tuple[list[Linear], np.ndarray]:
    """Returns a model without each part, and (sentences, classes) scores by models without the sentence's document."""
    models, scores = [], np.zeros((len(truth), classes))
    for number in range(part.max() + 1):
        here = part == number
        models.append(Linear.fit(matrix[~here], truth[~here], classes, options))
        scores[here] = models[-1].scores(matrix[here])
    return models, scores


def _chained(
    own: sparse.csr_matrix, held: np.ndarray, truth: np.ndarray, part: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Returns (sentences, classes) of chains in whose fit no document of the sentence's part had a share.

    The chain for part j is fitted on scores of the other parts, each by a model that saw neither it nor j.
    """
    parts, ends = range(part.max() + 1), np.cumsum(lengths)
    if len(parts) < 3:  # there is no third part to fit on
        return log_softmax(held)
    without = {number: np.zeros_like(held) for number in parts}
    for first, second in combinations(parts, 2):
        rest = (part != first) & (part != second)
        model = Linear.fit(own[rest], truth[rest], held.shape[1], SENTENCE)
        for scored, left_out in ((first, second), (second, first)):
            without[left_out][part == scored] = model.scores(own[part == scored])
    chained = np.empty_like(held)
    for number, scores in without.items():
        here, others = part == number, part != number
        chain = Chain.fit(scores[others], truth[others], lengths[others[ends - 1]])
        chained[here] = chain.log_marginals(held[here], lengths[here[ends - 1]])
    return chained


def inner_parts(documents: Sequence[Document], seed: int) -> np.ndarray:
    """Returns (documents) the part of each, by their categories alone: their roles must not choose who judges them."""
    categories = sorted({document.category for document in documents})
    shares = np.array([[document.category == category for category in categories] for document in documents], float)
    count = min(INNER, len(documents))
    return np.unique(stratify(shares, [1 / count] * count, seed), return_inverse=True)[1]
