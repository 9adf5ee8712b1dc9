"""Scores outputs by losses and metrics of a whole set, and finds a part's targets. Each `task` is a `Supervised`."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.report.progress import working
from lib.supervised import chunks, scoring
from lib.supervised.parts import Part
from lib.supervised.samples import IGNORED, target_of
from lib.task import Batch, Task

_FLOATS = ("numbers", "labels")  # kinds whose labels are floats
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
def evaluate(task: Any, model: nn.Module, loader: Any) -> tuple[dict[str, float], dict[str, scoring.Judged]]:
    """Returns losses as every task has them with the task's metrics, and what each method of `combined` answers.

    Millions of tokens or pixels are counted by how often each class was taken for each in a sample. Raises BadInput.
    """
    is_counted = task.kind in ("tokens", "next_tokens") and scoring.can_weigh(task.metrics)
    needs_shares = scoring.needs_probabilities(task.metrics)
    by_batch: list[tuple[np.ndarray, ...]] = []
    whole: list[Tensor] = []  # outputs, where something needs more than guesses
    number = 0  # of the batch's first sample

    def watched() -> Iterator[Batch]:
        nonlocal number
        for batch in loader:
            yield batch  # whoever iterates computes its losses now, and the outputs that these have are used again
            outputs, labels = task.matched(task.passed(model, batch), batch["labels"])
            samples = torch.arange(number, number + len(labels), device=labels.device)
            samples = samples.view(-1, *[1] * (labels.dim() - 1)).expand_as(labels)
            number += len(labels)
            guesses = chunks.guesses(*outputs, labels) if type(outputs) is tuple else _guesses(task.kind, outputs)
            columns = [task.judged(labels, values) for values in (samples, labels, guesses)]
            columns[0] = columns[0] if columns[0].dim() == 1 else columns[0][:, 0]
            columns = _pairs(*columns, task.width) if is_counted else columns
            by_batch.append(tuple(column.cpu().numpy() for column in columns))
            if task.combines or needs_shares:
                whole.append(_known(task, outputs, labels).cpu())

    losses = Task.evaluate(task, model, watched())
    if not sum(len(rows[0]) for rows in by_batch):
        raise BadInput(f"{type(task).__name__}.evaluate found no target: all labels are unknown.")
    sample, true, guess, *counts = (np.concatenate(column) for column in zip(*by_batch, strict=True))
    scores = torch.cat(whole) if whole else torch.zeros(0)
    shares = (scores.sigmoid() if task.kind == "labels" else scores.softmax(-1)).numpy() if needs_shares else None
    network = scoring.Judged(true, guess, counts[0] if counts else None, shares, sample)
    rows = {"network": network}
    if task.combines:
        answers = task.combined(model, scores, getattr(getattr(loader, "dataset", None), "name", ""))
        guesses = {name: _guesses(task.kind, torch.as_tensor(of)).numpy() for name, of in answers.items()}
        rows = {name: network._replace(guess=of) for name, of in guesses.items()}
    return {**losses, **scoring.scores(task.metrics, [*rows.values()][-1])}, rows


def _known(task: Any, outputs: Any, labels: Tensor) -> Tensor:
    """Returns the outputs for known labels, (targets, classes) or (samples, classes) of marks."""
    known = task.known(labels)
    if isinstance(outputs, tuple):
        return chunks.logits(outputs[0][known], outputs[1])
    return outputs[known.all(1) if task.kind == "labels" else known]


def _guesses(kind: str, outputs: Tensor) -> Tensor:
    return outputs if kind == "numbers" else outputs > 0 if kind == "labels" else outputs.argmax(-1)


def _pairs(sample: Tensor, true: Tensor, guess: Tensor, classes: int) -> list[Tensor]:
    """Returns samples, truths and guesses, each once, and how often they came, of (targets,) each."""
    numbers, counts = ((sample * classes + true) * classes + guess).unique(return_counts=True)
    return [numbers // classes**2, numbers // classes % classes, numbers % classes, counts]


def tested(task: Any) -> scoring.Judged:
    """Returns the targets of the test set as if each were guessed rightly; tokens by how often each class comes."""
    if task.kind in ("tokens", "next_tokens") and scoring.can_weigh(task.metrics):
        counts = task.class_counts("test")
        (true,) = counts.nonzero()
        return scoring.Judged(true, true, counts[true])
    true = task.targets("test")
    return scoring.Judged(true, true)


def baselines(task: Any, test: scoring.Judged, classes: int) -> dict[str, scoring.Judged]:
    """Returns what always guessing the commonest class, or the mean, of the training answers, and the task's own."""
    shares, guess = None, np.zeros(0)
    if test.counts is not None:
        guess = np.full(len(test.true), task.class_counts("train").argmax())
    elif task.kind != "text":  # whose `guesses` have it
        train = task.targets("train")
        classes = 0 if task.kind in _FLOATS else max(classes, int(max(train.max(), test.true.max())) + 1)
        guess, shares = scoring.constant(task.kind, train, len(test.true), classes)
    rows = {} if task.kind == "text" else {task.constant: test._replace(guess=guess, shares=shares)}
    return {**rows, **judged(test, task.guesses)}


def judged(test: scoring.Judged, guesses: Mapping[str, Any]) -> dict[str, scoring.Judged]:
    """Returns guesses by method beside the targets of a test."""
    return {
        name: each if isinstance(each, scoring.Judged) else test._replace(guess=np.asarray(each), shares=None)
        for name, each in guesses.items()
    }


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
