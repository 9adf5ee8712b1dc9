"""The strongest model that counting alone gives: words, their context, the run of the roles, multiplied and shifted.

It is what a network has to beat, and what it is multiplied into.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from lib.errors import BadInput
from trainbook.supervised import scoring, simple
from trainbook.supervised.intervals import resampled
from trainbook.supervised.splits import stratify
from workloads.legal.documents import Document, by_category, position_features
from workloads.legal.product import METHODS, PRODUCT, SHIFTED

INNER = 5  # parts of the training documents, each scored by a model of the four others
CHAIN_WEIGHT = 0.5
CONTEXT_WEIGHT = 0.75  # exponents of the product, chosen on inner splits of the sample corpus
_GRID = np.arange(-1.5, 2.01, 0.25)  # of the offset of a class
_SMALLER = 0.001  # macro F1 that an offset of 1 must bring
_MOST_SENTENCES = 40_000  # that are counted: a minute a 7,500 on one core
_MOST_BYTES = 3_400_000  # of the weights as JSON; in state.json 12 MiB are the limit for all that a task has learned
_GAINS = "sure gains"  # of methods over the product with offsets
_DRAWS = 1000  # of documents
_SURE = 0.95  # on one side, that a method is better than the product with offsets
_HELD_OUT = "held out "  # before the names of documents
_UNSEEN = 1.0  # examples that a class without any counts as
# Of the chain: steps of L-BFGS, the weight of the squared numbers (the inverse of a variance), the least probability
_STEPS = 60
_PENALTY = 1.0
_LEAST = 1e-9
# C and the steps of L-BFGS, mostly before its end. C by inner splits of the sample corpus; after 25 steps the first has
# its best macro F1, after 30 the second, and with 60 both differ by less than 0.01.
SENTENCE: dict[str, Any] = {"C": 3.0, "max_iter": 30}
CONTEXT: dict[str, Any] = {"C": 2.0, "max_iter": 45}
# Marks tell a question or a quotation
WORDS: dict[str, Any] = {
    "ngram_range": (1, 2),
    "token_pattern": r"(?u)\b\w+\b|[?\"“'();:\[\]]",
}
NEIGHBOURS = ([-1], [1], [-2], [2])  # each has its own block of weights
BAGS = (range(-6, -1), range(2, 7))  # and these one for all together
_AROUND = 0.6  # how much a word of another sentence counts beside one of the sentence itself

# Weights (numbers, classes) and biases (classes), centred over the classes
Linear = tuple[np.ndarray, np.ndarray]
# Weights of a sentence's scores (classes + 1, classes), the last row the bias; of the step to the
# next sentence (classes, classes)
Chain = tuple[np.ndarray, np.ndarray]


# --- words and their context ------------------------------------------------------------------------------------------


def frequent(sentences: Sequence[str], most: int) -> tuple[list[str], np.ndarray]:
    """Returns the `most` frequent terms of two sentences or more, by the alphabet, and in how many each stands."""
    counter = CountVectorizer(**WORDS, binary=True, dtype=np.int32)
    frequency = np.asarray(counter.fit_transform(sentences).sum(0)).ravel()
    often = np.argsort(-frequency, kind="stable")[:most]  # of equal ones the first of the alphabet
    terms = np.sort(often[frequency[often] >= 2])
    return counter.get_feature_names_out()[terms].tolist(), frequency[terms]


def neighbours(lengths: Sequence[int], steps: Sequence[int]) -> sparse.csr_matrix:
    """Returns (sentences, sentences) with a 1 where the column is one of `steps` away in the row's document."""
    document = np.repeat(np.arange(len(lengths)), lengths)
    ones = np.ones((len(steps), len(document)), np.float32)
    near = sparse.dia_matrix((ones, steps), (len(document),) * 2).tocoo()
    same = document[near.row] == document[near.col]
    rows = near.row[same]
    columns = near.col[same]
    return sparse.csr_matrix((near.data[same], (rows, columns)), near.shape)


