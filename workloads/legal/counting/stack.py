"""The strongest model that counting alone gives: words, their context, the run of the roles, multiplied and shifted."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from scipy import sparse

from lib.errors import BadInput
from lib.training.splits import stratify
from workloads.legal import judging
from workloads.legal.counting.chain import Chain
from workloads.legal.counting.features import Vocabulary
from workloads.legal.counting.linear import Fitting, Linear, centred, log_softmax
from workloads.legal.documents import Document

INNER = 5  # parts of the training documents, each scored by a model of the four others
# Chosen on inner splits of the sample corpus: C of the two regressions, exponents of the product. After 25 steps the
# first has its best macro F1, after 30 the second; with 60 both differ by less than 0.01.
SENTENCE = Fitting(strength=3.0, steps=30)
CONTEXT = Fitting(strength=2.0, steps=45)
CHAIN_WEIGHT, CONTEXT_WEIGHT = 0.5, 0.75
_GRID = np.arange(-1.5, 2.01, 0.25)  # of the offset of a class
_SMALLER = 0.001  # macro F1 that an offset of 1 must bring
_MOST_SENTENCES = 40_000  # that are counted: a minute a 7,500 on one core
_MOST_BYTES = 3_400_000  # of the weights as JSON; in state.json 12 MiB are the limit for all that a task has learned
_VERSION = 2


@dataclass(frozen=True)
class Stack:
    """Scores of roles from counts: a product of two models, and an offset for each class for the best macro F1.

    `sentence` sees the sentence alone, and `chain` makes of its scores those of a whole document; `context` sees the
    neighbours and the position too. `held_out` has the scores of each training document (by its name) by models that
    were fitted without it; they are not kept.
    """

    classes: tuple[str, ...]
    vocabulary: Vocabulary
    sentence: Linear
    context: Linear
    chain: Chain
    offsets: np.ndarray  # (classes)
    held_out: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        documents: Sequence[Document],
        classes: Sequence[str],
        seed: int = 0,
        most_sentences: int = _MOST_SENTENCES,
    ) -> "Stack":
        """Fits to documents with roles: about 45 s on one core for 7,500 sentences of 7 roles.

        Of more than `most_sentences` a random choice of whole documents is counted. Raises BadInput for one document.
        """
        chosen = _some(_checked(documents, classes), seed, most_sentences)
        return _Fit(chosen, tuple(classes), seed).stack()

    def parts(self, document: Document) -> dict[str, np.ndarray]:
        """Returns (sentences, classes) log-probabilities of `sentence`, `context` and `crf`, a row each in a table."""
        own = self.vocabulary.own([document])
        alone = self.sentence.scores(own)
        context = self.context.scores(self.vocabulary.in_context([document], own))
        chained = self.chain.log_marginals(alone, [len(document)])
        return {"sentence": log_softmax(alone), "context": log_softmax(context), "crf": chained}

    def scores(self, document: Document) -> np.ndarray:
        """Returns (sentences, classes) scores; the softmax of them are probabilities.

        `offsets` are not in them: add those for the best macro F1, leave them for the best accuracy.
        """
        parts = self.parts(document)
        return product(parts["crf"], parts["context"])

    def as_json(self) -> dict[str, Any]:
        """Returns the model for `from_json`, without `held_out`. What is read again gives the very same scores."""
        linear = {
            name: {"weights": packed(model.weights, "<f2"), "bias": model.bias.tolist()}
            for name, model in (("sentence", self.sentence), ("context", self.context))
        }
        return {
            "version": _VERSION,
            "classes": [*self.classes],
            "terms": [*self.vocabulary.terms],
            "frequency": packed(self.vocabulary.frequency, "<i4"),
            "sentences": self.vocabulary.sentences,
            **linear,
            "scale": self.chain.scale.tolist(),
            "transition": self.chain.transition.tolist(),
            "offsets": self.offsets.tolist(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Stack":
        """Returns the model that `as_json` gave. Raises BadInput for anything else."""
        try:
            if values["version"] != _VERSION:
                raise ValueError(f"its version is {values['version']}, and {_VERSION} is read")
            classes = tuple(values["classes"])
            terms, count = tuple(map(str, values["terms"])), len(classes)
            frequency = unpacked(values["frequency"], "<i4", [len(terms)])
            vocabulary = Vocabulary(terms, frequency, int(values["sentences"]))
            return cls(
                classes,
                vocabulary,
                _linear(values["sentence"], len(terms), count),
                _linear(values["context"], vocabulary.width, count),
                Chain(_numbers(values["scale"], (count + 1, count)), _numbers(values["transition"], (count, count))),
                _numbers(values["offsets"], (count,)),
            )
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise BadInput(
                f"The counts of this checkpoint cannot be read ({error}). Start the run under another run.name, or "
                "take the checkpoint of the version of lib that wrote it."
            ) from None


def product(chained: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Multiplies the probabilities of chain and context, each with its exponent, in logarithms."""
    return centred(CHAIN_WEIGHT * chained + CONTEXT_WEIGHT * context)


