"""Equal windows of pixels in two scenes: the sign of shared ground where there is no georeference.

A scene's sketch is a sample of the hashes of its windows, chosen by the hashes themselves. So two scenes that show the
same pixels, of any one band, choose the same windows of what they share (sampling of fingerprints by value, as in
Schleimer, Wilkerson and Aiken, SIGMOD 2003, wherever a window lies).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations

import numpy as np

SIDE = 8  # pixels of a window
_ONE_IN = 64  # windows that are looked at
_KEPT = 512  # hashes of a scene
_VALUES = 16  # different ones that a window needs: fewer stand in many places
_SHARED = 3  # hashes that make a pair
_MOST_SCENES = 20  # with the same hash: a pattern of the sensor or a filled gap, and no ground
_ODD = np.uint64(0x9E3779B97F4A7C15)


def sketch(image: np.ndarray, before: Sequence[int] = ()) -> list[int]:
    """Returns the smallest hashes, at most _KEPT, of windows of (bands, h, w), together with those `before`."""
    inside, hashes = np.lib.stride_tricks.sliding_window_view, [np.array(before, np.uint64)]
    weights = _mixed(np.arange(1, SIDE**2 + 1, dtype=np.uint64)) | np.uint64(1)
    for plane in np.ascontiguousarray(image, np.float32):
        pixels = _mixed(plane.view(np.uint32).astype(np.uint64))
        corner = pixels[: 1 - SIDE, : 1 - SIDE] + _ODD * pixels[1 : 2 - SIDE, 2 : 3 - SIDE]  # what chooses a window
        rows, columns = np.nonzero(_mixed(corner) % np.uint64(_ONE_IN) == 0)
        values = np.sort(inside(plane, (SIDE, SIDE))[rows, columns].reshape(-1, SIDE**2), 1)  # NaN last
        rich = ((values[:, 1:] != values[:, :-1]).sum(1) + 1 >= _VALUES) & ~np.isnan(values[:, -1])
        windows = inside(pixels, (SIDE, SIDE))[rows[rich], columns[rich]].reshape(-1, SIDE**2)
        hashes.append(_mixed((windows * weights).sum(1, dtype=np.uint64)))
    return np.unique(np.concatenate(hashes))[:_KEPT].tolist()


def _mixed(values: np.ndarray) -> np.ndarray:
    """Returns values whose every bit depends on every bit (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def pairs(sketches: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Returns the pairs of scenes, by number, that share ground, sorted."""
    having: dict[int, list[int]] = defaultdict(list)
    for scene, hashes in enumerate(sketches):
        for value in hashes:
            having[value].append(scene)
    common = (scenes for scenes in having.values() if len(scenes) <= _MOST_SCENES)
    shared = Counter(pair for scenes in common for pair in combinations(scenes, 2))
    return sorted(pair for pair, number in shared.items() if number >= _SHARED)
