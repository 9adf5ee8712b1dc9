"""Masks in JPEG, whose values are only nearly those that were meant: each pixel is taken for the nearest code.

Codes are numbers from 0 to 255, or of colours red * 65536 + green * 256 + blue.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

_FORMATS = (".jpg", ".jpeg")
_APART = 40  # what two codes differ by at least in a channel; what compression adds beside an edge is mostly less
_LEAST_SHARE = 0.003  # of the pixels of a window, or of all, that one value of a code has
_NEAR = 4  # of 0, of 255, or of a code
_SOLID_SHARE = 0.7  # of a mask's pixels that are near a code: areas of one colour stay so


def is_lossy(path: Path) -> bool:
    return path.suffix.lower() in _FORMATS


def channels(codes: np.ndarray) -> np.ndarray:
    """Returns (codes, 3) numbers from 0 to 255 of (codes,) colours."""
    return np.stack([codes >> 16, codes >> 8 & 255, codes & 255], 1)


def is_grey(planes: Sequence[np.ndarray]) -> bool:
    """Says whether three planes are one, but for what compression adds."""
    first = planes[0].astype(np.int16)
    return all(int(np.abs(first - plane).max(initial=0)) < _APART for plane in planes[1:])


def merged(counts: Mapping[float, int]) -> Counter[float]:
    """Returns how often each of a few codes comes that stand apart, every other being taken for the nearest."""
    values = np.array(sorted(counts), np.int64)
    numbers = np.array([counts[value] for value in values.tolist()])
    return _assigned(values, numbers, _apart(values, numbers))


def counted(values: np.ndarray) -> Counter[float]:
    """Returns how often each code comes in (h, w) of a mask: those of its areas, and for other pixels the nearest one.

    An area is of one value, with all of a pixel's neighbours: beside an edge compression leaves no such areas.
    """
    codes, numbers = np.unique(values, return_counts=True)
    inside = np.unique(values[1:-1, 1:-1][_is_inside(values)], return_counts=True)
    known = inside if len(inside[0]) else (codes, numbers)
    return _assigned(codes.astype(np.int64), numbers, _apart(known[0].astype(np.int64), known[1]))


def is_mask(values: np.ndarray) -> bool:
    """Says whether (h, w) of an image are areas of a few codes, as a mask is and a photograph is not."""
    codes = channels(np.array(sorted(counted(values)), np.int64))
    found, numbers = np.unique(values, return_counts=True)
    away = np.abs(channels(found.astype(np.int64))[:, None] - codes).max(2).min(1)
    return bool(numbers[away <= _NEAR].sum() >= _SOLID_SHARE * numbers.sum())


def _is_inside(values: np.ndarray) -> np.ndarray:
    """Returns (h - 2, w - 2) truths: whether a pixel is as all eight around it."""
    h, w = values.shape
    middle = values[1:-1, 1:-1]
    around = (values[row : h - 2 + row, column : w - 2 + column] for row in range(3) for column in range(3))
    return np.logical_and.reduce([part == middle for part in around])


def _apart(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns (codes, 3) colours that stand apart, the most frequent first."""
    parts, chosen = channels(values), np.empty((0, 3), np.int64)
    for place in np.argsort(-numbers, kind="stable"):
        if len(chosen) and numbers[place] < _LEAST_SHARE * numbers.sum():
            break
        if not len(chosen) or np.abs(chosen - parts[place]).max(1).min() >= _APART:
            chosen = np.vstack([chosen, parts[place]])
    return chosen


def _assigned(values: np.ndarray, numbers: np.ndarray, chosen: np.ndarray) -> Counter[float]:
    closest = np.abs(channels(values)[:, None] - chosen).sum(2).argmin(1)
    chosen = np.where(chosen <= _NEAR, 0, np.where(chosen >= 255 - _NEAR, 255, chosen))
    codes = chosen @ (65536, 256, 1)
    total: Counter[float] = Counter()
    for place, number in zip(closest.tolist(), numbers.tolist(), strict=True):
        total[int(codes[place])] += number
    return total


def nearest(planes: Sequence[np.ndarray], codes: Sequence[int]) -> np.ndarray:
    """Returns (h, w) of the code that is nearest to each pixel; grey where no code is a colour."""
    known = np.array([code for code in codes if code >= 0], np.int64)
    if known.max() <= 255:
        planes, wanted = planes[:1], known[:, None]
    else:
        planes, wanted = [planes[0]] * 3 if len(planes) < 3 else planes[:3], channels(known)
    away = np.stack([
        sum(np.abs(plane.astype(np.int32) - one) for plane, one in zip(planes, code, strict=True)) for code in wanted
    ])  # fmt: skip
    return known[away.argmin(0)]
