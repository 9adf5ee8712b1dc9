"""Splits tiles by whole groups (scenes or map squares), so that no ground is in two splits."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lib.errors import BadInput
from trainbook.supervised.splits import stratify
from workloads.glacier.data.cutter import Store, pairs
from workloads.glacier.settings import Split

_FREE = -1
_NUMBERS = {"": _FREE, "train": 0, "validation": 1, "test": 2}


class Parts(NamedTuple):
    """Sorted numbers of tiles by split, sentences on left-out tiles and missing classes, and each tile's group."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    notes: list[str]
    groups: np.ndarray


def parts(store: Store, split: Split, classes: Sequence[str]) -> Parts:
    """Splits a store's tiles by its folders, otherwise by shares. Raises BadInput for a split without tiles."""
    table = store.table
    needed = (split.test > 0) + (split.folds or 2)
    fixed, notes = given(store)
    linked = pairs(store.sketches)
    scenes = store.groups
    if not any(fixed) and split.by == "scene":
        scenes = _joined(store, linked, needed, notes)
    names, group = np.unique(_group_names(store, split, fixed, scenes), return_inverse=True)
    counts = np.zeros((len(names), table.counts.shape[1]))
    np.add.at(counts, group, table.counts)
    wanted = np.full(len(names), _FREE)
    of_scene = np.array([_NUMBERS[part] for part in fixed])
    np.maximum.at(wanted, group, of_scene[table.scene])
    if not any(fixed) and len(names) < needed:
        raise BadInput(
            f"The data has {len(names)} groups to split ({split.by}s), and needs {needed}. Take fewer folds, more "
            "data, or workload.split.by: map with a small workload.split.square."
        )
    of_tile = _dealt(counts, wanted, split, notes)[group]
    train, validation, test = (np.flatnonzero(of_tile == number) for number in range(3))
    validation = _without_leaks(store, validation, test, "validation", "the test", notes)
    held_out = np.concatenate([validation, test])
    train = _without_leaks(store, train, held_out, "training", "validation or test", notes)
    named = {"training": train, "validation": validation, "test": test}
    if not split.test and not len(test):
        notes.append("The test repeats the validation (workload.split.test is 0).")
        test = validation
        del named["test"]
    for name, chosen in named.items():
        notes += _missing_classes(table.counts[chosen], classes, name)
    by_part = {name: table.scene[chosen] for name, chosen in named.items()}
    notes += _shared_ground(store, linked, by_part)
    return Parts(train, validation, test, notes, names[group])


def given(store: Store) -> tuple[list[str], list[str]]:
    """Returns each scene's split by its folder, "" if shares decide, and notes."""
    of_group: dict[str, set[str]] = defaultdict(set)
    for part, group in zip(store.parts, store.groups, strict=True):
        if part:
            of_group[group].add(part)
    divided = sorted(group for group, parts in of_group.items() if len(parts) > 1)
    if divided:
        note = (
            "The folders called train, validation and test do not decide the split: "
            f"{len(divided):,} groups of scenes are in two of them, such as {divided[0]}."
        )
        return [""] * len(store.parts), [note]
    notes = ["The folders decide the split."] if any(store.parts) else []
    return store.parts, notes


def _joined(
    store: Store, linked: Sequence[tuple[int, int]], needed: int, notes: list[str]
) -> list[str]:
    """Joins the groups of scenes that share windows of pixels, unless too few remain; adds a note."""
    groups = list(store.groups)
    for pair in linked:
        first, second = sorted(groups[scene] for scene in pair)
        groups = [first if group == second else group for group in groups]
    if not linked or len(set(groups)) < needed:
        return store.groups
    scenes = {scene for pair in linked for scene in pair}
    notes.append(
        f"{len(scenes):,} scenes without a georeference share windows of pixels with another scene, "
        "and stay in one split with it."
    )
    return groups


def _dealt(counts: np.ndarray, wanted: np.ndarray, split: Split, notes: list[str]) -> np.ndarray:
    """Returns (groups) splits and adds notes; `wanted` (groups) are splits, or _FREE if shares decide."""
    part = np.where(wanted == _FREE, 0, wanted)

    def hold_out(pool: np.ndarray, share: float, number: int) -> None:
        sides = stratify(counts[pool], [1 - share, share], split.seed)
        part[pool[sides == 1]] = number

    is_test_dealt = split.test > 0 and not (wanted == 2).any()
    if is_test_dealt:
        free = np.flatnonzero(wanted == _FREE)
        if len(free):
            hold_out(free, split.test, 2)
        else:
            hold_out(np.flatnonzero(wanted == 0), split.test, 2)
            notes.append(
                f"The given split has no test: {split.test:.0%} of its training are held out as one."
            )
    if split.folds:
        pool = np.flatnonzero(part < 2)
        fold = stratify(counts[pool], [1 / split.folds] * split.folds, split.seed)
        part[pool] = fold == split.fold
    elif not (wanted == 1).any():
        rest = 1 - split.test if is_test_dealt else 1
        share = split.validation / rest
        hold_out(np.flatnonzero(part == 0), share, 1)
        if (wanted >= 0).any():
            notes.append(
                f"The given split has no validation: {share:.0%} of its training validate."
            )
    return part


