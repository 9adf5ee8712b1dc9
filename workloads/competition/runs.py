"""Masks as run lengths: starts from 1 and lengths, down the columns."""

import numpy as np

from lib.errors import BadInput, printable


def mask_of(runs: str, height: int, width: int) -> np.ndarray:
    """Returns (height, width) uint8, 1 in the runs. Raises BadInput for runs that are no mask of this size."""
    words = runs.split()
    shown = printable(repr(runs), most=60)
    if not all(map(str.isdecimal, words)) or len(words) % 2:
        raise BadInput(f"{shown} is no mask in run lengths. Write pairs of a start and a length.")
    numbers = np.array(words, np.int64).reshape(-1, 2)
    begins = numbers[:, 0] - 1
    ends = begins + numbers[:, 1]
    flat = np.zeros(height * width, np.uint8)
    if not len(numbers):
        return flat.reshape(height, width)
    is_ordered = (begins[1:] >= ends[:-1]).all() and (numbers[:, 1] > 0).all()
    if not is_ordered or begins[0] < 0 or ends[-1] > len(flat):
        raise BadInput(
            f"{shown} are no run lengths in a picture of {width} x {height} pixels: starts count from 1, "
            "in rising order, and no run overlaps another."
        )
    for begin, end in zip(begins, ends, strict=True):
        flat[begin:end] = 1
    return flat.reshape(width, height).T


def runs_of(mask: np.ndarray) -> str:
    """Returns the run lengths of a mask (height, width), empty for an empty one."""
    flat = np.concatenate([[0], np.asarray(mask > 0, np.int8).T.flatten(), [0]])
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    pairs = changes.reshape(-1, 2)
    return " ".join(f"{begin} {end - begin}" for begin, end in pairs.tolist())
