"""Which tiles train, which validate and which test, so that no ground is on two sides.

Groups (scenes, or squares of the map) go as a whole to one part, chosen so that every part has its share of each class.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lib.errors import BadInput
from lib.tasks.glacier.data.tiles import Store, Table
from lib.tasks.glacier.settings import Split
from lib.training.splits import refuse_leaks, stratify


@dataclass(frozen=True)
class Parts:
    """Sorted indices of tiles, and sentences on what was left out and what is missing."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    notes: list[str]


def parts(store: Store, split: Split, classes: Sequence[str]) -> Parts:
    """Splits a store's tiles. Raises BadInput where a part would be empty or training would lack a class."""
    table = store.table
    names, group = np.unique(_group_names(store, split), return_inverse=True)
    counts = np.zeros((len(names), table.counts.shape[1]))
    np.add.at(counts, group, table.counts)
    needed = 1 + (split.test > 0) + (split.folds or 2) - 1
    if len(names) < needed:
        raise BadInput(
            f"The data has {len(names)} groups to split (workload.split.by: {split.by}), and {needed} parts are "
            "needed. Take fewer folds, more data, or workload.split.by: map with a small workload.split.square."
        )
    held_out = stratify(counts, [1 - split.test, split.test], split.seed) if split.test else np.zeros(len(names), int)
    rest = np.flatnonzero(held_out == 0)
    if split.folds:
        fold = stratify(counts[rest], [1 / split.folds] * split.folds, split.seed)
        validating = rest[fold == split.fold]
    else:
        share = split.validation / (1 - split.test)
        validating = rest[stratify(counts[rest], [1 - share, share], split.seed) == 1]
    part = np.zeros(len(names), int)  # 0 trains, 1 validates, 2 tests
    part[validating] = 1
    part[held_out == 1] = 2
    train, validation, test = (np.flatnonzero(part[group] == number) for number in range(3))
    validation, notes = _without_leaks(store, validation, test, "validation", "the test")
    train, more = _without_leaks(store, train, np.concatenate([validation, test]), "training", "validation or test")
    refuse_leaks(names[group], {"training": train, "validation": validation, "test": test})
    notes += more
    named = {"training": train, "validation": validation, "test": test}
    if not split.test:
        notes.append("There is no test of its own (workload.split.test is 0): it repeats the validation.")
        test = validation
        del named["test"]
    for name, chosen in named.items():
        notes += _missing_classes(table, chosen, classes, name)
    return Parts(train, validation, test, notes)


def _group_names(store: Store, split: Split) -> list[str]:
    """Returns (tiles) the name of what must not be split: the scene's group, or a square of the map."""
    table = store.table
    if split.by == "scene":
        return [store.groups[scene] for scene in table.scene]
    edge = split.square * (table.bounds[:, 2] - table.bounds[:, 0])
    x, y = ((table.bounds[:, k] + table.bounds[:, k + 2]) / 2 // edge for k in (0, 1))
    return [f"{space} {int(column)} {int(row)}" for space, column, row in zip(table.space, x, y, strict=True)]


def _missing_classes(table: Table, chosen: np.ndarray, classes: Sequence[str], name: str) -> list[str]:
    """Returns a sentence where a held-out part lacks classes. Raises BadInput for the training or an empty part."""
    if not len(chosen):
        raise BadInput(f"No tile is left for the {name}. Give more data, or change workload.split.")
    absent = ", ".join(cls for cls, pixels in zip(classes, table.counts[chosen].sum(0), strict=True) if not pixels)
    if absent and name == "training":
        raise BadInput(
            f"No tile of the training shows {absent}, so it cannot be learnt. Take other folds (workload.split.seed), "
            "more data, or leave it out of workload.source.classes."
        )
    return [f"The {name} shows no {absent}: its metrics say so instead of counting it as right."] if absent else []


def _without_leaks(
    store: Store, chosen: np.ndarray, others: np.ndarray, name: str, held_out: str
) -> tuple[np.ndarray, list[str]]:
    """Leaves out tiles that show ground of `others`, by place or as a copy; returns the rest and a sentence on them."""
    table = store.table
    held_scenes = set(table.scene[others].tolist())
    digests = {store.digests[scene] for scene in held_scenes}
    copies = [s for s, digest in enumerate(store.digests) if s not in held_scenes and digest in digests]
    copied = chosen[np.isin(table.scene[chosen], copies)]
    leaks = np.union1d(copied, overlapping(table, chosen, others))
    if not len(leaks):
        return chosen, []
    scenes = sorted({store.names[scene] for scene in table.scene[leaks]})
    names = ", ".join(scenes[:5]) + (f" and {len(scenes) - 5} more" if len(scenes) > 5 else "")
    sentence = f"{len(leaks):,} tiles of the {name} show ground of {held_out} and are left out ({names})."
    return np.setdiff1d(chosen, leaks), [sentence]


def overlapping(table: Table, first: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns those of the tiles `first` (n indices) that show ground of one of the tiles `others`."""
    if not len(first) or not len(others):
        return first[:0]
    edge = dict.fromkeys(table.space, 0.0)
    for index in np.concatenate([first, others]):
        left, bottom, right, top = table.bounds[index]
        edge[table.space[index]] = max(edge[table.space[index]], right - left, top - bottom)
    cells: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for index in others:
        for cell in _cells(table, index, edge):
            cells[cell].append(index)
    touching = [
        index
        for index in first
        if any(_touch(table.bounds[index], table.bounds[o]) for cell in _cells(table, index, edge) for o in cells[cell])
    ]
    return np.array(touching, dtype=first.dtype)


def _cells(table: Table, index: int, edge: dict[str, float]) -> list[tuple[str, int, int]]:
    """The squares of a grid, as wide as the largest tile, that a tile lies in."""
    space = table.space[index]
    left, bottom, right, top = (table.bounds[index] / edge[space]).tolist()
    return [
        (space, x, y)
        for x in range(int(left // 1), int(right // 1) + 1)
        for y in range(int(bottom // 1), int(top // 1) + 1)
    ]


def _touch(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two boxes share more than an edge; a thousandth of a tile is rounding."""
    slack = 1e-3 * (a[2] - a[0])
    return bool(min(a[2], b[2]) - max(a[0], b[0]) > slack and min(a[3], b[3]) - max(a[1], b[1]) > slack)
