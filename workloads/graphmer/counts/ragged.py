"""Ragged arrays: rows of different lengths in one flat array, and postings, which are found by a key."""

import numpy as np

from workloads.graphmer.settings import Array


def expand(begin: Array, length: Array) -> tuple[Array, Array]:
    """(N) where rows begin and how long they are -> (M) the row of each of their places, and the place itself."""
    row = np.repeat(np.arange(len(begin)), length)
    return row, begin[row] + (np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length))


def find(values: Array, wanted: Array) -> Array:
    """(M) ascending values, (N) wanted ones -> (N) the place of each, -1 where it is not among them."""
    if not len(values):
        return np.full(len(wanted), -1)
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[place] == wanted, place, -1)


class Groups:
    """The places of an array by its value: of (N) values, those that are equal stand together."""

    def __init__(self, values: Array):
        self.order = np.argsort(values, kind="stable")
        self.values, first = np.unique(values[self.order], return_index=True)
        self.begin = np.concatenate([first, [len(values)]]).astype(np.int64)

    def sizes(self, wanted: Array) -> Array:
        """(M) values -> (M) how often each stands in the array."""
        place = find(self.values, wanted)
        return np.where(place >= 0, self.begin[place + 1] - self.begin[place], 0)

    def places(self, wanted: Array, longest: int | None = None) -> tuple[Array, Array]:
        """(M) values -> (L) the index of each among them, and a place where it stands, unless more than `longest`."""
        size = self.sizes(wanted)
        size = size if longest is None else np.where(size > longest, 0, size)
        row, at = expand(self.begin[find(self.values, wanted)], size)
        return row, self.order[at]


class Lists:
    """Lists of different tails with their numbers, found by a key; built from (N) keys and tails below `entities`."""

    def __init__(self, key: Array, tail: Array, entities: int):
        keys, index = np.unique(key, return_inverse=True)
        pairs, count = np.unique(index * entities + tail, return_counts=True)
        self.by_key, self.tail = Groups(keys[pairs // entities]), pairs % entities
        self.count = count.astype(np.float32)

    def get(self, key: Array, longest: int | None = None) -> tuple[Array, Array, Array]:
        """(P) keys -> (M) their indices, tails and numbers; lists longer than `longest` are passed over."""
        row, at = self.by_key.places(key, longest)
        return row, self.tail[at], self.count[at]


class Postings(Lists):
    """The same with the lists of each file's facts beside them, so the number of a tail without one file is exact."""

    def __init__(self, key: Array, tail: Array, file: Array, entities: int, files: int):
        super().__init__(key, tail, entities)
        self.files, self.of_files = files, Lists(key * files + file, tail, entities)

    def own(self, key: Array, file: Array) -> tuple[Array, Array, Array]:
        """(P) keys and files -> what `get` returns, of the facts of that file alone."""
        return self.of_files.get(key * self.files + file)
