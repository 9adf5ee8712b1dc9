"""A class for each token or pixel of a sample."""

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from trainbook.supervised import scoring
from trainbook.supervised.kinds.classes import Classes
from trainbook.supervised.samples import IGNORED
from trainbook.supervised.scoring import Judged
from trainbook.supervised.targets import class_counts


class Tokens(Classes):
    """Labels (samples, ...) are numbers of classes, IGNORED if unknown; outputs have the classes last or second."""

    name = "tokens"
    has_names = False
    has_positions = True
    has_tags = True
    plain: ClassVar[torch.dtype | None] = None
    scores: ClassVar[tuple[str, ...]] = ("f1", "iou")
    neighbours: ClassVar[tuple[int, ...]] = (0, -1, 1, -2, 2)  # the simple method sees of a token

    def names_in(self, target: Any) -> list[str] | None:
        return None

    def class_names(self, samples: Any) -> list[str]:
        return []

    def is_empty(self, target: Any) -> bool:
        return target is None

    def labels_in(self, target: Any) -> Sequence[Hashable]:
        if not isinstance(target, list | tuple | set | frozenset):
            return []
        if not all(isinstance(label, str) or type(label) is int for label in target):
            return []
        return [label for label in target if label not in ("", IGNORED)]

    def arranged(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(B, C, ...) -> (B, ..., C) scores of the tokens or pixels of labels (B, ...); others unchanged."""
        rest = outputs.shape[:1] + outputs.shape[2:]
        if rest == labels.shape and outputs.shape[:-1] != labels.shape:
            return outputs.movedim(1, -1)
        return outputs

    def tested(self, task: Any) -> Judged:
        """Returns the targets of the test set; if metrics can weigh, each class with its number."""
        if not scoring.can_weigh(task.metrics):
            return super().tested(task)
        if scoring.judges_masks(task.metrics):
            return _by_sample(task)
        counts = class_counts(task, "test")
        (true,) = counts.nonzero()
        return Judged(true, true, counts[true])

    def has_rows(self, judged: Judged) -> bool:
        return False

    def cell(self, task: Any, guess: Any) -> Any:
        return guess


def _by_sample(task: Any) -> Judged:
    """Returns the classes in each sample of the test set, with their numbers."""
    part = task.parts["test"]
    columns: list[np.ndarray] = []
    for place in range(len(part)):
        labels = task.labelled([part[place].sample])["labels"]
        classes, counts = labels[labels != IGNORED].unique(return_counts=True)
        samples = torch.full_like(classes, place)
        columns.append(torch.stack([classes, counts, samples]).numpy())
    true, counts, sample = np.concatenate(columns, 1)
    return Judged(true, true, counts, None, sample)