def _group_names(
    store: Store, split: Split, fixed: Sequence[str], scenes: Sequence[str]
) -> list[str]:
    """Returns (tiles) names of groups that must not be split: scenes, or map squares within a split."""
    table = store.table
    if split.by == "scene":
        return [scenes[scene] for scene in table.scene]
    left, bottom, right, top = table.bounds.T
    edge = split.square * (right - left)
    columns = (left + right) / 2 // edge
    rows = (bottom + top) / 2 // edge
    names = []
    for scene, space, column, row in zip(table.scene, table.space, columns, rows, strict=True):
        place = f"{fixed[scene]} {space}".lstrip()
        names.append(f"{place} {int(column)} {int(row)}")
    return names


def _missing_classes(counts: np.ndarray, classes: Sequence[str], name: str) -> list[str]:
    """Returns a sentence if a held-out split lacks classes. Raises BadInput for training or an empty split."""
    if not len(counts):
        raise BadInput(f"No tile is left for the {name}. Give more data, or change workload.split.")
    pixels = counts.sum(0)
    absent = ", ".join(cls for cls, number in zip(classes, pixels, strict=True) if not number)
    if not absent:
        return []
    if name == "training":
        raise BadInput(
            f"No tile of the training shows {absent}, so it cannot be learnt. Take other folds "
            "(workload.split.seed), more data, or leave it out of workload.source.classes."
        )
    return [f"The {name} shows no {absent}, so its metrics have no score for it."]


def _without_leaks(
    store: Store, chosen: np.ndarray, others: np.ndarray, name: str, held_out: str, notes: list[str]
) -> np.ndarray:
    """Leaves out tiles that overlap or copy tiles of `others`; adds a note."""
    table = store.table
    scenes = set(table.scene[others].tolist())
    digests = {store.digests[scene] for scene in scenes}
    of_space: dict[str, list[int]] = defaultdict(list)
    for index in others:
        of_space[table.space[index]].append(index)
    boxes = {space: table.bounds[indices].T for space, indices in of_space.items()}

    def is_leak(index: int) -> bool:
        scene = table.scene[index]
        if scene not in scenes and store.digests[scene] in digests:
            return True
        return _overlaps(table.bounds[index], boxes.get(table.space[index], np.empty((4, 0))))

    leaks = np.array([is_leak(index) for index in chosen], bool)
    if leaks.any():
        names = sorted({store.names[scene] for scene in table.scene[chosen[leaks]]})
        notes.append(
            f"{leaks.sum():,} tiles of the {name}, of {len(names):,} scenes, show ground of {held_out} and are left "
            f"out ({', '.join(names[:5])})."
        )
    return chosen[~leaks]


def _overlaps(box: np.ndarray, boxes: np.ndarray) -> bool:
    """Returns whether a box (4), left, bottom, right, top, overlaps one of `boxes` (4, N)."""
    x, y, right, top = box
    lefts, bottoms, rights, tops = boxes
    slack = 1e-3 * (right - x)  # a thousandth of a tile is rounding
    wide = np.minimum(right, rights) - np.maximum(x, lefts)
    high = np.minimum(top, tops) - np.maximum(y, bottoms)
    return bool(((wide > slack) & (high > slack)).any())


def _shared_ground(
    store: Store, linked: Sequence[tuple[int, int]], scenes: Mapping[str, np.ndarray]
) -> list[str]:
    """Returns a warning on scenes without georeference that share ground with another split's `scenes`."""
    part = {int(scene): name for name, chosen in scenes.items() for scene in chosen}
    shared = [(a, b) for a, b in linked if a in part and b in part and part[a] != part[b]]
    if not shared:
        return []
    held_out = {scene for pair in shared for scene in pair if part[scene] != "training"}
    first, second = (store.names[scene] for scene in shared[0])
    return [
        f"Warning: {len(held_out):,} held-out scenes share windows of pixels with another split (such as "
        f"{first} and {second}), so their scores flatter. Put such scenes into one split's folder."
    ]
