"""Equal windows of pixels in two scenes: the sign of shared ground where there is no georeference.

A scene's sketch is a sample of the hashes of its windows, chosen by the hashes themselves. So two scenes that show the
same pixels, of any one band, choose the same windows of what they share (sampling of fingerprints by value, as in
Schleimer, Wilkerson and Aiken, SIGMOD 2003, wherever a window lies).
"""

import base64
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from workloads.glacier.data.tiles import Store

SIDE = 8  # pixels of a window
_ONE_IN = 64  # windows that are looked at
_KEPT = 512  # hashes of a scene
_VALUES = 16  # different ones that a window needs: fewer stand in many places
_SHARED = 3  # hashes that make a pair
_MOST_SCENES = 20  # with the same hash: a pattern of the sensor or a filled gap, and no ground
_ODD = np.uint64(0x9E3779B97F4A7C15)


def sketch(image: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
    """Returns the smallest hashes, at most _KEPT, of windows of (bands, h, w), together with those found `before`."""
    found = [_hashes(plane) for plane in image] + ([] if before is None else [before])
    return np.unique(np.concatenate(found))[:_KEPT] if found else np.empty(0, np.uint64)


def _hashes(plane: np.ndarray) -> np.ndarray:
    """Returns hashes of one in _ONE_IN windows of (h, w), of those with _VALUES different values or more."""
    plane = np.ascontiguousarray(plane, np.float32)
    if min(plane.shape) < SIDE:
        return np.empty(0, np.uint64)
    pixels = _mixed(plane.view(np.uint32).astype(np.uint64))
    corner = pixels[: 1 - SIDE, : 1 - SIDE] + _ODD * pixels[1 : 2 - SIDE, 2 : 3 - SIDE]  # what chooses a window
    rows, columns = np.nonzero(_mixed(corner) % np.uint64(_ONE_IN) == 0)
    inside = np.lib.stride_tricks.sliding_window_view
    values = np.sort(inside(plane, (SIDE, SIDE))[rows, columns].reshape(-1, SIDE**2), 1)  # NaN last
    rich = ((values[:, 1:] != values[:, :-1]).sum(1) + 1 >= _VALUES) & ~np.isnan(values[:, -1])
    weights = _mixed(np.arange(1, SIDE**2 + 1, dtype=np.uint64)) | np.uint64(1)
    chosen = inside(pixels, (SIDE, SIDE))[rows[rich], columns[rich]].reshape(-1, SIDE**2)
    return _mixed((chosen * weights).sum(1, dtype=np.uint64))


def _mixed(values: np.ndarray) -> np.ndarray:
    """Returns values whose every bit depends on every bit (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def packed(hashes: np.ndarray) -> str:
    return base64.b64encode(hashes.astype("<u8").tobytes()).decode()


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<u8")


def pairs(sketches: Mapping[int, np.ndarray]) -> list[tuple[int, int]]:
    """Returns the pairs of scenes, by number, that share ground, sorted."""
    having: dict[int, list[int]] = defaultdict(list)
    for scene, hashes in sketches.items():
        for value in hashes.tolist():
            having[value].append(scene)
    several = [scenes for scenes in having.values() if 1 < len(scenes) <= _MOST_SCENES]
    shared = Counter(pair for scenes in several for pair in combinations(sorted(scenes), 2))
    return sorted(pair for pair, number in shared.items() if number >= _SHARED)


def groups(linked: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Returns the sets of scenes that are linked by pairs, directly or by others, sorted."""
    root: dict[int, int] = {}

    def top(scene: int) -> int:
        while root.setdefault(scene, scene) != scene:
            scene = root[scene]
        return scene

    for one, other in linked:
        first, second = sorted((top(one), top(other)))
        root[second] = first
    found: dict[int, list[int]] = defaultdict(list)
    for scene in sorted(root):
        found[top(scene)].append(scene)
    return sorted(found.values())


def sketches_of(store: Store) -> dict[int, np.ndarray]:
    """Returns the sketches of the scenes without a place on the map, by number."""
    return {number: unpacked(text) for number, text in enumerate(store.sketches) if text is not None}


def shared_ground(store: Store, scenes: Mapping[str, Sequence[int]]) -> list[str]:
    """Returns a sentence on shared ground in two parts, for scenes without a place on the map.

    `scenes` are the numbers of the scenes of each part, training first.
    """
    sketches = sketches_of(store)
    if not sketches:
        return []
    which = "The scenes have" if len(sketches) == len(store.names) else f"{len(sketches):,} scenes have"
    begin = f"{which} no place on the map (no CRS), so shared ground is looked for by equal windows of pixels"
    part = {int(scene): name for name, chosen in scenes.items() for scene in chosen}
    shared = [pair for pair in pairs(sketches) if len({part.get(scene, "") for scene in pair} - {""}) == 2]
    if not shared:
        return [
            f"{begin}: none was found between parts. Scenes of the same ground that differ in every pixel stay unseen."
        ]
    counts = []
    for name in list(scenes)[1:]:
        affected = {scene for pair in shared for scene in pair if part[scene] == name}
        counts.append(f"{len(affected):,} of {list(part.values()).count(name):,} scenes of the {name}")
    one, other = (store.names[scene] for scene in shared[0])
    return [
        f"Warning: {begin}: {' and '.join(counts)} show ground of another part (such as {one} and {other}), so their "
        "scores flatter. Give such scenes one part in workload.split.names."
    ]