def unit_rows(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """Scales rows to length 1; an empty row stays empty. scikit-learn's differ in the last bits."""
    length = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
    factor = (1 / np.maximum(length, 1e-12)).astype(np.float32)
    return sparse.csr_matrix(sparse.diags(factor) @ matrix)


def in_context(
    own: sparse.csr_matrix, single: np.ndarray, documents: Sequence[Document]
) -> sparse.csr_matrix:
    """Returns (sentences, numbers): the terms, the `single` words of neighbours and further away, the position."""
    lengths = [*map(len, documents)]
    words = unit_rows(own[:, single])
    blocks = [own, *(_AROUND * (neighbours(lengths, steps) @ words) for steps in NEIGHBOURS)]
    blocks += [_AROUND * unit_rows(neighbours(lengths, bag) @ words) for bag in BAGS]
    position = np.concatenate([*map(position_features, documents)]).astype(np.float32)
    return sparse.hstack([*blocks, sparse.csr_matrix(position)], "csr")


def fitted(
    matrix: sparse.csr_matrix, truth: np.ndarray, classes: int, options: Mapping[str, Any]
) -> Linear:
    """Fits logistic regression to (rows) class numbers. A class without examples gets its bias alone, as if it had one.

    Weights and bias are in float32.
    """
    present, counts = np.unique(truth, return_counts=True)
    total = len(truth) + classes
    weights = np.zeros((matrix.shape[1], classes), np.float32)
    bias = np.full(classes, np.log(_UNSEEN / total))
    if len(present) < 2 or not weights.size:  # a rare role may stand in the parts that are left out
        bias[present] = np.log(counts / total)
        return weights, centred(bias).astype(np.float32)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model = LogisticRegression(class_weight="balanced", **options).fit(matrix, truth)
    rows = model.coef_
    intercept = model.intercept_
    if len(present) == 2:  # scikit-learn has the second class alone
        rows = np.concatenate([-(rows / 2), rows / 2])
        intercept = np.concatenate([-(intercept / 2), intercept / 2])
    highest = intercept.max()
    level = np.log(np.exp(intercept - highest).sum()) + highest
    weights[:, present] = rows.T - rows.mean(0)[:, None]
    bias[present] = intercept - level
    return weights, centred(bias).astype(np.float32)


def scored(matrix: sparse.csr_matrix, model: Linear) -> np.ndarray:
    """Returns (rows, classes) in float64."""
    weights, bias = model
    return np.asarray(matrix @ weights.astype(np.float32), np.float64) + bias


def centred(scores: np.ndarray) -> np.ndarray:
    return scores - scores.mean(-1, keepdims=True)


# --- a conditional random field along a document: roles come in runs, and in an order ---------------------------------


def by_steps(lengths: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Orders sentences step by step, over all documents at once, the longest document first.

    Returns (steps) the number of documents that have each step, (sentences) the sentences in this order, and
    (sentences after the first step) the place of the previous sentence in this order.
    """
    sizes = np.asarray(lengths)
    order = np.argsort(-sizes, kind="stable")
    has_step = np.arange(sizes.max())[:, None] < sizes[order]
    step, place = np.nonzero(has_step)
    counts = np.bincount(step)
    first = np.cumsum(sizes) - sizes
    rows = first[order][place] + step
    later = np.arange(counts[:1].sum(), len(rows))
    return counts, rows, later - np.repeat(counts[:-1], counts[1:])


def forward_backward(
    emission: np.ndarray, transition: np.ndarray, counts: np.ndarray, before: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Runs both passes over sentences in the order of `by_steps`.

    Emissions (sentences, classes), transitions (classes, classes) -> log partition, marginals (sentences, classes),
    expected counts of each transition (classes, classes).
    """
    most = emission.max(1, keepdims=True)
    step = np.exp(transition)
    local = np.exp(emission - most)
    alpha = local.copy()
    beta = np.ones_like(local)
    ahead = np.zeros_like(local)  # the message of a sentence to the one before it
    scale = np.ones((len(local), 1))
    ends = np.cumsum(counts)
    steps = [*map(slice, ends - counts, ends)]
    for t, here in enumerate(steps):
        if t:
            previous = alpha[steps[t - 1]][: counts[t]]
            alpha[here] *= previous @ step
        scale[here] = alpha[here].sum(1, keepdims=True)
        alpha[here] /= scale[here]
    for t in range(len(steps) - 1, 0, -1):
        here = steps[t]
        ahead[here] = local[here] * beta[here] / scale[here]
        previous = beta[steps[t - 1]]
        previous[: counts[t]] = ahead[here] @ step.T
    marginal = alpha * beta
    later = ahead[len(ahead) - len(before) :]
    expected = (alpha[before].T @ later) * step
    partition = float(np.log(scale).sum() + most.sum())
    return partition, marginal / marginal.sum(1, keepdims=True), expected


def chained(chain: Chain, scores: np.ndarray, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """(sentences, classes) -> logarithms of the probability of each role, given the whole document."""
    counts, rows, before = by_steps(lengths)
    emission = _with_one(scores) @ chain[0]
    marginals = np.empty_like(emission)
    marginals[rows] = forward_backward(emission[rows], chain[1], counts, before)[1]
    return np.log(marginals + _LEAST)


def chain_of(scores: np.ndarray, truth: np.ndarray, lengths: Sequence[int] | np.ndarray) -> Chain:
    """Fits a chain to (sentences, classes) scores of documents that were not in the fit of these scores."""
    counts, rows, before = by_steps(lengths)
    classes = scores.shape[1]
    inputs = _with_one(scores)[rows]
    wanted = np.eye(classes)[truth[rows]]
    followed = wanted[before].T @ wanted[len(wanted) - len(before) :]

    def loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        scale, transition = np.split(numbers.reshape(-1, classes), [classes + 1])
        emission = inputs @ scale
        partition, marginal, expected = forward_backward(emission, transition, counts, before)
        value = partition - (emission * wanted).sum() - (followed * transition).sum()
        of_scale = inputs.T @ (marginal - wanted)
        slope = np.concatenate([of_scale, expected - followed]).ravel()
        return value + _PENALTY / 2 * numbers @ numbers, slope + _PENALTY * numbers

    start = np.zeros((2 * classes + 1) * classes)
    options = {"maxiter": _STEPS}
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
    rounded = best.astype(np.float32).astype(np.float64)
    scale, transition = np.split(rounded.reshape(-1, classes), [classes + 1])
    return scale, transition


def _with_one(scores: np.ndarray) -> np.ndarray:
    return np.pad(scores, ((0, 0), (0, 1)), constant_values=1)


# --- all of it --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """Scores of roles from counts: a product of two models, and an offset for each class for the best macro F1.

    `arrays` has weights and biases of "sentence", which sees the sentence alone, and of "context", which sees the
    neighbours and the position too; "scale" and "transition" of the chain, which makes of the first one's scores those
    of a whole document; and by documents' names scores by models that were fitted without them.
    """

    classes: tuple[str, ...]
    terms: tuple[str, ...]
    sentences: int
    arrays: Mapping[str, np.ndarray]

    @classmethod
    def fit(
        cls,
        documents: Sequence[Document],
        classes: Sequence[str],
        seed: int = 0,
        kept: Iterable[str] = (),
    ) -> "Stack":
        """Fits to documents with roles: about 45 s on one core for 7,500 sentences of 7 roles.

        Of more than 40,000 sentences a random choice of whole documents is counted. `kept` are the documents by name
        whose scores by models without them are kept.
        """
        documents = _chosen(documents, seed)
        number = {role: place for place, role in enumerate(classes)}
        lengths = np.array([*map(len, documents)])
        truth = np.array([number[role] for document in documents for role in document.roles])
        part = np.repeat(inner_parts(documents, seed), lengths)  # (sentences)
        texts = [sentence for document in documents for sentence in document.sentences]
        terms, frequency = frequent(texts, _MOST_BYTES // (9 * len(classes) + 8))
        stack = cls(tuple(classes), tuple(terms), len(texts), {"frequency": frequency})
        own = stack.own(texts)
        alone, held = _cross_fitted(own, truth, part, len(classes), SENTENCE)
        context = in_context(own, stack.single, documents)
        around, seen = _cross_fitted(context, truth, part, len(classes), CONTEXT)
        chained = _chained(own, held, truth, part, lengths)
        found = {"sentence": held, "context": log_softmax(seen, -1), "crf": chained}
        scores = product(chained, found["context"])
        found |= {PRODUCT: scores, SHIFTED: _shifted(scores, truth, part)}
        document = np.repeat(np.arange(len(documents)), lengths)  # (sentences)
        gains = _sure_gains(found, truth, document)
        best = _best(gains)
        scale, transition = chain_of(held, truth, lengths)
        arrays = {"frequency": frequency, "scale": scale, "transition": transition}
        arrays |= {"offsets": best_offsets(scores, truth), _GAINS: gains}
        arrays |= {**_mean("sentence", alone), **_mean("context", around)}
        base = scores if best == SHIFTED else found[best]
        of_document = np.split(base.astype(np.float32), np.cumsum(lengths)[:-1])
        by_name = {d.name: rows for d, rows in zip(documents, of_document, strict=True)}
        arrays |= {_HELD_OUT + name: by_name[name] for name in kept if name in by_name}
        return replace(stack, arrays=arrays)

    def own(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Returns (sentences, terms) TF-IDF: log of counts, inverse frequency as in scikit-learn, rows of length 1."""
        if not self.terms:
            return sparse.csr_matrix((len(texts), 0), dtype=np.float32)
        return unit_rows(self._vectors.transform(texts)).sorted_indices()

    @cached_property
    def _vectors(self) -> TfidfVectorizer:
        vectors = TfidfVectorizer(
            **WORDS, vocabulary=self.terms, sublinear_tf=True, norm=None, dtype=np.float32
        )
        rarity = (1 + self.sentences) / (1 + self.arrays["frequency"])
        vectors.idf_ = (np.log(rarity) + 1).astype(np.float32)
        return vectors

    @cached_property
    def single(self) -> np.ndarray:
        """The places of the terms of one word."""
        places = [place for place, term in enumerate(self.terms) if " " not in term]
        return np.array(places, np.int64)

    @property
    def offsets(self) -> np.ndarray:
        return self.arrays["offsets"]

    @property
    def best(self) -> str:
        """The product with offsets, unless another method has surely more macro F1.

        Documents tell, each scored by models without it.
        """
        gains = self.arrays.get(_GAINS)  # counts of earlier versions lack it
        return SHIFTED if gains is None else _best(gains)

    @property
    def shift(self) -> np.ndarray:
        """The offsets of the best method, which are 0 for most."""
        return self.offsets if self.best == SHIFTED else np.zeros(len(self.classes))

    @property
    def held_out(self) -> dict[str, np.ndarray]:
        names = [name for name in self.arrays if name.startswith(_HELD_OUT)]
        return {name.removeprefix(_HELD_OUT): self.arrays[name] for name in names}

    def parts(self, document: Document) -> dict[str, np.ndarray]:
        """Returns (sentences, classes) log-probabilities of `sentence`, `context` and `crf`, a row each in a table."""
        own = self.own(document.sentences)
        alone = scored(own, self._linear("sentence"))
        context = scored(in_context(own, self.single, [document]), self._linear("context"))
        weights = (self.arrays["scale"], self.arrays["transition"])
        chain = chained(weights, alone, [len(document)])
        return {
            "sentence": log_softmax(alone, -1),
            "context": log_softmax(context, -1),
            "crf": chain,
        }

    def _linear(self, name: str) -> Linear:
        return self.arrays[f"{name} weights"], self.arrays[f"{name} bias"]

    def scores(self, document: Document) -> np.ndarray:
        """Returns (sentences, classes) scores, whose softmax are probabilities, without the offsets for macro F1."""
        parts = self.parts(document)
        return product(parts["crf"], parts["context"])

    def base(self, document: Document) -> np.ndarray:
        """Returns (sentences, classes) scores of the best method, without its offsets."""
        if self.best in (PRODUCT, SHIFTED):
            return self.scores(document)
        return self.parts(document)[self.best]

    def as_json(self) -> dict[str, Any]:
        """Returns the model for `from_json`, which gives the very same scores."""
        known = {"classes": [*self.classes], "terms": [*self.terms], "sentences": self.sentences}
        return {**known, "arrays": simple.packed(self.arrays)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Stack":
        """Returns the model that `as_json` gave. Raises BadInput for anything else."""
        try:
            classes = tuple(map(str, values["classes"]))
            terms = tuple(map(str, values["terms"]))
            arrays = simple.unpacked(values["arrays"])
            stack = cls(classes, terms, int(values["sentences"]), arrays)
            scores = stack.base(Document("", "", ("a", "b"))) + stack.offsets
            is_sound = scores.shape == (2, len(classes)) and np.isfinite(scores).all()
            if not is_sound:
                raise ValueError(f"scores are {scores.shape}, or not finite")
            return stack
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise BadInput(
                f"The counts of this checkpoint cannot be read ({error}). Start the run under another run.name, "
                f"or take the checkpoint of the version of lib that wrote it."
            ) from None


def _chosen(documents: Sequence[Document], seed: int) -> list[Document]:
    """Returns documents by name; of more than 40,000 sentences a random choice, at least two."""
    ordered = sorted(documents, key=lambda document: document.name)
    order = np.random.default_rng(seed).permutation(len(ordered))
    sentences = np.cumsum([len(ordered[place]) for place in order])
    count = max(2, int((sentences <= _MOST_SENTENCES).sum()))
    return [ordered[place] for place in sorted(order[:count])]


def product(chained: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Multiplies the probabilities of chain and context, each with its exponent, in logarithms."""
    return centred(CHAIN_WEIGHT * chained + CONTEXT_WEIGHT * context)


def best_offsets(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Returns (classes) offsets of held-out (sentences, classes) scores with the best macro F1, class by class."""
    classes = scores.shape[1]
    offsets = np.zeros(classes)
    for k in [*range(classes)] * 2:
        values = []
        for value in _GRID:
            shifted = scores + offsets
            shifted[:, k] = scores[:, k] + value
            values.append(macro_f1(shifted, truth) - _SMALLER * abs(value))
        offsets[k] = _GRID[int(np.argmax(values))]
    return offsets


def macro_f1(scores: np.ndarray, truth: np.ndarray) -> float:
    """Returns that of the likeliest classes by (sentences, classes) scores."""
    judged = scoring.Judged(truth, scores.argmax(1))
    unit = np.zeros(len(truth), int)
    sums = scoring.tallied_classes(judged, unit, 1, scores.shape[1])
    return float(_macro_f1(sums)[0])


def _sure_gains(
    found: Mapping[str, np.ndarray], truth: np.ndarray, document: np.ndarray
) -> np.ndarray:
    """Returns (methods) lower ends of gains in macro F1 over the product with offsets, which has 0 itself.

    They are on one side, over paired draws of documents. A point alone would take the offsets away by chance: on the
    sample corpus, where they gain .012 and .022, forty documents do so in two folds of five.
    """
    units = int(document.max()) + 1
    tallies = []
    for name in METHODS:
        judged = scoring.Judged(truth, found[name].argmax(1))
        tallies.append(scoring.tallied_classes(judged, document, units, found[name].shape[1]))
    drawn = np.moveaxis(resampled(np.stack(tallies, 1), _DRAWS), 1, 0)  # (methods, draws, ...)
    with_offsets = drawn[METHODS.index(SHIFTED)]
    gains = [_macro_f1(each, with_offsets) - _macro_f1(with_offsets, each) for each in drawn]
    return np.quantile(gains, 1 - _SURE, axis=1)


def _best(gains: np.ndarray) -> str:
    """Returns the method with the largest of the sure gains; the product with offsets if none is above 0."""
    place = int(np.argmax(gains))
    return METHODS[place] if gains[place] > 0 else SHIFTED


def _macro_f1(sums: np.ndarray, reference: np.ndarray | None = None) -> np.ndarray:
    """(..., 3, classes) -> (...) over the classes that are there or guessed, here or in a reference."""
    return scoring.of_classes(sums, reference)["macro_f1"]


def _shifted(scores: np.ndarray, truth: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Returns scores with the offsets that are best for the sentences of the other parts."""
    shifted = scores.copy()
    for number in range(part.max() + 1):
        here = part == number
        shifted[here] += best_offsets(scores[~here], truth[~here])
    return shifted


def _mean(name: str, models: Sequence[Linear]) -> dict[str, np.ndarray]:
    """Returns the one model with the mean of all models' scores, rounded to float16."""
    weights, bias = map(np.array, zip(*models, strict=True))
    mean_weights = weights.mean(0, dtype=np.float64).astype(np.float16)
    mean_bias = bias.mean(0, dtype=np.float64).astype(np.float16)
    return {f"{name} weights": mean_weights, f"{name} bias": mean_bias.astype(np.float32)}


def _cross_fitted(
    matrix: sparse.csr_matrix,
    truth: np.ndarray,
    part: np.ndarray,
    classes: int,
    options: Mapping[str, Any],
) -> tuple[list[Linear], np.ndarray]:
    """Returns a model without each part, and (sentences, classes) scores by models without the sentence's document."""
    models = []
    scores = np.zeros((len(truth), classes))
    for number in range(part.max() + 1):
        here = part == number
        models.append(fitted(matrix[~here], truth[~here], classes, options))
        scores[here] = scored(matrix[here], models[-1])
    return models, scores


def _chained(
    own: sparse.csr_matrix,
    held: np.ndarray,
    truth: np.ndarray,
    part: np.ndarray,
    lengths: np.ndarray,
) -> np.ndarray:
    """Returns (sentences, classes) of chains in whose fit no document of the sentence's part had a share.

    The chain for part j is fitted on scores of the other parts, each by a model that saw neither it nor j.
    """
    parts = range(part.max() + 1)
    of_document = part[np.cumsum(lengths) - 1]  # (documents)
    if len(parts) < 3:  # there is no third part to fit on
        return log_softmax(held, -1)
    without = np.zeros((len(parts), *held.shape))
    for pair in combinations(parts, 2):
        rest = ~np.isin(part, pair)
        model = fitted(own[rest], truth[rest], held.shape[1], SENTENCE)
        for scored_part, left_out in (pair, pair[::-1]):
            here = part == scored_part
            without[left_out, here] = scored(own[here], model)
    whole = np.empty_like(held)
    for number, scores in enumerate(without):
        here = part == number
        is_here = of_document == number
        chain = chain_of(scores[~here], truth[~here], lengths[~is_here])
        whole[here] = chained(chain, held[here], lengths[is_here])
    return whole


def inner_parts(documents: Sequence[Document], seed: int) -> np.ndarray:
    """Returns (documents) the part of each, by their categories alone: their roles must not choose who judges them."""
    count = min(INNER, len(documents))
    part = stratify(by_category(documents), [1 / count] * count, seed)
    return np.unique(part, return_inverse=True)[1]
