"""Scores outputs by losses and metrics of a whole set, and finds a part's targets. Each `task` is a `Supervised`."""

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.report.progress import working
from lib.supervised import scoring
from lib.supervised.parts import Part
from lib.supervised.samples import IGNORED, target_of
from lib.task import Batch, Task

_MOST_PAIRS = 2**20  # of classes, up to which they are counted by their number and not sorted
_AT_ONCE = 64  # samples that are batched to look at their targets
_TRIED = 16  # samples whose target is compared with its label


def outputs(model: nn.Module, batch: Batch, task: str) -> Tensor:
    """Returns a model's answer to a batch without its labels, by name if `forward` has the names of the tensors.

    `task` is the name of its class. Raises BadInput where `forward` has some of the names, and for no tensor.
    """
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if takes_any else [name for name in inputs if name not in parameters]
    if unknown and len(unknown) < len(inputs):
        takes = f"forward of {type(model).__name__} takes {', '.join(parameters)}: {unknown[0]!r} is none of these"
        advice = f"Give the tensors these names, or write outputs(model, batch) in {task}."
        raise BadInput(f"{task}.batch has {', '.join(map(repr, inputs))}, and {takes}. {advice}")
    answer = model(*inputs.values()) if unknown else model(**inputs)
    answer = getattr(answer, "logits", answer)
    if not isinstance(answer, Tensor):
        what = f"The model returned a {type(answer).__name__} without `logits`."
        raise BadInput(f"{what} Write outputs(model, batch) in {task}, which returns a tensor.")
    return answer


@torch.no_grad()
def evaluate(task: Any, model: nn.Module, loader: Iterable[Batch]) -> tuple[dict[str, float], scoring.Judged]:
    """Returns losses as every task has them, with the task's metrics, and what they are of. Raises BadInput.

    Millions of tokens or pixels are counted by how often each class was taken for each.
    """
    is_counted = task.kind in ("tokens", "next_tokens") and scoring.can_weigh(task.metrics)
    true: list[Tensor] = []
    guess: list[Tensor] = []
    shares: list[Tensor] = []
    pairs: Counter[tuple[int, int]] = Counter()

    def watched() -> Iterator[Batch]:
        for batch in loader:
            yield batch  # whoever iterates computes its losses now, and the outputs that these have are used again
            outputs, labels = task.matched(task.passed(model, batch), batch["labels"])
            answers = (
                outputs if task.kind == "numbers" else outputs > 0 if task.kind == "labels" else outputs.argmax(-1)
            )
            truths, guesses = task.judged(labels), task.judged(labels, answers)
            if is_counted:
                pairs.update(_pairs(truths, guesses, outputs.shape[-1]))
                continue
            true.append(truths.cpu())
            guess.append(guesses.cpu())
            if scoring.needs_probabilities(task.metrics):
                known = task.known(labels)
                by_label = task.kind == "labels"
                shares.append((outputs[known.all(1)].sigmoid() if by_label else outputs[known].softmax(-1)).cpu())

    losses = Task.evaluate(task, model, watched())
    if not (pairs or sum(map(len, true))):
        raise BadInput(f"{type(task).__name__}.evaluate found no target: all labels are unknown.")
    if is_counted:
        truths, guesses = np.array(sorted(pairs)).T
        judged = scoring.Judged(truths, guesses, np.array([pairs[pair] for pair in sorted(pairs)]))
    else:
        probabilities = torch.cat(shares).numpy() if shares else None
        judged = scoring.Judged(torch.cat(true).numpy(), torch.cat(guess).numpy(), shares=probabilities)
    return {**losses, **scoring.scores(task.metrics, judged)}, judged


def _pairs(true: Tensor, guess: Tensor, classes: int) -> dict[tuple[int, int], int]:
    """Counts how often each class was taken for each, of (targets,) truths and guesses."""
    number = true.long() * classes + guess.long()
    if classes**2 <= _MOST_PAIRS:
        counts = torch.bincount(number)
        numbers = counts.nonzero()[:, 0]
        counts = counts[numbers]
    else:
        numbers, counts = number.unique(return_counts=True)
    return {divmod(pair, classes): count for pair, count in zip(numbers.tolist(), counts.tolist(), strict=True)}


def baseline(task: Any, classes: int) -> dict[str, float]:
    """Returns the metrics on the test set of always guessing the commonest class, or the mean, of the training."""
    if task.kind in ("tokens", "next_tokens") and scoring.can_weigh(task.metrics):
        counts, commonest = task.class_counts("test"), task.class_counts("train").argmax()
        (true,) = counts.nonzero()
        return scoring.scores(task.metrics, scoring.Judged(true, np.full(len(true), commonest), counts[true]))
    train, true = task.targets("train"), task.targets("test")
    classes = 0 if task.kind in ("numbers", "labels") else max(classes, int(max(train.max(), true.max())) + 1)
    guess, shares = scoring.constant(task.kind, train, len(true), classes)
    return scoring.scores(task.metrics, scoring.Judged(true, guess, shares=shares))


def class_counts(task: Any, part: Part) -> np.ndarray:
    """Returns how often each class is a target, (classes); of the targets no more than a batch is held at once."""
    counts = np.zeros(0, np.int64)
    for labels in targets(task, part):
        more = np.bincount(labels, minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    return counts


def targets(task: Any, part: Part) -> Iterator[np.ndarray]:
    """Yields known targets: (targets,), or (samples, numbers).

    Where samples have their labels as numbers, tried on some, nothing is decoded for it.
    """

    def plain(indices: Iterable[int]) -> np.ndarray | None:
        numbers = [target_of(part[index].sample) for index in indices]
        if task.kind not in ("classes", "numbers") or not all(isinstance(n, int | float | np.number) for n in numbers):
            return None
        values = np.array(numbers, dtype=np.float32 if task.kind == "numbers" else np.int64)
        return values[~np.isnan(values) if task.kind == "numbers" else values != IGNORED]

    def batched(indices: Sequence[int]) -> Iterator[np.ndarray]:
        for first in range(0, len(indices), _AT_ONCE):
            labels = task.labelled([part[index].sample for index in indices[first : first + _AT_ONCE]])["labels"]
            yield task.judged(task.placed(labels)).numpy()

    tried = sorted({round(index) for index in np.linspace(0, len(part) - 1, _TRIED)})
    some = plain(tried)
    if some is not None and np.array_equal(some, np.concatenate([*batched(tried)])):
        every = plain(range(len(part)))
        if every is not None:
            yield every
            return
    with working(f"Looking at the targets of {part.name}"):
        yield from batched(range(len(part)))
