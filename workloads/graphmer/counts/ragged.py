"""Ragged arrays: rows of different lengths in one flat array, and counts that are found by a key."""

import numpy as np
from scipy.sparse import csr_matrix

from workloads.graphmer.settings import Array


def expand(begin: Array, length: Array) -> tuple[Array, Array]:
    """(N) where rows begin and how long they are -> (M) the row of each of their places, and the place itself."""
    row = np.repeat(np.arange(len(begin)), length)
    first = np.cumsum(length) - length
    within = np.arange(len(row)) - first[row]
    return row, begin[row] + within


def find(values: Array, wanted: Array) -> Array:
    """(M) ascending values, (N) wanted ones -> (N) the place of each, -1 if it is not among them."""
    if not len(values):
        return np.full(len(wanted), -1)
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[place] == wanted, place, -1)


class Groups:
    """The places of an array by its value: equal values of (N) are adjacent."""

    def __init__(self, values: Array):
        self.order = np.argsort(values, kind="stable")
        self.values, first = np.unique(values[self.order], return_index=True)
        self.begin = np.concatenate([first, [len(values)]]).astype(np.int64)

    def sizes(self, wanted: Array) -> Array:
        """(M) values -> (M) counts in the array."""
        place = find(self.values, wanted)
        size = self.begin[place + 1] - self.begin[place]
        return np.where(place >= 0, size, 0)

    def places(self, wanted: Array, longest: int | None = None) -> tuple[Array, Array]:
        """(M) values -> (L) the index of each among them, and its places, at most `longest`."""
        size = self.sizes(wanted)
        if longest is not None:
            size = np.where(size > longest, 0, size)
        row, at = expand(self.begin[find(self.values, wanted)], size)
        return row, self.order[at]


class Table:
    """Counts of tails by key; built from (N) keys and tails below `entities`."""

    def __init__(self, key: Array, tail: Array, entities: int):
        self.keys, row = np.unique(key, return_inverse=True)
        ones = np.ones(len(tail), np.float32)
        # The last row is for keys that are not there, which `find` gives as -1
        shape = (len(self.keys) + 1, entities)
        self.counts = csr_matrix((ones, (row, tail)), shape)

    def __getitem__(self, key: Array) -> csr_matrix:
        """(P) keys -> (P, E) the numbers of all tails."""
        return self.counts[find(self.keys, key)]
