"""One or several numbers a sample."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from trainbook.supervised import prediction, scoring, targets
from trainbook.supervised.kinds.base import Floats
from trainbook.supervised.scoring import Judged


class Numbers(Floats):
    """Labels are numbers, NaN where unknown, and outputs have their shape. The loss is of squares."""

    name = "numbers"
    metrics = ("rmse", "r2")
    has_probabilities = False
    plain: ClassVar[torch.dtype | None] = torch.float32

    def learn(self, task: Any, learned: dict[str, Any]) -> None:
        learned["variance of targets"] = targets.variance(task)

    def arranged(self, outputs: Tensor, labels: Tensor) -> Tensor:
        is_column = outputs.shape == (*labels.shape, 1) or labels.shape == (*outputs.shape, 1)
        return outputs.reshape(labels.shape) if is_column else outputs

    def misfit(self, outputs: Tensor, labels: Tensor, width: int) -> str:
        return "" if outputs.shape == labels.shape else "Return a number for each label."

    def distance(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(outputs, labels, reduction="none")

    def loss(self, task: Any, outputs: Any, labels: Tensor) -> Tensor:
        """Returns () the sum of squares in units of the training targets' variance.

        fp16 holds neither prices nor their gradients.
        """
        total = super().loss(task, outputs, labels)
        if outputs.is_meta:
            return total
        return total / task.learned().get("variance of targets", 1.0)

    def guess(self, outputs: Tensor) -> Tensor:
        return outputs

    def averaged(self, outputs: Tensor) -> Tensor:
        return outputs

    def judged(self, labels: Tensor, values: Tensor) -> Tensor:
        """Returns rows with a known number; (samples,) if they have one each."""
        if labels.dim() < 2:
            return super().judged(labels, values)
        rows = values.flatten(1)[self.known(labels).flatten(1).any(1)]
        return rows if rows.shape[1] > 1 else rows[:, 0]

    def of_known(self, labels: Tensor, values: Tensor) -> Tensor:
        return self.judged(labels, values)

    def constant(
        self, train: np.ndarray, number: int, classes: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the mean of the training targets."""
        if np.isnan(train).any():
            mean = np.ma.masked_invalid(train).mean(0).filled(0.0)
        else:
            mean = train.mean(0)
        return np.broadcast_to(mean, (number, *train.shape[1:])), None

    def tallied(
        self, metrics: Sequence[Any], rows: Mapping[str, Judged], unit: np.ndarray, units: int
    ) -> np.ndarray | None:
        sums = [
            scoring.tallied_numbers(judged, unit[judged.sample], units) for judged in rows.values()
        ]
        return np.stack(sums, 1)

    def from_sums(self, sums: np.ndarray, reference: np.ndarray | None) -> Mapping[str, np.ndarray]:
        return scoring.of_numbers(sums)

    def rows(self, task: Any, mean: Tensor, labels: Tensor) -> list[Mapping[str, Any]]:
        columns = mean.reshape(len(labels), -1)
        names = prediction.number_columns(task, columns.shape[1])
        return [dict(zip(names, row, strict=True)) for row in columns.tolist()]

    def prior(self, target: np.ndarray, is_balanced: bool) -> Any:
        return target.mean() if len(target) else 0
