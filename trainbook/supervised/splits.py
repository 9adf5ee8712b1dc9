"""Dealing groups of samples to parts: by shares of each class. No group is on two sides."""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

_PARTS = {
    "train": "train",
    "test": "test",
    "val": "validation",
    "dev": "validation",
    "eval": "validation",
}
_NAMES = "|".join(_PARTS)
_PART = re.compile(rf"(?<![a-z])({_NAMES})(?:ing|uation|idation|idate|id|set|qa|s)?(?![a-z])")
_HALF = 24  # bits of a hash: half of them sort the samples of a stratum, the others a block
_MOST_STRATA = 50  # numbers that are taken as classes
_TENTHS = 10
_TRIES = 64  # random orders of the groups; the split that is nearest to the shares is taken


def stratify(counts: np.ndarray, shares: Sequence[float], seed: int) -> np.ndarray:
    """Returns (groups) the part of each group, so that every part's share of each class is near `shares`.

    `counts` (groups, classes) are samples or pixels. Groups are dealt one by one, those with most of a rare class
    first, to the part that lacks most; of several random orders the best result is taken (compare the
    iterative stratification of Sechidis et al., ECML PKDD 2011). A pure function of its arguments.
    """
    goal = np.asarray(shares)  # (parts)
    there = counts[:, counts.sum(0) > 0]
    of_classes = there / there.sum(0)  # (groups, classes) share of a class that lies in a group
    of_groups = np.full((len(counts), 1), 1 / len(counts))
    weight = np.concatenate([of_classes, of_groups], 1)  # (groups, classes + 1)
    best = np.zeros(len(counts), int)
    least = np.inf
    for attempt in range(_TRIES if len(counts) <= 1000 else 4):
        draw = np.random.default_rng([seed, attempt])
        factors = draw.uniform(0.8, 1.25, len(counts))
        part = _dealt(weight, goal, np.argsort(-weight.max(1) * factors, kind="stable"))
        held = np.stack([weight[part == number].sum(0) for number in range(len(goal))])
        distances = (held - goal[:, None]) / goal[:, None]  # (parts, classes + 1)
        distance = (distances**2).sum() + 1e3 * (held == 0).sum()
        if distance < least:
            best = part
            least = distance
    return best


def _dealt(weight: np.ndarray, goal: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns (groups) the part of each group, dealt in this order to the part that lacks most."""
    part = np.zeros(len(weight), int)
    lacking = goal[:, None] * np.ones(weight.shape[1])  # (parts, classes + 1)
    for group in order:
        # The fall of the squared lack, relative to the part's size, that this group would bring to each part
        fall = weight[group] * (2 * lacking - weight[group])
        part[group] = int((fall.sum(1) / goal).argmax())
        lacking[part[group]] -= weight[group]
    return part


def in_blocks(hashes: Sequence[int], strata: Sequence[Any], number: int) -> np.ndarray:
    """Returns (samples) the fold of each, so that every fold has its share of each stratum.

    Samples with one hash share a fold. They are sorted by their strata, which are texts or tuples
    of numbers, and each block of `number` neighbours has a sample of each fold: classes come in
    their shares, and numbers by their size. A pure function of its arguments, whatever their order.
    """
    stratum_of = dict(zip(hashes, strata, strict=True))
    order = sorted(stratum_of, key=lambda key: (*_sortable(stratum_of[key]), key >> _HALF))
    folds = {}
    for first in range(0, len(order), number):
        block = sorted(order[first : first + number], key=lambda key: (key % 2**_HALF, key))
        folds.update(zip(block, range(number), strict=False))
    return np.array([folds[key] for key in hashes])


def in_groups(hashes: Sequence[int], strata: Sequence[Any], number: int) -> np.ndarray:
    """Returns (samples) the fold of each; samples with one hash are a group, which has one fold.

    `stratify` deals the groups. Of numbers tenths by size are strata.
    """
    names, unit = np.unique(np.array(hashes), return_inverse=True)
    ordered = sorted({*strata}, key=_sortable)
    place = {stratum: rank for rank, stratum in enumerate(ordered)}
    rank = np.array([place[stratum] for stratum in strata])
    if len(ordered) > _MOST_STRATA and isinstance(ordered[0], tuple):
        rank = rank * _TENTHS // len(ordered)
    counts = np.zeros((len(names), int(rank.max()) + 1))
    np.add.at(counts, (unit, rank), 1)
    return stratify(counts, [1 / number] * number, 0)[unit]


def _sortable(stratum: Any) -> tuple[str, Any]:
    """Returns a key by which texts and tuples can be sorted together."""
    if isinstance(stratum, str):
        return stratum, ()
    return "", stratum


def part_of(path: PurePath) -> str:
    """Returns the split named by the file, or by its nearest folder; "" if neither names one."""
    for name in (path.stem, *reversed(path.parent.parts)):
        if match := _PART.search(name.casefold()):
            return _PARTS[match[1]]
    return ""


def makes_a_split(parts: Iterable[str]) -> bool:
    """Returns whether names assign every sample to a split, with training and held-out splits among them."""
    names = set(parts)
    return "" not in names and "train" in names and len(names) > 1
