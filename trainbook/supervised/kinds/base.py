"""The base of all kinds of targets."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.supervised import evaluation, prediction, scoring, targets
from trainbook.supervised.samples import IGNORED, target_of
from trainbook.supervised.scoring import Judged

MOST_NUMBERS = (
    2**26
)  # in all draws; of more, as of every word of a large vocabulary, no sums are drawn


class Kind:
    """One kind of target. It has no state: methods take the task, or tensors of one batch.

    Shapes: `labels` (samples, ...) are `batch["labels"]`; `outputs` come from the task's `outputs`.
    """

    name: str = ""  # the short name in files and messages; default: the class's name
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)  # default metrics
    # Labels are whole numbers, outputs have a score for each class
    has_classes: ClassVar[bool] = False
    has_names: ClassVar[bool] = False  # samples may have names of classes as targets
    has_positions: ClassVar[bool] = False  # a sample has a label for each token or pixel
    has_tags: ClassVar[bool] = False  # samples may have names of classes for their positions
    has_probabilities: ClassVar[bool] = True  # `averaged` returns probabilities
    has_powers: ClassVar[bool] = False  # its probabilities are calibrated on validation
    has_simple: ClassVar[bool] = True  # whether a simple method is compared with the network
    is_generated: ClassVar[bool] = False  # answers are written token by token
    probability_metrics: ClassVar[tuple[str, ...]] = scoring.PROBABILITIES  # that may judge it
    # Of targets that samples have as numbers; None: never
    plain: ClassVar[torch.dtype | None] = None

    # --- samples --------------------------------------------------------------------------------------------------

    def metric(self, metric: Any) -> Any:
        """Returns a metric in callable form: a name, or a function of (true, guess)."""
        return metric

    def names_in(self, target: Any) -> list[str] | None:
        """Returns the names of classes in a sample's target; None for other targets."""
        return None

    def numbered(self, names: Sequence[str], numbers: Mapping[str, int]) -> Any:
        """Returns the target with these names as a batch has it; `numbers` are of all classes, in order."""
        raise NotImplementedError

    def placeholder(self, task: Any) -> Any:
        """Returns a numbered target for an example whose target has names."""
        raise NotImplementedError

    def class_names(self, samples: Any) -> list[str]:
        """Returns the sorted names of all classes in samples; empty if targets have no names."""
        return []

    def is_empty(self, target: Any) -> bool:
        """Returns whether a sample lacks its target."""
        return target is None

    def labels_in(self, target: Any) -> Sequence[Hashable]:
        """Returns the names or numbers of classes in a target, for notes on the data."""
        return ()

    def learn(self, task: Any, learned: dict[str, Any]) -> None:
        """Adds the loss's needs to the values learned from the training samples."""

    # --- labels and outputs ---------------------------------------------------------------------------------------

    def checked(self, labels: Tensor, where: str) -> Tensor:
        """Returns labels in the type of the loss. Raises BadInput for others; `where` names the method."""
        return labels

    def placed(self, labels: Tensor) -> Tensor:
        """Returns the labels that outputs answer."""
        return labels

    def known(self, labels: Tensor) -> Tensor:
        """Returns a mask of the labels that are targets."""
        return labels != IGNORED

    def arranged(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns outputs in the order of the labels, as far as they fit."""
        return outputs

    def misfit(self, outputs: Tensor, labels: Tensor, width: int) -> str:
        """Returns what to return instead of outputs whose shape does not fit the labels; "" if it fits."""
        raise NotImplementedError

    def loss(self, task: Any, outputs: Any, labels: Tensor) -> Tensor:
        """Returns () the sum of the loss over known labels; both as `matched` returns them."""
        raise NotImplementedError

    def losses(self, scores: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        """Returns (targets) the loss of each known target; `weights` (classes) of a balanced task."""
        raise NotImplementedError

    def guess(self, outputs: Tensor) -> Tensor:
        """Returns guesses in the shape of the labels."""
        raise NotImplementedError

    def averaged(self, outputs: Tensor) -> Tensor:
        """Returns the values that an ensemble averages: probabilities (samples, ..., classes), or numbers."""
        raise NotImplementedError

    def decided(self, mean: Tensor) -> Tensor:
        """Returns the guess by what an ensemble averaged: by default that itself."""
        return mean

    def choices(self, shares: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (choices, classes) probabilities of which one is of the truth, and (choices) the true ones."""
        return shares, true

    def judged(self, labels: Tensor, values: Tensor) -> Tensor:
        """Selects `values`, in the shape of the labels, at known labels."""
        return values[self.known(labels)]

    def of_known(self, labels: Tensor, values: Tensor) -> Tensor:
        """Returns (targets, ...) the scores for known labels."""
        return values[self.known(labels)]

    # --- evaluation -----------------------------------------------------------------------------------------------

    def evaluate(self, task: Any, model: nn.Module, loader: Any) -> evaluation.Scored:
        """Returns losses and metrics over a loader, each method's answers, and a sentence about them."""
        return evaluation.evaluate(task, model, loader)

    def targets(self, task: Any, part: str) -> np.ndarray:
        """Returns the known targets of a part."""
        return np.concatenate([*targets.targets(task, task.parts[part])])

    def tested(self, task: Any) -> Judged:
        """Returns the targets of the test set as if each were guessed rightly."""
        true = task.targets("test")
        return Judged(true, true)

    def constant(
        self, train: np.ndarray, number: int, classes: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the best constant guess, `number` times, and its probabilities, if it has some."""
        raise NotImplementedError

    def baselines(self, task: Any, test: Judged) -> dict[str, Judged]:
        """Returns the constant answer from the training targets, and the answers of the task's `baselines`."""
        guess, shares = self.constant(task.targets("train"), len(test.true), 0)
        rows = {task.constant: test._replace(guess=guess, shares=shares)}
        return {**rows, **evaluation.judged(test, task._guesses)}

    def guesses(self, task: Any) -> dict[str, Any]:
        """Returns the guesses of methods without the network, by name."""
        return dict(task.baselines())

    def columns(self, task: Any, judged: Judged) -> dict[str, float]:
        """Returns further columns of a method's row in evaluation.csv."""
        return {}

    def tallied(
        self, metrics: Sequence[Any], rows: Mapping[str, Judged], unit: np.ndarray, units: int
    ) -> np.ndarray | None:
        """Returns (units, methods, ...) numbers whose sums `measured` takes, or None. `unit` is each sample's."""
        return None

    def measured(
        self, metrics: Sequence[Any], sums: np.ndarray, reference: np.ndarray | None = None
    ) -> np.ndarray:
        """(draws, ...) sums -> (draws, metrics); means are over classes in these, or in `reference`."""
        values = self.from_sums(sums, reference)
        nothing = np.full(len(sums), np.nan)
        return np.stack([values.get(scoring.name_of(metric), nothing) for metric in metrics], -1)

    def from_sums(self, sums: np.ndarray, reference: np.ndarray | None) -> Mapping[str, np.ndarray]:
        """(draws, ...) sums -> (draws) each metric that follows from them, by name."""
        return {}

    def has_rows(self, judged: Judged) -> bool:
        """Returns whether answers.csv has a row for each target."""
        return judged.counts is None and judged.true.ndim == 1

    def cell(self, task: Any, guess: Any) -> Any:
        """Returns a guess as answers.csv has it."""
        return guess

    def tables(self, task: Any, answer: Judged, folder: Path) -> str | None:
        """Writes tables and figures of one answer into a folder; returns what to print, None for nothing."""
        return ""

    # --- prediction -----------------------------------------------------------------------------------------------

    def answers(
        self, task: Any, models: list[nn.Module], samples: list[Any]
    ) -> list[Mapping[str, Any]]:
        """Returns a row for each sample by the mean of the models."""
        total, labels = prediction.summed(task, models, samples)
        return self.rows(task, total / len(models), labels)

    def rows(self, task: Any, mean: Tensor, labels: Tensor) -> list[Mapping[str, Any]]:
        """Returns a row for each sample; `mean` is of `averaged` over models."""
        raise NotImplementedError

    def note_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds notes for readers of the predictions."""

    # --- the simple method ----------------------------------------------------------------------------------------

    def rows_seen(self, labels: Tensor) -> Tensor:
        """Returns labels as the simple method learns them: (rows,) of classes, or (samples, numbers)."""
        return labels.reshape(len(labels), -1)

    def learnable(self, target: np.ndarray, common: np.ndarray) -> np.ndarray:
        """Returns a mask of the rows with a target; of classes only those in `common`."""
        raise NotImplementedError

    def problems(self, target: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields the jointly fitted problems: columns of the scores, rows with a target, and their targets."""
        raise NotImplementedError

    def prior(self, target: np.ndarray, is_balanced: bool) -> Any:
        """Returns the scores, one for each column, that fit a problem's targets without any feature."""
        raise NotImplementedError


def names_of(kind: Kind, samples: Iterable[Any]) -> list[str]:
    """Returns the sorted names of classes in the targets of samples."""
    return sorted({name for sample in samples for name in kind.names_in(target_of(sample)) or ()})


class Floats(Kind):
    """Targets that are floats, NaN where unknown."""

    probability_metrics: ClassVar[tuple[str, ...]] = ()

    def checked(self, labels: Tensor, where: str) -> Tensor:
        return labels if labels.is_floating_point() else labels.float()

    def known(self, labels: Tensor) -> Tensor:
        return ~labels.isnan()

    def distance(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of each label in the labels' shape; no label is NaN."""
        raise NotImplementedError

    def loss(self, task: Any, outputs: Any, labels: Tensor) -> Tensor:
        each = self.distance(outputs, labels.nan_to_num())
        return torch.where(self.known(labels), each, 0.0).sum()

    def losses(self, scores: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        each = self.distance(scores.view(target.shape).float(), target.float().nan_to_num())
        return torch.where(target.isnan(), 0.0, each).view(len(target), -1).sum(1)

    def learnable(self, target: np.ndarray, common: np.ndarray) -> np.ndarray:
        return ~np.isnan(target).all(1)

    def problems(self, target: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for column in range(target.shape[1]):
            rows = np.flatnonzero(~np.isnan(target[:, column]))
            yield np.array([column]), rows, target[rows, column]
