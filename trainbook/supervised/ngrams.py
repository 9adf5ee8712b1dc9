"""The strong simple method of language models: interpolated Kneser-Ney counts (Chen and Goodman, 1999)."""

from typing import NamedTuple

import numpy as np

ORDER = 4  # tokens, with the one that is guessed
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_HALF = np.uint64(31)


class _Level(NamedTuple):
    """Runs of one length: how often each came, and how often and in how many ways its context went on."""

    keys: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray
    discount: float


class Ngrams:
    """Counts of the runs of 1 to `ORDER` tokens. Of shorter runs only different tokens before them count."""

    def __init__(self, tokens: np.ndarray, vocabulary: int):
        self.vocabulary = vocabulary
        keys = [_keys(tokens, length) for length in range(ORDER + 1)]
        self.levels = [_shorter(keys, length) for length in range(1, ORDER)]
        self.levels.append(_longest(keys))

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """(L) -> (L - 1) the probability of each token but the first, by those before it."""
        found = np.full(len(tokens) - 1, 1 / self.vocabulary)
        for length, level in enumerate(self.levels, 1):
            first = max(1, length - 1)  # the first token with a whole context
            if first >= len(tokens):
                break
            runs = _keys(tokens, length)[first - length + 1 :]
            contexts = _keys(tokens, length - 1)[first - length + 1 : len(tokens) - length + 1]
            found[first - 1 :] = _interpolated(level, runs, contexts, found[first - 1 :])
        return found


def _interpolated(
    level: _Level, runs: np.ndarray, contexts: np.ndarray, shorter: np.ndarray
) -> np.ndarray:
    """Returns the probabilities of runs; where the context is unknown those of shorter ones."""
    context, is_known = _places(level.contexts, contexts)
    run, was_seen = _places(level.keys, runs)
    counted = np.where(was_seen, level.counts[run] - level.discount, 0.0)
    left = level.discount * level.kinds[context]
    mixed = (counted + left * shorter) / level.totals[context]
    return np.where(is_known, mixed, shorter)


def _places(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns where each wanted key is in sorted keys, and whether it is there."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return places, keys[places] == wanted


def _longest(keys: list[np.ndarray]) -> _Level:
    runs, first, counts = np.unique(keys[ORDER], return_index=True, return_counts=True)
    return _level(runs, counts, keys[ORDER - 1][first])


def _shorter(keys: list[np.ndarray], length: int) -> _Level:
    """Returns runs of a length, each counted once for each different token before it."""
    _, before = np.unique(keys[length + 1], return_index=True)
    runs, first, counts = np.unique(keys[length][before + 1], return_index=True, return_counts=True)
    return _level(runs, counts, keys[length - 1][before[first] + 1])


def _level(runs: np.ndarray, counts: np.ndarray, contexts: np.ndarray) -> _Level:
    known, place = np.unique(contexts, return_inverse=True)
    totals = np.bincount(place, counts)
    once = int(np.count_nonzero(counts == 1))
    twice = int(np.count_nonzero(counts == 2))
    discount = once / max(1, once + 2 * twice)
    return _Level(runs, counts, known, totals, np.bincount(place), discount)


def _keys(tokens: np.ndarray, length: int) -> np.ndarray:
    """Returns a hash of each run of `length` tokens, (L - length + 1) uint64: of 10 million runs hardly two meet."""
    number = max(0, len(tokens) - length + 1)
    keys = np.full(number, _FIRST)
    with np.errstate(over="ignore"):
        for place in range(length):
            keys = (keys ^ tokens[place : place + number].astype(np.uint64)) * _FACTOR
            keys ^= keys >> _HALF
    return keys
