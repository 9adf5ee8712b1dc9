"""A sentence as numbers: TF-IDF of its words and of those around it, and where in its document it stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from workloads.legal.documents import Document

TOKEN = r"(?u)\b\w+\b|[?\"“'();:\[\]]"  # words, and the marks that tell a question or a quotation
NEIGHBOURS = ([-1], [1], [-2], [2])  # each has its own block of weights
BAGS = (range(-6, -1), range(2, 7))  # and these one for all together
_AROUND = 0.6  # how much a word of another sentence counts beside one of the sentence itself
_DECILES = 10
POSITIONS = _DECILES + 13  # numbers of `position_features`


def position_features(document: Document) -> np.ndarray:
    """Returns (sentences, POSITIONS) where each stands, from the beginning and from the end, all about 0 to 1."""
    count = len(document)
    begin = np.arange(count)
    end = begin[::-1]
    share = begin / max(1, count - 1)
    decile = np.eye(_DECILES)[np.minimum((share * _DECILES).astype(int), _DECILES - 1)]
    near = [begin == 0, begin == 1, begin < 4, end == 0, end == 1, end < 4, end < 8]
    smooth = [
        share, share**2, np.log1p(begin) / 6, np.log1p(end) / 6, np.full(count, np.log1p(count) / 6),
        np.log1p(np.array([sentence.count(" ") + 1 for sentence in document.sentences])) / 4,
    ]  # fmt: skip
    return np.hstack([decile, np.stack([*near, *smooth], 1)])


def neighbours(lengths: Sequence[int], steps: Sequence[int]) -> sparse.csr_matrix:
    """Returns (sentences, sentences) with a 1 where the column is one of `steps` away in the row's document."""
    document = np.repeat(np.arange(len(lengths)), lengths)
    here = np.arange(len(document))
    rows = [here[max(0, -step) : max(0, len(here) - max(0, step))] for step in steps]
    row = np.concatenate(rows)
    column = row + np.repeat(steps, [*map(len, rows)])
    row, column = (side[document[row] == document[column]] for side in (row, column))
    return sparse.csr_matrix((np.ones(len(row), np.float32), (row, column)), shape=(len(here), len(here)))


def unit_rows(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """Returns the rows at length 1; an empty row stays empty."""
    length = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
    return sparse.csr_matrix(sparse.diags((1 / np.maximum(length, 1e-12)).astype(np.float32)) @ matrix)


@dataclass(frozen=True)
class Vocabulary:
    """Terms of two training sentences or more, and in how many of `sentences` each stands. It knows no roles."""

    terms: tuple[str, ...]
    frequency: np.ndarray  # (terms) int
    sentences: int

    @classmethod
    def of(cls, documents: Sequence[Document], most: int) -> "Vocabulary":
        """Returns the `most` frequent terms of some documents, in alphabetical order."""
        from sklearn.feature_extraction.text import CountVectorizer  # a second that not every process needs

        texts = [sentence for document in documents for sentence in document.sentences]
        counter = CountVectorizer(ngram_range=(1, 2), token_pattern=TOKEN, binary=True, dtype=np.int32)
        try:
            frequency = np.asarray(counter.fit_transform(texts).sum(0)).ravel()
        except ValueError:  # no sentence has a word
            return cls((), np.zeros(0, np.int32), len(texts))
        terms = counter.get_feature_names_out()
        often = np.argsort(-frequency, kind="stable")[:most]  # of equal ones the first of the alphabet
        kept = np.sort(often[frequency[often] >= min(2, len(texts))])
        return cls(tuple(terms[kept].tolist()), frequency[kept], len(texts))

    @cached_property
    def _counter(self) -> Any:
        from sklearn.feature_extraction.text import CountVectorizer

        places = {term: place for place, term in enumerate(self.terms)}
        return CountVectorizer(ngram_range=(1, 2), token_pattern=TOKEN, vocabulary=places, dtype=np.float32)

    def own(self, documents: Sequence[Document]) -> sparse.csr_matrix:
        """Returns (sentences, terms) TF-IDF: log of counts, inverse frequency as in scikit-learn, rows of length 1."""
        texts = [sentence for document in documents for sentence in document.sentences]
        if not self.terms:
            return sparse.csr_matrix((len(texts), 0), dtype=np.float32)
        counts = self._counter.transform(texts).tocsr()
        counts.data = np.log(counts.data) + 1
        inverse = (np.log((1 + self.sentences) / (1 + self.frequency)) + 1).astype(np.float32)
        return unit_rows(sparse.csr_matrix(counts @ sparse.diags(inverse)))

    @cached_property
    def single(self) -> np.ndarray:
        return np.array([place for place, term in enumerate(self.terms) if " " not in term], np.int64)

    def in_context(self, documents: Sequence[Document], own: sparse.csr_matrix) -> sparse.csr_matrix:
        """Returns (sentences, `width`): the terms, the words of the neighbours, those further away, the position."""
        lengths = [len(document) for document in documents]
        words = unit_rows(own[:, self.single])
        blocks = [own, *(_AROUND * (neighbours(lengths, steps) @ words) for steps in NEIGHBOURS)]
        blocks += [_AROUND * unit_rows(sparse.csr_matrix(neighbours(lengths, bag) @ words)) for bag in BAGS]
        position = np.concatenate([position_features(document) for document in documents]).astype(np.float32)
        return sparse.hstack([*blocks, sparse.csr_matrix(position)], "csr")
