"""Which tiles train, which validate and which test, so that no ground is on two sides.

Groups (scenes, or squares of the map) go as a whole to one part, chosen so that every part has its share of each class.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lib.errors import BadInput
from lib.training.splits import refuse_leaks, stratify
from workloads.glacier.data import windows
from workloads.glacier.data.tiles import Store, Table
from workloads.glacier.settings import Split

OUT = "out"  # of training and of both held-out parts
_FREE, _OUT = -1, 3
_NUMBERS = {"": _FREE, "train": 0, "validation": 1, "test": 2, OUT: _OUT}
_WORDS = {"train": "to train", "validation": "to validate", "test": "to test", OUT: "left out", "": "by the shares"}


@dataclass(frozen=True)
class Parts:
    """Sorted indices of tiles, sentences on what was left out and is missing, and the name of each tile's group."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    notes: list[str]
    groups: np.ndarray


@dataclass(frozen=True)
class Given:
    """The part of each scene (train, validation, test, out, or "" if the shares decide) and its group."""

    parts: list[str]
    groups: list[str]
    notes: list[str]


def parts(store: Store, split: Split, classes: Sequence[str]) -> Parts:
    """Splits a store's tiles. Raises BadInput if a part would be empty or training would lack a class.

    `split.names`, or folders called train, validation and test, go before the shares.
    """
    table, fixed = store.table, _with_linked(store, split, given(store, split))
    names, group = np.unique(_group_names(store, split, fixed), return_inverse=True)
    counts = np.zeros((len(names), table.counts.shape[1]))
    np.add.at(counts, group, table.counts)
    of_tile = np.array([_NUMBERS[fixed.parts[scene]] for scene in table.scene], np.int64)
    wanted, is_in = np.full(len(names), _OUT), of_tile != _OUT
    wanted[group[is_in]] = _FREE
    np.maximum.at(wanted, group[is_in], of_tile[is_in])
    if not any(fixed.parts):
        _refuse_too_few(len(names), split)
    part, notes = _dealt(counts, wanted, split)
    notes = fixed.notes + notes
    of_tile = np.where(is_in, part[group], _OUT)
    train, validation, test = (np.flatnonzero(of_tile == number) for number in range(3))
    validation, more = _without_leaks(store, validation, test, "validation", "the test")
    notes += more
    train, more = _without_leaks(store, train, np.concatenate([validation, test]), "training", "validation or test")
    named = {"training": train, "validation": validation, "test": test}
    refuse_leaks(names[group], named)
    notes += more
    if not split.test and not len(test):
        notes.append("There is no test of its own (workload.split.test is 0): it repeats the validation.")
        test = validation
        del named["test"]
    for name, chosen in named.items():
        notes += _missing_classes(table, chosen, classes, name)
    notes += windows.shared_ground(store, {name: table.scene[chosen] for name, chosen in named.items()})
    return Parts(train, validation, test, notes, names[group])


def given(store: Store, split: Split) -> Given:
    """Returns the split that `split.names` gives for a store's scenes, otherwise the one of folders."""
    parts, groups = store.parts, store.groups
    if split.names:
        parts = [next((p for p, text in split.names.items() if re.fullmatch(text, name)), "") for name in store.names]
        if lacking := [part for part in split.names if part not in parts]:
            pattern, name = split.names[lacking[0]], store.names[0]
            raise BadInput(f"workload.split.names: no scene is called {pattern}. Names are such as {name}.")
    counts = Counter(parts)
    text = ", ".join(f"{counts[part]:,} {words}" for part, words in _WORDS.items() if counts[part])
    of: dict[str, set[str]] = defaultdict(set)
    for part, group in zip(parts, groups, strict=True):
        of[group] |= {part} - {"", OUT}
    divided = sorted(group for group, several in of.items() if len(several) > 1)
    if divided and split.names:
        raise BadInput(f"workload.split.names puts the group {divided[0]} into two parts. Give all of its scenes one.")
    if divided:
        shared = f"{len(divided):,} groups of scenes lie in two of them, such as {divided[0]}"
        note = f"The folders called train, validation and test are not taken as the split: {shared}."
        return Given([""] * len(parts), groups, [note])
    where = "workload.split.names" if split.names else "the folders"
    return Given(parts, groups, [f"The split is that of {where}: {text}."] if any(parts) else [])


