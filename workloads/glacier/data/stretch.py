"""Bands of a scene by its own percentiles, so that scenes of different light have one scale."""

import math
from collections.abc import Sequence

import numpy as np

_MOST_PIXELS = 1_000_000  # of a scene that percentiles are taken of


def spacing(height: int, width: int) -> int:
    """Returns every how many rows and columns a pixel is looked at."""
    return max(1, math.ceil(math.sqrt(height * width / _MOST_PIXELS)))


def limits(pixels: np.ndarray, percentiles: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """(bands, n) with NaN -> (bands, 1, 1) what becomes 0, and what 1; without pixels, or in a flat band, no change."""
    known = pixels[:, ~np.isnan(pixels[0])]
    if not known.size:
        return np.zeros((len(pixels), 1, 1), np.float32), np.ones((len(pixels), 1, 1), np.float32)
    low, high = (value.astype(np.float32)[:, None, None] for value in np.percentile(known, list(percentiles), axis=1))
    return low, np.where(high > low, high, low + 1)
