"""A text a sample, which a model writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from trainbook.supervised import evaluation, text
from trainbook.supervised.kinds.classes import Classes
from trainbook.supervised.scoring import Judged


class Text(Classes):
    """Labels (samples, tokens) are the tokens of the text, IGNORED for padding; the task's `write` returns texts."""

    name = "text"
    metrics = ("exact", "token_f1")
    has_names = False
    is_generated = True
    has_simple = False
    plain: ClassVar[torch.dtype | None] = None

    def metric(self, metric: Any) -> Any:
        return metric if isinstance(metric, text.Mean) else text.Mean(metric)

    def names_in(self, target: Any) -> list[str] | None:
        return None

    def class_names(self, samples: Any) -> list[str]:
        return []

    def is_empty(self, target: Any) -> bool:
        return target is None

    def labels_in(self, target: Any) -> Sequence[Any]:
        return []

    def evaluate(self, task: Any, model: nn.Module, loader: Any) -> evaluation.Scored:
        scores, judged = text.evaluate(task, model, loader)
        return evaluation.Scored({**scores, **task.columns(judged)}, {"network": judged})

    def targets(self, task: Any, part: str) -> np.ndarray:
        return text.targets(task.parts[part])

    def baselines(self, task: Any, test: Judged) -> dict[str, Judged]:
        return evaluation.judged(test, task._guesses)  # with the commonest text

    def guesses(self, task: Any) -> dict[str, Any]:
        """Returns the commonest training text, and the answers of the task's `baselines`."""
        commonest = text.commonest(text.targets(task.parts["train"]))
        return {task.constant: [commonest] * len(task.parts["test"]), **task.baselines()}

    def columns(self, task: Any, judged: Judged) -> dict[str, float]:
        return {}

    def tallied(
        self, metrics: Sequence[Any], rows: Mapping[str, Judged], unit: np.ndarray, units: int
    ) -> np.ndarray | None:
        """Returns (units, methods, 1 + metrics) the number of samples, and the sum of each score."""
        sums = np.zeros((units, len(rows), 1 + len(metrics)))
        for place, (true, guess, *_) in enumerate(rows.values()):
            scores = [metric.each(true, guess) for metric in metrics]
            each = np.array([np.ones(len(unit)), *scores]).T  # (samples, 1 + metrics)
            np.add.at(sums[:, place], unit, each)
        return sums

    def measured(
        self, metrics: Sequence[Any], sums: np.ndarray, reference: np.ndarray | None = None
    ) -> np.ndarray:
        return sums[..., 1:] / sums[..., :1]

    def cell(self, task: Any, guess: Any) -> Any:
        return guess

    def tables(self, task: Any, answer: Judged, folder: Path) -> None:
        return None

    def answers(
        self, task: Any, models: list[nn.Module], samples: list[Any]
    ) -> list[Mapping[str, Any]]:
        """Returns the likeliest text of each sample.

        It has its probability if the task has `candidates` of its own; of several models that have none it has the
        share of those that wrote it.
        """
        rows = text.together(task, models, samples)
        best = [max(shares.items(), key=lambda pair: pair[1]) for shares in rows]
        if not task._has_candidates and len(models) == 1:
            return [{"prediction": written} for written, _ in best]
        column = "probability" if task._has_candidates else "share of models"
        return [{"prediction": written, column: round(share, 6)} for written, share in best]