def _with_linked(store: Store, split: Split, fixed: Given) -> Given:
    """Joins the groups of scenes that share ground by equal windows of pixels, unless a split is given."""
    linked = windows.groups(windows.pairs(windows.sketches_of(store)))
    if not linked or any(fixed.parts) or split.by != "scene":
        return fixed
    groups = list(fixed.groups)
    for scenes in linked:
        joined = {groups[scene] for scene in scenes}
        groups = [min(joined) if group in joined else group for group in groups]
    if len(set(groups)) < _needed(split):
        return fixed
    note = (
        f"{sum(map(len, linked)):,} scenes without a place on the map show ground of another one by equal windows of "
        f"pixels, such as {', '.join(store.names[scene] for scene in linked[0][:3])}; those that do are kept together."
    )
    return Given(fixed.parts, groups, [*fixed.notes, note])


def _needed(split: Split) -> int:
    return 1 + (split.test > 0) + (split.folds or 2) - 1


def _refuse_too_few(groups: int, split: Split) -> None:
    if groups < _needed(split):
        raise BadInput(
            f"The data has {groups} groups to split (workload.split.by: {split.by}), and {_needed(split)} parts are "
            "needed. Take fewer folds, more data, or workload.split.by: map with a small workload.split.square."
        )


def _dealt(counts: np.ndarray, wanted: np.ndarray, split: Split) -> tuple[np.ndarray, list[str]]:
    """Returns (groups) the part of each, and sentences; `wanted` (groups) are given parts, or _FREE.

    Shares decide on what is not given: on groups without a part, or where there is none of these, on the training's.
    """
    part = np.where(wanted == _FREE, 0, wanted)
    free, notes, is_given = np.flatnonzero(wanted == _FREE), [], (wanted >= 0).any()
    is_test_dealt = split.test > 0 and not (wanted == 2).any()
    if is_test_dealt:
        pool = free if len(free) else np.flatnonzero(wanted == 0)
        part[pool[stratify(counts[pool], [1 - split.test, split.test], split.seed) == 1]] = 2
        if not len(free):
            notes.append(f"The given split has no test: {split.test:.0%} of its training are held out as one.")
    if split.folds:
        pool = np.flatnonzero(part < 2)
        fold = stratify(counts[pool], [1 / split.folds] * split.folds, split.seed)
        part[pool] = (fold == split.fold).astype(int)
        if (wanted == 1).any():
            notes.append("The folds are made of the given training and validation together (workload.split.folds).")
    elif not (wanted == 1).any():
        pool = np.flatnonzero(part == 0)
        share = split.validation / (1 - split.test if is_test_dealt else 1)
        part[pool[stratify(counts[pool], [1 - share, share], split.seed) == 1]] = 1
        if is_given:
            notes.append(f"The given split has no validation: {share:.0%} of its training validate.")
    return part, notes


def _group_names(store: Store, split: Split, fixed: Given) -> list[str]:
    """Returns (tiles) the name of what must not be split: the scene's group, or a square of the map within a part."""
    table = store.table
    if split.by == "scene":
        return [fixed.groups[scene] for scene in table.scene]
    edge = split.square * (table.bounds[:, 2] - table.bounds[:, 0])
    x, y = ((table.bounds[:, k] + table.bounds[:, k + 2]) / 2 // edge for k in (0, 1))
    spaces = [f"{fixed.parts[scene]} {space}".lstrip() for scene, space in zip(table.scene, table.space, strict=True)]
    return [f"{space} {int(column)} {int(row)}" for space, column, row in zip(spaces, x, y, strict=True)]


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
