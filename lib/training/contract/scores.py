"""Checks of what comes after steps: evaluation on both sets, selection, the trivial baseline."""

import math
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from lib.errors import BadInput
from lib.report.progress import working
from lib.task import Batch, Task, checked_numbers, checked_scores
from lib.training.contract.asked import Asked, fetch
from lib.training.contract.sentences import asking
from lib.training.data import check_samples, to_device
from lib.training.draws import put_back, seeded_draws
from lib.training.evaluation import EvaluationLoader
from lib.training.order import EVALUATE, mix

_PATIENCE = 20.0  # seconds of evaluating a whole set, where two batches alone raise an error


class _Few(EvaluationLoader):
    """Two batches of a data set, the second no larger than the last one of the set."""

    def __init__(self, asked: Asked, split: str):
        super().__init__(asked.task, asked.sets[split], asked.size, asked.device)
        self.asked, self.split = asked, split
        whole = min(asked.size, len(self.dataset))
        last = len(self.dataset) % asked.collated or asked.collated
        rest = min(asked.size, last, len(self.dataset) - whole)
        self.parts = [range(whole), *([range(whole, whole + rest)] if rest else [])]

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Batch]:
        for indices in self.parts:
            batch = fetch(self.asked, self.dataset, indices, mix(EVALUATE, 0, indices.start), self.split).batch
            check_samples(batch)
            yield to_device(batch, self.device)


def evaluated(asked: Asked, model: nn.Module) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Returns the scores of two batches of validation and test, and what is wrong with the evaluation."""
    scores: dict[str, dict[str, float]] = {}
    wrong: list[str] = []
    for split in ("validation", "test"):
        try:
            if found := _scored(asked, model, split):
                scores[split] = found
        except BadInput as error:
            wrong.append(str(error))
    wrong += _side_effects(asked, model)
    known = {name for found in scores.values() for name in found}
    if known and (unknown := [name for name in asked.task.shown if name not in known]):
        asked.doubts.append(
            f"{asked.name}.shown names {unknown[0]!r}, which evaluate() does not return: no plot shows it."
        )
    for split, found in scores.items():
        if asked.task.selection[0] in found and not math.isfinite(found[asked.task.selection[0]]):
            asked.doubts.append(
                f"{asked.name}.evaluate() gives {found[asked.task.selection[0]]} as {asked.task.selection[0]!r} of two "
                f"batches of {split}. Unless these are too few samples for it, no weights would ever be the best."
            )
    return scores, wrong


def _scored(asked: Asked, model: nn.Module, split: str) -> dict[str, float]:
    """Evaluates two batches, and where these raise an error the whole set, of which a task may need all.

    Where that would take long the error is a doubt.
    """
    begin = time.monotonic()
    try:
        return _evaluate(asked, model, _Few(asked, split), split)
    except BadInput as error:
        whole = EvaluationLoader(asked.task, asked.sets[split], asked.collated, asked.device, asked.config.seed)
        if error.__cause__ is None:
            raise
        if len(whole) * (time.monotonic() - begin) > _PATIENCE:
            asked.doubts.append(f"{error} Two batches were evaluated alone; the whole set would have taken long.")
            return {}
        return _evaluate(asked, model, whole, split)


def _evaluate(asked: Asked, model: nn.Module, loader: Any, split: str) -> dict[str, float]:
    model.eval()
    with put_back(), torch.inference_mode(), asking(f"{asked.name}.evaluate() of {split} samples"):
        returned = asked.task.evaluate(model, loader)
    return checked_scores(asked.task, returned)


def _side_effects(asked: Asked, model: nn.Module) -> list[str]:
    """Returns what an evaluation has done to the model."""
    if any(module.training for module in model.modules()):
        model.eval()
        return [
            f"{asked.name}.evaluate() leaves the model in training mode. It is handed in evaluation mode, and must "
            "stay so, or dropout and batch statistics change the scores: take out model.train()."
        ]
    return []


_baselines: "weakref.WeakKeyDictionary[Task, dict[str, float]]" = weakref.WeakKeyDictionary()


def baseline_of(task: Task) -> dict[str, float]:
    """Returns the trivial baseline's metrics, computed once for a task: that may take minutes, which are shown."""
    if task not in _baselines:
        # what it draws is the same each time
        with working("Scoring the trivial baseline"), seeded_draws(mix(EVALUATE, task.config.seed)):
            _baselines[task] = checked_numbers(task, "baseline", task.baseline())
    return dict(_baselines[task])


def known_baseline(task: Task) -> dict[str, float]:
    """Returns the trivial baseline's metrics where they were computed before in this process, none where not."""
    return dict(_baselines.get(task, {}))


def baseline(asked: Asked, scores: dict[str, dict[str, float]]) -> Iterator[str]:
    """Checks that the trivial baseline can be computed, and has only metrics that `evaluate` returns."""
    name = f"{asked.name}.baseline()"
    with put_back(), asking(name):
        numbers = baseline_of(asked.task)
    known = scores.get("test") or scores.get("validation")
    if known and (unknown := sorted(set(numbers) - set(known))):
        yield (
            f"{name} has {', '.join(map(repr, unknown))}, which evaluate() does not return. Give the metrics of "
            f"evaluate(): {', '.join(map(repr, known))}."
        )
