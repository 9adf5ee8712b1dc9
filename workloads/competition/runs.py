"""Masks as run lengths: starts from 1 and lengths, down the columns."""

import math
from collections.abc import Sequence

import numpy as np

from lib.errors import BadInput, printable


def fault(runs: str, pixels: float = math.inf) -> str:
    """Returns why a text is no mask in run lengths of a picture with so many pixels, or ""."""
    words = runs.split()
    shown = printable(repr(runs), most=60)
    if not all(map(str.isdecimal, words)) or len(words) % 2:
        return f"{shown} is no mask in run lengths. Write pairs of a start and a length."
    end = 0
    for start, length in _pairs(words):
        if start <= end or not length:
            return (
                f"{shown} are no run lengths: starts count from 1, in rising order, and no run is empty or "
                "overlaps another."
            )
        end = start + length - 1
    if end > pixels:
        return (
            f"{shown} are no run lengths in this picture: one ends at pixel {end:,} of {pixels:,}."
        )
    return ""


def mask_of(runs: str, height: int, width: int) -> np.ndarray:
    """Returns (height, width) uint8, 1 in the runs. Raises BadInput for runs that are no mask of this size."""
    if why := fault(runs, height * width):
        raise BadInput(why)
    flat = np.zeros(height * width, np.uint8)
    for start, length in _pairs(runs.split()):
        flat[start - 1 : start - 1 + length] = 1
    return flat.reshape(width, height).T


def _pairs(words: Sequence[str]) -> list[tuple[int, int]]:
    numbers = [*map(int, words)]
    return [*zip(numbers[::2], numbers[1::2], strict=True)]


def runs_of(mask: np.ndarray) -> str:
    """Returns the run lengths of a mask (height, width), empty for an empty one."""
    flat = np.concatenate([[0], np.asarray(mask > 0, np.int8).T.flatten(), [0]])
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    pairs = changes.reshape(-1, 2)
    return " ".join(f"{begin} {end - begin}" for begin, end in pairs.tolist())
