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

_TRIES = 64  # random orders of the groups; the split that is nearest to the wanted shares is taken


@dataclass(frozen=True)
class Parts:
    """Indices of tiles, sorted, and sentences on what was left out and what is missing."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    notes: list[str]


def parts(store: Store, split: Split, classes: Sequence[str], tile_size: int) -> Parts:
    """Splits a store's tiles. Raises BadInput where a part would be empty or training would lack a class."""
    table = store.table
    names, group = _groups(store, split, tile_size)
    counts = np.zeros((len(names), table.counts.shape[1]))
    np.add.at(counts, group, table.counts)
    wanted = 1 + (split.test > 0) + (split.folds or 2) - 1
    if len(names) < wanted:
        raise BadInput(
            f"The data has {len(names)} groups to split (workload.split.by: {split.by}), and {wanted} parts are "
            "wanted. Take fewer folds, more data, or workload.split.by: map with a small workload.split.square."
        )
    held_out = stratify(counts, [1 - split.test, split.test], split.seed) if split.test else np.zeros(len(names), int)
    rest = np.flatnonzero(held_out == 0)
    if split.folds:
        inner = stratify(counts[rest], [1 / split.folds] * split.folds, split.seed)
        validating = rest[inner == split.fold]
    else:
        share = split.validation / (1 - split.test)
        validating = rest[stratify(counts[rest], [1 - share, share], split.seed) == 1]
    part = np.zeros(len(names), int)  # 0 trains, 1 validates, 2 tests
    part[validating] = 1
    part[held_out == 1] = 2
    return _without_leaks(store, part[group], classes, bool(split.test))


def stratify(counts: np.ndarray, shares: Sequence[float], seed: int) -> np.ndarray:
    """(groups) the part of each group, so that every part's share of each class is near the wanted one.

    `counts` (groups, classes) are pixels. Groups are dealt one by one, those with most of a rare class first, to the
    part that lacks most; of several random orders the best result is taken. A pure function of its arguments.
    """
    wanted = np.asarray(shares)  # (parts)
    classes = counts[:, counts.sum(0) > 0]
    weight = classes / classes.sum(0)  # (groups, classes) share of a class that lies in a group
    weight = np.concatenate([weight, np.full((len(counts), 1), 1 / len(counts))], 1)  # and of the groups themselves
    best, least = np.zeros(len(counts), int), np.inf
    for attempt in range(_TRIES if len(counts) <= 1000 else 4):
        draw = np.random.default_rng([seed, attempt])
        order = np.argsort(-weight.max(1) * draw.uniform(0.8, 1.25, len(counts)), kind="stable")
        part = _dealt(weight, wanted, order)
        held = np.stack([weight[part == number].sum(0) for number in range(len(wanted))])  # (parts, classes + 1)
        off = (((held - wanted[:, None]) / wanted[:, None]) ** 2).sum() + 1e3 * (held == 0).sum()
        if off < least:
            best, least = part, off
    return best


def _dealt(weight: np.ndarray, wanted: np.ndarray, order: np.ndarray) -> np.ndarray:
    part = np.zeros(len(weight), int)
    lacking = wanted[:, None] * np.ones(weight.shape[1])  # (parts, classes + 1)
    for group in order:
        # The fall of the squared lack, relative to the part's size, that this group would bring to each part
        gain = (weight[group] * (2 * lacking - weight[group])).sum(1) / wanted
        part[group] = int(gain.argmax())
        lacking[part[group]] -= weight[group]
    return part


def overlapping(table: Table, first: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of the tiles `first`, those that show ground of one of the tiles `others`."""
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


def _groups(store: Store, split: Split, tile_size: int) -> tuple[list[str], np.ndarray]:
    """The names of the groups, and (tiles) the group of each tile."""
    table = store.table
    if split.by == "scene":
        of_tile = [store.groups[scene] for scene in table.scene]
    else:
        of_tile = []
        for bounds, space in zip(table.bounds, table.space, strict=True):
            edge = split.square * (bounds[2] - bounds[0])
            of_tile.append(
                f"{space} {int((bounds[0] + bounds[2]) / 2 // edge)} {int((bounds[1] + bounds[3]) / 2 // edge)}"
            )
    names = sorted(set(of_tile))
    numbers = {name: number for number, name in enumerate(names)}
    return names, np.array([numbers[name] for name in of_tile])


def _without_leaks(store: Store, part: np.ndarray, classes: Sequence[str], has_test: bool) -> Parts:
    """Leaves out what would show held-out ground, and says what each part lacks."""
    table, notes = store.table, []
    test, validation, train = (np.flatnonzero(part == number) for number in (2, 1, 0))
    validation, sentence = _kept(store, validation, test, "validation", "the test")
    notes += sentence
    train, sentence = _kept(store, train, np.concatenate([validation, test]), "training", "validation or test")
    notes += sentence
    if not has_test:
        test = validation
        notes.append("There is no test of its own (workload.split.test is 0): it repeats the validation.")
    for name, chosen in (("training", train), ("validation", validation), ("test", test)):
        if not len(chosen):
            raise BadInput(f"No tile is left for the {name}. Give more data, or change workload.split.")
        absent = [cls for cls, number in zip(classes, table.counts[chosen].sum(0), strict=True) if not number]
        if absent and name == "training":
            raise BadInput(
                f"No tile of the training shows {', '.join(absent)}, so it cannot be learnt. Take other folds "
                "(workload.split.seed), more data, or leave it out of workload.source.classes."
            )
        if absent and (has_test or name != "test"):
            notes.append(
                f"The {name} shows no {', '.join(absent)}: its metrics say so instead of counting it as right."
            )
    return Parts(train, validation, test, notes)


def _kept(store: Store, chosen: np.ndarray, others: np.ndarray, name: str, held: str) -> tuple[np.ndarray, list[str]]:
    """The tiles that show no ground of `others`, neither by place nor as a copy; and a sentence on the rest."""
    table = store.table
    held_scenes = set(table.scene[others].tolist())
    digests = {store.digests[scene] for scene in held_scenes}
    copies = [s for s, digest in enumerate(store.digests) if s not in held_scenes and digest in digests]
    twins = chosen[np.isin(table.scene[chosen], copies)]
    leaks = np.union1d(twins, overlapping(table, chosen, others))
    if not len(leaks):
        return chosen, []
    scenes = sorted({store.names[scene] for scene in table.scene[leaks]})
    listed = ", ".join(scenes[:5]) + (f" and {len(scenes) - 5} more" if len(scenes) > 5 else "")
    sentence = f"{len(leaks):,} tiles of the {name} show ground of {held} and are left out ({listed})."
    return np.setdiff1d(chosen, leaks), [sentence]
