"""Ragged arrays: rows of different lengths in one flat array, and postings, which are found by a key."""

import numpy as np

_NONE = np.zeros(0, np.int64)


def expand(begin: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N) where rows begin and how long they are -> (M) the row of each of their places, and the place itself."""
    row = np.repeat(np.arange(len(begin)), length)
    within = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
    return row, begin[row] + within


def offsets(index: np.ndarray, rows: int) -> np.ndarray:
    """(M) ascending rows of places -> (rows + 1) where each row begins."""
    return np.concatenate([[0], np.cumsum(np.bincount(index, minlength=rows))])


def find(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """(M) ascending values, (N) wanted ones -> (N) the place of each, -1 where it is not among them."""
    if not len(values):
        return np.full(len(wanted), -1)
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[place] == wanted, place, -1)


class Groups:
    """The places of an array by its value: of (N) values, those that are equal stand together."""

    def __init__(self, values: np.ndarray):
        self.order = np.argsort(values, kind="stable")
        self.values, first = np.unique(values[self.order], return_index=True)
        self.begin = np.concatenate([first, [len(values)]]).astype(np.int64)

    def sizes(self, wanted: np.ndarray) -> np.ndarray:
        """(M) values -> (M) how often each stands in the array."""
        place = find(self.values, wanted)
        return np.where(place >= 0, self.begin[place + 1] - self.begin[place], 0)

    def places(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(M) values -> (L) the index of each among them, and a place where it stands."""
        place = find(self.values, wanted)
        row, at = expand(self.begin[place], np.where(place >= 0, self.begin[place + 1] - self.begin[place], 0))
        return row, self.order[at]


class Postings:
    """The tails of training facts by a key, with their number, and of those the ones of each file.

    Built from (N) facts: `key`, `tail` and `file`. So the number of a tail without the facts of one file is exact.
    """

    def __init__(self, key: np.ndarray, tail: np.ndarray, file: np.ndarray, entities: int, files: int):
        self.entities, self.files = entities, files
        self.keys, index = np.unique(key, return_inverse=True)
        self.begin, self.tail, self.count = self._counted(index, tail, len(self.keys))
        self.own_keys, own = np.unique(index * files + file, return_inverse=True)
        self.own_begin, self.own_tail, self.own_count = self._counted(own, tail, len(self.own_keys))

    def _counted(self, index: np.ndarray, tail: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pairs, count = np.unique(index * self.entities + tail, return_counts=True)
        return offsets(pairs // self.entities, rows), pairs % self.entities, count.astype(np.float32)

    def get(self, key: np.ndarray, longest: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(P) keys -> (M) the index of each among them, ascending; a tail, ascending for each key; its number.

        Lists of more than `longest` tails are passed over.
        """
        return self._rows(find(self.keys, key), self.begin, self.tail, self.count, longest)

    def own(self, key: np.ndarray, file: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(P) keys and files -> the same of the facts of that file."""
        index = find(self.keys, key)
        place = np.where(index >= 0, find(self.own_keys, index * self.files + file), -1)
        return self._rows(place, self.own_begin, self.own_tail, self.own_count, 0)

    @staticmethod
    def _rows(
        place: np.ndarray, begin: np.ndarray, tail: np.ndarray, count: np.ndarray, longest: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not len(tail):
            return _NONE, _NONE, np.zeros(0, np.float32)
        length = np.where(place >= 0, begin[place + 1] - begin[place], 0)
        if longest:
            length = np.where(length > longest, 0, length)
        row, at = expand(begin[place], length)
        return row, tail[at], count[at]
