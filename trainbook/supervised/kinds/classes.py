"""One class a sample."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lib.errors import BadInput
from trainbook.outputs import result
from trainbook.supervised import chunks, evaluation, prediction, scoring
from trainbook.supervised.kinds.base import MOST_NUMBERS, Kind, names_of
from trainbook.supervised.samples import IGNORED, target_of
from trainbook.supervised.scoring import Judged
from trainbook.supervised.targets import class_counts

_FEWEST_DRAWS = 200
_MOST_COLUMNS = 50  # of classes, in evaluation.csv


class Classes(Kind):
    """Labels (samples) are numbers of classes, IGNORED if unknown; outputs (samples, classes) are logits."""

    name = "classes"
    has_classes = True
    has_names = True
    has_powers = True
    plain: ClassVar[torch.dtype | None] = torch.int64
    scores: ClassVar[tuple[str, ...]] = ("f1",)  # of each class, in evaluation.csv

    # --- samples --------------------------------------------------------------------------------------------------

    def names_in(self, target: Any) -> list[str] | None:
        return [target] if isinstance(target, str) else None

    def numbered(self, names: Sequence[str], numbers: Mapping[str, int]) -> int:
        return numbers[names[0]]

    def placeholder(self, task: Any) -> int:
        return 0

    def class_names(self, samples: Any) -> list[str]:
        if len(samples) and self.names_in(target_of(samples[0])):
            return names_of(self, samples)
        return []

    def is_empty(self, target: Any) -> bool:
        return target is None or (isinstance(target, str) and not target.strip())

    def labels_in(self, target: Any) -> Sequence[Hashable]:
        return [target] if isinstance(target, str | int) else []

    # --- labels and outputs ---------------------------------------------------------------------------------------

    def checked(self, labels: Tensor, where: str) -> Tensor:
        if labels.is_floating_point():
            raise BadInput(
                f"{where} returned labels of {labels.dtype}. Classes are whole numbers; "
                "or set kind = 'numbers', or 'labels' for any number of classes a sample."
            )
        return labels.long()

    def misfit(self, outputs: Tensor, labels: Tensor, width: int) -> str:
        if outputs.shape[:-1] == labels.shape and width > 1:
            return ""
        return "Return the labels' shape and one dimension more at the end: a score for each class."

    def loss(self, task: Any, outputs: Any, labels: Tensor) -> Tensor:
        """Returns () the sum of cross-entropy; a pair (hidden states, head) is scored in chunks."""
        if isinstance(outputs, tuple):
            width = task._width or chunks.width(*outputs)
            hidden, head = outputs
            return chunks.loss(hidden, head, labels, evaluation.weights(task, outputs[0], width))
        weights = evaluation.weights(task, outputs, outputs.shape[-1])
        scores = outputs.flatten(0, -2)
        targets = labels.flatten()
        return F.cross_entropy(scores, targets, weights, ignore_index=IGNORED, reduction="sum")

    def losses(self, scores: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        return F.cross_entropy(scores.float(), target, weights, reduction="none")

    def guess(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def chosen(self, shares: Tensor) -> Tensor:
        """(samples, ..., classes) mean probabilities -> (samples, ...) the classes that are predicted."""
        return shares.argmax(-1)

    def averaged(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)

    def decided(self, mean: Tensor) -> Tensor:
        return self.chosen(mean)

    # --- evaluation -----------------------------------------------------------------------------------------------

    def constant(
        self, train: np.ndarray, number: int, classes: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the commonest class of the training targets."""
        counts = np.bincount(train, minlength=classes)
        shares = np.broadcast_to(counts / counts.sum(), (number, len(counts)))
        return np.full(number, counts.argmax()), shares

    def baselines(self, task: Any, test: Judged) -> dict[str, Judged]:
        if test.counts is None:
            train = task.targets("train")
            largest = int(max(train.max(), test.true.max()))
            classes = max(task._width, largest + 1)
            guess, shares = self.constant(train, len(test.true), classes)
        else:
            commonest = class_counts(task, "train").argmax()
            guess = np.full(len(test.true), commonest)
            shares = None
        rows = {task.constant: test._replace(guess=guess, shares=shares)}
        return {**rows, **evaluation.judged(test, task._guesses)}

    def columns(self, task: Any, judged: Judged) -> dict[str, float]:
        """Returns the F1 of each class, and for tokens the IoU; empty for more than 50 classes."""
        width = judged.width
        if width > _MOST_COLUMNS:
            return {}
        unit = np.zeros(len(judged.true), int)
        sums = scoring.tallied_classes(judged, unit, 1, width)[0]
        classes = np.flatnonzero(sums[1]).tolist()
        by_score = zip(self.scores, scoring.by_class(sums), strict=False)
        return {
            f"{score}_{prediction.named(task, number)}": float(values[number])
            for score, values in by_score
            for number in classes
        }

    def tallied(
        self, metrics: Sequence[Any], rows: Mapping[str, Judged], unit: np.ndarray, units: int
    ) -> np.ndarray | None:
        width = max(judged.width for judged in rows.values())
        if _FEWEST_DRAWS * 3 * len(rows) * width > MOST_NUMBERS:
            return None
        sums = [
            scoring.tallied_classes(judged, unit[judged.sample], units, width)
            for judged in rows.values()
        ]
        return np.stack(sums, 1)

    def from_sums(self, sums: np.ndarray, reference: np.ndarray | None) -> Mapping[str, np.ndarray]:
        return scoring.of_classes(sums, reference)

    def cell(self, task: Any, guess: Any) -> str:
        return prediction.named(task, guess)

    def tables(self, task: Any, answer: Judged, folder: Path) -> str | None:
        names = task._known_names()
        width = max(task._width, len(names))
        return result.write(
            self.name, answer.true, answer.guess, names, width, folder, answer.counts
        )

    # --- prediction -----------------------------------------------------------------------------------------------

    def rows(self, task: Any, mean: Tensor, labels: Tensor) -> list[Mapping[str, Any]]:
        """Returns rows with a class and its probability; the classes of several positions are text or an image.

        Each word of a text has its probability, and an image their mean.
        """
        classes = self.chosen(mean)
        likely = mean.gather(-1, classes[..., None])[..., 0]
        if classes.dim() > 2:
            numbers = np.uint8 if mean.shape[-1] <= 256 else np.uint16
            images = classes.cpu().numpy().astype(numbers)
            shares = likely.flatten(1).mean(1).tolist()
            return [_cells(*row) for row in zip(images, shares, strict=True)]
        if classes.dim() > 1:
            return [
                _cells(_text(task, row[is_known]), _shares(share[is_known]))
                for row, share, is_known in zip(classes, likely, self.known(labels), strict=True)
            ]
        rows = zip(classes.tolist(), likely.tolist(), mean.tolist(), strict=True)
        return [_row(task, *row) for row in rows]

    # --- the simple method ----------------------------------------------------------------------------------------

    def rows_seen(self, labels: Tensor) -> Tensor:
        return labels.flatten()

    def learnable(self, target: np.ndarray, common: np.ndarray) -> np.ndarray:
        return np.isin(target, common)

    def problems(self, target: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields all classes together."""
        yield np.unique(target), np.arange(len(target)), target

    def prior(self, target: np.ndarray, is_balanced: bool) -> Any:
        if is_balanced:
            return 0
        _, counts = np.unique(target, return_counts=True)
        return np.log(counts / max(1, len(target)))


def _text(task: Any, classes: Tensor) -> str:
    return " ".join(prediction.named(task, number) for number in classes.tolist())


def _shares(likely: Tensor) -> str:
    return " ".join(f"{share:.4f}" for share in likely.tolist())


def _cells(prediction: Any, probability: Any) -> dict[str, Any]:
    return {"prediction": prediction, "probability": probability}


def _row(task: Any, number: int, share: float, shares: Sequence[float]) -> dict[str, Any]:
    return {
        "prediction": prediction.named(task, number),
        "probability": round(share, 6),
        **prediction.class_shares(task, shares),
    }