def best_offsets(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Returns (classes) offsets that, added to (sentences, classes) scores, give the best macro F1, class by class.

    The scores must come from models that did not see these sentences' documents.
    """
    classes = scores.shape[1]
    offsets = np.zeros(classes)
    for _ in range(2):
        for k in range(classes):
            values = []
            for value in _GRID:
                shifted = scores + offsets
                shifted[:, k] = scores[:, k] + value
                counts = judging.confusions([truth], [shifted.argmax(1)], classes)[0]
                values.append(judging.scores(counts)[0] - _SMALLER * abs(value))
            offsets[k] = _GRID[int(np.argmax(values))]
    return offsets


class _Fit:
    """One fit: the numbers of every sentence are made once, and every model takes the rows of its documents."""

    def __init__(self, documents: Sequence[Document], classes: tuple[str, ...], seed: int):
        self.documents, self.classes = documents, classes
        number = {role: place for place, role in enumerate(classes)}
        self.truth = np.array([number[role] for document in documents for role in document.roles])
        self.lengths = np.array([len(document) for document in documents])
        part = inner_parts(documents, seed)
        self.part = np.repeat(part, self.lengths)  # (sentences)
        self.parts = int(part.max()) + 1
        self.vocabulary = Vocabulary.of(documents, _most_terms(len(classes)))
        self.own = self.vocabulary.own(documents)

    def stack(self) -> Stack:
        alone, held = [], np.zeros((len(self.truth), len(self.classes)))  # by models without the sentence's document
        for part in range(self.parts):
            alone.append(self._model(self.own, self.part != part, SENTENCE))
            here = self.part == part
            held[here] = alone[-1].scores(self.own[here])
        chained = self._chained(held)
        chain = Chain.fit(held, self.truth, self.lengths)
        matrix = self.vocabulary.in_context(self.documents, self.own)
        context, around = [], np.zeros_like(held)
        for part in range(self.parts):
            context.append(self._model(matrix, self.part != part, CONTEXT))
            here = self.part == part
            around[here] = context[-1].scores(matrix[here])
        scores = product(chained, log_softmax(around))
        ends = np.cumsum(self.lengths)
        held_out = {
            document.name: scores[end - len(document) : end] for document, end in zip(self.documents, ends, strict=True)
        }
        offsets = best_offsets(scores, self.truth)
        return Stack(self.classes, self.vocabulary, Linear.mean(alone), Linear.mean(context), chain, offsets, held_out)

    def _model(self, matrix: sparse.csr_matrix, chosen: np.ndarray, options: Fitting) -> Linear:
        return Linear.fit(matrix[chosen], self.truth[chosen], len(self.classes), options)

    def _chained(self, held: np.ndarray) -> np.ndarray:
        """Returns (sentences, classes) of chains in whose fit no document of the sentence's part had a share.

        The chain for part j is fitted on scores of the other parts, each by a model that saw neither it nor j.
        """
        if self.parts < 3:  # there is no third part to fit on
            return log_softmax(held)
        without = {part: np.zeros_like(held) for part in range(self.parts)}
        for first, second in combinations(range(self.parts), 2):
            model = self._model(self.own, (self.part != first) & (self.part != second), SENTENCE)
            for scored, left_out in ((first, second), (second, first)):
                here = self.part == scored
                without[left_out][here] = model.scores(self.own[here])
        chained = np.empty_like(held)
        for part, scores in without.items():
            here, others = self.part == part, self.part != part
            chain = Chain.fit(scores[others], self.truth[others], self._lengths(others))
            chained[here] = chain.log_marginals(held[here], self._lengths(here))
        return chained

    def _lengths(self, chosen: np.ndarray) -> np.ndarray:
        """Returns the lengths of the documents whose sentences are chosen."""
        ends = np.cumsum(self.lengths)
        return self.lengths[chosen[ends - 1]]


def inner_parts(documents: Sequence[Document], seed: int) -> np.ndarray:
    """Returns (documents) the part of each, by their categories alone: their roles must not choose who judges them."""
    categories = sorted({document.category for document in documents})
    shares = np.array([[document.category == category for category in categories] for document in documents], float)
    count = min(INNER, len(documents))
    return np.unique(stratify(shares, [1 / count] * count, seed), return_inverse=True)[1]


def _checked(documents: Sequence[Document], classes: Sequence[str]) -> list[Document]:
    """Returns the documents by name. Raises BadInput for what nothing can be fitted to."""
    if len(documents) < 2:
        raise BadInput(
            f"Counts are fitted to two documents or more, and there are {len(documents)}. Give more documents, or mark "
            "where one ends: by a blank line in a .txt file, by a column `document` in a .csv file."
        )
    return sorted(documents, key=lambda document: document.name)


def _some(documents: list[Document], seed: int, most_sentences: int) -> list[Document]:
    """Returns as many of the documents, drawn at random, as have together no more sentences; two at least."""
    order = np.random.default_rng(seed).permutation(len(documents))
    total = np.cumsum([len(documents[place]) for place in order])
    count = max(2, int((total <= most_sentences).sum()))
    return [documents[place] for place in sorted(order[:count])]


def _most_terms(classes: int) -> int:
    """Returns how many terms keep the weights of two models below `_MOST_BYTES`."""
    return _MOST_BYTES // (9 * classes + 8)


def packed(values: np.ndarray, kind: str) -> str:
    """Returns an array's bytes in a little-endian type, say "<f2", as text for JSON."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values, np.dtype(kind)).tobytes(), 9)).decode("ascii")


def unpacked(text: str, kind: str, shape: Sequence[int]) -> np.ndarray:
    """Returns an array of a shape, and unpacks no more bytes than it has. Raises ValueError or zlib.error."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    content = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
    return np.frombuffer(content, kind).reshape(shape)


def _linear(values: Mapping[str, Any], width: int, classes: int) -> Linear:
    weights = unpacked(values["weights"], "<f2", [width, classes]).astype(np.float32)
    return Linear(weights, _numbers(values["bias"], (classes,)).astype(np.float32))


def _numbers(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    found = np.array(values, np.float64)
    if found.shape != shape or not np.isfinite(found).all():
        raise ValueError(f"numbers of {found.shape} are not {shape} finite ones")
    return found
