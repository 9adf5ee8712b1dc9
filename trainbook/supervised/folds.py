"""Folds of a task's samples: one is held out from each run, and all of them together are answered once."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadInput
from trainbook.supervised import splits
from trainbook.supervised.notes import note
from trainbook.supervised.samples import hashed, in_order, leaders_of, target_of

KEY = "folds.fold"  # numbers the fold of a run
_MOST_NUMBERS = 64  # of a target that is a stratum
_ORDERING = ("weights", "lengths", "order")  # of samples that are dealt by their task


class Folding:
    """Deals the samples of one reading to the parts of a fold, and numbers them as they were read."""

    def __init__(
        self, options: Any, kind: Any, group: Callable[[Any], Any] | None, root: Path | None
    ):
        """Takes the section `folds`, the kind of the targets, and the task's `group`, if it has one."""
        self.options = options
        self.kind = kind
        self.group = group
        self.root = root
        self.count = 0  # samples that were dealt
        self._numbers: dict[int, int] = {}  # of each sample, by its id
        self._samples: list[Any] = []  # which keeps each id for one sample

    def dealt(self, items: Sequence[Any]) -> dict[str, list[Any]]:
        """Returns the parts of the fold: it is validation and test, or with `nested` the test alone.

        Raises BadInput for fewer samples or groups than folds.
        """
        samples = in_order([*items], self.root)
        hashes = self._hashes(samples)
        strata = [stratum(self.kind, target_of(sample)) for sample in samples]
        for number, sample in enumerate(samples, self.count):
            self._numbers[id(sample)] = number
        self.count += len(samples)
        self._samples += samples
        places = np.arange(len(samples))
        fold = self._folds(hashes, strata)
        is_held = fold == max(0, self.options.fold)
        rest = places[~is_held]
        held = [samples[place] for place in places[is_held]]
        if not self.options.nested:
            return {
                "train": [samples[place] for place in rest],
                "validation": held,
                "test": held,
            }
        inner = self._folds([hashes[place] for place in rest], [strata[place] for place in rest])
        return {
            "train": [samples[place] for place in rest[inner > 0]],
            "validation": [samples[place] for place in rest[inner == 0]],
            "test": held,
        }

    def _hashes(self, samples: Sequence[Any]) -> list[int]:
        """Returns a hash of each sample's group; without groups of its input, or of the first copy of its files."""
        if self.group is not None:
            return [hashed(sample, self.group(sample), self.root) for sample in samples]
        leaders = leaders_of(samples, self.root)
        return [
            hashed(leaders.get(place, sample), None, self.root)
            for place, sample in enumerate(samples)
        ]

    def _folds(self, hashes: Sequence[int], strata: Sequence[Any]) -> np.ndarray:
        number = self.options.number
        units = len({*hashes})
        if units < number:
            what = "samples" if self.group is None else "groups"
            raise BadInput(f"folds is {number}, and there are {units} {what}. Take fewer folds.")
        if self.group is None:
            return splits.in_blocks(hashes, strata, number)
        return splits.in_groups(hashes, strata, number)

    def pooled(self, parts: Mapping[str, Any], name: str) -> dict[str, list[Any]]:
        """Returns the parts of the fold where a task returns parts: its training and validation are dealt anew.

        Raises BadInput for samples that are no plain lists.
        """
        pool: list[Any] = []
        for part in ("train", "validation"):
            rows = parts.get(part) or []
            is_plain = isinstance(rows, list | tuple)
            if not is_plain or any(hasattr(rows, order) for order in _ORDERING):
                raise BadInput(
                    f"folds needs lists of samples, and {name} returned a {type(rows).__name__} as "
                    f"{part!r}. Return one list, or split(samples)."
                )
            pool += rows
        left = len(parts.get("test") or ())
        if left:
            note(
                f"The test, {left:,} samples, is in no fold: the training and validation samples are. "
                "`trainbook predict` answers it by all folds together."
            )
        return self.dealt(pool)

    def numbers_of(self, samples: Any) -> list[int]:
        """Returns the number of each sample; empty if the task changed them after they were dealt."""
        numbers = [self._numbers.get(id(sample), -1) for sample in samples]
        return [] if -1 in numbers else numbers

    @property
    def about(self) -> str:
        """A sentence on the fold and on what chooses the step."""
        options = self.options
        of = "groups" if self.group is not None else "samples"
        dealt = f"Folds: {self.count:,} samples in {options.number} by {of}"
        fold = f"{dealt}; fold {max(0, options.fold)}, counted from 0, is held out."
        if options.nested:
            return f"{fold} An inner part of the others chooses the step."
        return (
            f"{fold} The same samples choose the step, so scores are slightly high; "
            "folds.nested: true chooses it on others."
        )


def of(task: Any) -> Folding | None:
    """Returns the folds that a run of a `Supervised` has; None without any, or if the task deals its own."""
    options = task.config.folds
    if not options.number or task.fold_key != KEY:
        return None
    return Folding(options, task._kind, task.group if task._has_groups else None, task.source)


def is_joined(task: Any) -> bool:
    """Returns whether the answers of a run are joined with those of other folds and seeds of a queue."""
    config = task.config
    return task.fold_key == KEY and bool(config.folds.number or config.queue.seeds)


def stratum(kind: Any, target: Any) -> Any:
    """Returns what a fold shall have its share of: the classes of a target, as text, or its numbers."""
    if kind.has_positions or kind.is_generated:
        return ""
    if labels := kind.labels_in(target):
        return " ".join(sorted(map(str, labels)))
    try:
        numbers = np.asarray(target, dtype=float).ravel()
    except (TypeError, ValueError):
        return ""
    if len(numbers) > _MOST_NUMBERS:
        return ""
    return tuple(np.nan_to_num(numbers).tolist())
