"""Any number of classes a sample."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lib.errors import BadInput
from trainbook.outputs import result
from trainbook.supervised import prediction
from trainbook.supervised.kinds.base import Floats, names_of
from trainbook.supervised.notes import note
from trainbook.supervised.scoring import Judged

_COLLECTIONS = (list, tuple, set, frozenset)


class Labels(Floats):
    """Labels (samples, classes) are 1 for each class of the sample, otherwise 0, NaN if unknown; outputs are logits."""

    name = "labels"
    has_names = True
    probability_metrics = ("roc_auc", "average_precision", "log_loss")
    has_powers = True

    def names_in(self, target: Any) -> list[str] | None:
        is_named = isinstance(target, _COLLECTIONS) and all(
            isinstance(name, str) for name in target
        )
        return [*target] if is_named else None

    def numbered(self, names: Sequence[str], numbers: Mapping[str, int]) -> list[float]:
        return [float(name in names) for name in numbers]

    def placeholder(self, task: Any) -> list[float]:
        return [0.0] * len(task.names)

    def class_names(self, samples: Any) -> list[str]:
        return names_of(self, samples)

    def labels_in(self, target: Any) -> Sequence[Hashable]:
        return [name for name in self.names_in(target) or () if name]

    def checked(self, labels: Tensor, where: str) -> Tensor:
        is_other = (labels != 0) & (labels != 1) & ~labels.isnan()
        if bool(is_other.any()):  # on the CPU
            raise BadInput(
                f"{where}: With kind = 'labels' a label is 1 for a class that the sample has, "
                "else 0 or NaN."
            )
        return super().checked(labels, where)

    def misfit(self, outputs: Tensor, labels: Tensor, width: int) -> str:
        if labels.dim() == 2 and outputs.shape == labels.shape:
            return ""
        return "With kind = 'labels' both are (samples, classes): a score for each mark."

    def distance(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, labels, reduction="none")

    def guess(self, outputs: Tensor) -> Tensor:
        return outputs > 0

    def averaged(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def decided(self, mean: Tensor) -> Tensor:
        return mean > 0.5

    def choices(self, shares: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
        """Returns each mark as a choice of two."""
        pairs = torch.stack([1 - shares, shares], -1)
        return pairs.flatten(0, 1), true.flatten()

    def judged(self, labels: Tensor, values: Tensor) -> Tensor:
        """Returns (samples, classes) of the samples all of whose labels are known."""
        return self.of_known(labels, values).long()

    def of_known(self, labels: Tensor, values: Tensor) -> Tensor:
        return values[self.known(labels).all(1)]

    def constant(
        self, train: np.ndarray, number: int, classes: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the classes that more than half of the training samples have."""
        often = np.broadcast_to(train.mean(0), (number, train.shape[1]))
        return (often > 0.5).astype(np.int64), often

    def has_rows(self, judged: Judged) -> bool:
        return judged.counts is None

    def cell(self, task: Any, guess: Any) -> str:
        marked = [number for number, is_marked in enumerate(guess) if is_marked]
        return "; ".join(prediction.named(task, number) for number in marked)

    def tables(self, task: Any, answer: Judged, folder: Path) -> str:
        return result.write(self.name, answer.true, answer.guess, task._known_names(), 0, folder)

    def rows(self, task: Any, mean: Tensor, labels: Tensor) -> list[Mapping[str, Any]]:
        return [self._row(task, row) for row in mean.tolist()]

    def _row(self, task: Any, shares: Sequence[float]) -> dict[str, Any]:
        likely = [(number, share) for number, share in enumerate(shares) if share > 0.5]
        names = "; ".join(prediction.named(task, number) for number, _ in likely)
        probabilities = "; ".join(f"{share:.6f}" for _, share in likely)
        row = {"prediction": names, "probability": probabilities}
        return {**row, **prediction.class_shares(task, shares)}

    def note_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        empty = sum(row.get("prediction") == "" for row in rows)
        if empty:
            note(
                f"{empty:,} of {len(rows):,} samples have no class with a probability above 0.5: "
                "their prediction is empty. The columns of the classes have the probabilities."
            )

    def prior(self, target: np.ndarray, is_balanced: bool) -> Any:
        return np.log((target.sum() + 1) / ((1 - target).sum() + 1))
