"""Scores outputs by losses and metrics of a whole set. Each `task` is a `Supervised`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.report.progress import counted
from lib.task import Batch, Task
from trainbook.supervised import calibration, chunks, gate, scoring, simple
from trainbook.supervised.samples import MOST_CLASSES
from trainbook.supervised.scoring import Judged
from trainbook.supervised.targets import class_counts

_A_BATCH = 1000  # words or pixels of a batch whose probabilities are looked at
_A_TEST = 20_000  # and of a test


class Scored(NamedTuple):
    """Losses and metrics by name, the answers of each method, the task's answer last, and a sentence on it.

    `promised` are targets with calibrated probabilities of the task's answer, if it has some.
    """

    scores: dict[str, float]
    rows: Mapping[str, Judged]
    about: str = ""
    promised: Judged | None = None


class _Watched(dict[str, Tensor]):
    """A batch of an evaluation. It has the outputs once they are computed, which losses and metrics need."""

    model: nn.Module | None = None
    outputs: Any = None


class _Answered(NamedTuple):
    """What a batch adds: sample, truth, guess and perhaps number of known targets; and (targets, ...) scores."""

    columns: list[np.ndarray]
    scores: Tensor


def outputs_of(task: Any, model: nn.Module, batch: Batch) -> Any:
    """Returns the task's `outputs` of a batch without the simple method's scores; in an evaluation once a batch."""
    if isinstance(batch, _Watched) and batch.model is model:
        return batch.outputs
    inputs = {name: value for name, value in batch.items() if name != simple.KEY}
    outputs = task.outputs(model, inputs)
    if isinstance(batch, _Watched):
        batch.model = model
        batch.outputs = outputs
    return outputs


def weights(task: Any, outputs: Tensor, classes: int) -> Tensor | None:
    """Returns (classes) the weights of a task with `balanced`, on the device of outputs; None for another."""
    if not task.balanced:
        return None
    if outputs.is_meta:  # in a plan, which is made without data
        return torch.ones(classes, device=outputs.device)
    each = scoring.balanced(class_counts(task, "train"), classes)
    return torch.from_numpy(each).to(outputs.device)


@torch.no_grad()
def evaluate(task: Any, model: nn.Module, loader: Any) -> Scored:
    """Returns losses and metrics, the answers of each method of `combined`, and a sentence on the gate, if any.

    Raises BadInput if no target is known.
    """
    answered = list[_Answered]()
    starts = list[Tensor]()
    has_many = task._kind.has_positions and calibration.is_for(task)
    few = list[_Answered]()

    def watched() -> Iterator[Batch]:
        number = 0  # of the batch's first sample
        for plain in loader:
            batch = _Watched(plain)
            yield batch  # its losses are computed now, and their outputs used again
            outputs, labels = task.matched(outputs_of(task, model, batch), batch["labels"])
            answered.append(_answered(task, number, outputs, labels, task._combines))
            if task._starts:
                start = simple.shaped(batch[simple.KEY], outputs)
                starts.append(_of_known(task, labels, start))
            elif has_many and isinstance(outputs, Tensor):
                few.append(_thinned(_answered(task, number, outputs, labels, True), _A_BATCH))

            number += len(labels)

    losses = Task.evaluate(task, model, watched())
    network, scores = _joined(task, answered)
    part = part_of(loader)
    answers: Mapping[str, Any] = {}
    about = ""
    if task._starts:
        answers = _started(task, model, scores, torch.cat(starts), network, part)
        about = gate.about(task, model)
    elif task._combines:
        answers = task.combined(model, scores, part)
    elif calibration.is_for(task) and len(scores):
        answers = {"network": scores}
    rows = {} if answers else {"network": network}
    for name, each in answers.items():
        rows[name] = _judged_by(task, model, name, torch.as_tensor(each), network, part)
    *_, last = rows.values()
    promised = last if calibration.is_for(task) else None
    if has_many and task._starts:
        of_answer = _Answered([last.sample, last.true, last.guess], answers["answer"])
        few = [_thinned(of_answer, _A_TEST)]
    if few:
        promised = _promised(task, model, few, part)
    found = {**losses, **scoring.scores(task.metrics, last)}
    if task._starts:
        of_network = scoring.scores(task.metrics, rows["network"])
        found |= {f"network_{name}": value for name, value in of_network.items()}
    return Scored(found, rows, about, promised)


def _started(
    task: Any, model: nn.Module, scores: Tensor, start: Tensor, network: Judged, part: str
) -> dict[str, Tensor]:
    """Returns the scores of the network and of the answer, which the gate lets through; a validation sets it."""
    if part == "validation":
        gate.open_by(task, model, scores, start, network)
        _judged_by(task, model, "simple", start, network, part)
    return {"network": scores, "answer": simple.gated(model, scores, start)}


def _judged_by(
    task: Any, model: nn.Module, name: str, scores: Tensor, network: Judged, part: str
) -> Judged:
    """Returns an answer by its scores, under its power, which a validation sets."""
    return guessed(task, _powered(task, model, name, scores, network, part), network)


def _powered(
    task: Any, model: nn.Module, name: str, scores: Tensor, judged: Judged, part: str
) -> Tensor:
    """Returns scores under the power of an answer, which a validation sets; unchanged without one."""
    if not calibration.has_powers(model) or name not in calibration.ANSWERS:
        return scores
    if part == "validation":
        calibration.keep(model, name, calibration.fitted(task._kind, scores, judged.true))
    return calibration.power_of(model, name) * scores


def _promised(task: Any, model: nn.Module, few: Sequence[_Answered], part: str) -> Judged:
    """Returns some words or pixels with the probabilities of the task's answer."""
    name = "answer" if task._starts else "network"
    some, scores = _joined(task, few)
    scores = _powered(task, model, name, scores, some, part)
    return some._replace(shares=task._kind.averaged(scores).numpy())


def _thinned(answered: _Answered, most: int) -> _Answered:
    """Returns at most this number of targets, evenly."""
    every = max(1, -(-len(answered.scores) // most))
    columns = [column[::every] for column in answered.columns]
    return _Answered(columns, answered.scores[::every])


def part_of(loader: Any) -> str:
    """Returns the part of the samples that a loader is of; "" for other batches."""
    part = getattr(loader, "dataset", None)
    return getattr(part, "name", "")


def simple_rows(task: Any) -> dict[str, Judged]:
    """Returns each simple method's answers, as `baselines` of a task; `{**super().baselines(), ...}` adds to it."""
    methods = [method for method in task._simples if not method.is_constant]
    methods = [*_answering(task, methods)]
    part = task.parts["test"]
    width = 0
    if task._kind.has_classes:
        width = max(task._width, len(class_counts(task, "test")))
    answered: dict[str, list[_Answered]] = {method.name: [] for method in methods}
    firsts: Iterable[int] = range(0, len(part) if methods else 0, simple.AT_ONCE)
    if any(method.columns.is_encoded for method in methods):
        firsts = counted(firsts, "Encoding test samples")
    for first in firsts:
        places = range(first, min(first + simple.AT_ONCE, len(part)))
        batch = task.labelled([part[place].sample for place in places])
        for method in methods:
            scores = method.scores(task, batch)
            outputs = torch.empty(*scores.shape[:-1], max(width, scores.shape[-1]))
            scores = simple.shaped(scores, outputs)
            matched = task.matched(scores, batch["labels"])
            answered[method.name].append(_answered(task, first, *matched))
    return {name: _joined(task, batches)[0] for name, batches in answered.items()}


def _answering(task: Any, methods: Sequence[Any]) -> Iterator[Any]:
    """Yields the methods that can answer. Prints which has no row; raises BadInput if that is the strongest."""
    for method in methods:
        try:
            method.check(task)
        except BadInput as error:
            if method is task._simple:
                raise
            print(f"{method.name!r} has no row. {error}")
            continue
        yield method


def _answered(
    task: Any, number: int, outputs: Any, labels: Tensor, has_scores: bool = False
) -> _Answered:
    """Returns the answers to a batch whose first sample is `number`; tokens are counted by pair."""
    kind = task._kind
    sample = torch.arange(number, number + len(labels), device=labels.device)
    sample = sample.view(-1, *[1] * (labels.dim() - 1)).expand_as(labels)
    if type(outputs) is tuple:
        hidden, head = outputs
        guess = chunks.guesses(hidden, head, labels)
    else:
        guess = kind.guess(outputs)
    columns = [kind.judged(labels, values) for values in (sample, labels, guess)]
    if kind.has_positions and scoring.can_weigh(task.metrics) and not has_scores:
        columns = _counted(columns, task._width)
    elif columns[0].dim() > 1:
        columns[0] = columns[0][:, 0]
    scores = torch.zeros(0)
    if has_scores or _has_shares(task, outputs):
        scores = _of_known(task, labels, outputs)
    return _Answered([column.cpu().numpy() for column in columns], scores)


def _counted(columns: Sequence[Tensor], classes: int) -> list[Tensor]:
    """Returns each different triple of (targets) sample, truth and guess once, and how often it came."""
    sample, true, guess = columns
    keys = (sample * classes + true) * classes + guess
    pairs, counts = keys.unique(return_counts=True)
    return [pairs // classes**2, pairs // classes % classes, pairs % classes, counts]


def _joined(task: Any, answered: Sequence[_Answered]) -> tuple[Judged, Tensor]:
    """Joins the answers of all batches, and (targets, ...) their scores. Raises BadInput without a target."""
    if not sum(len(batch.columns[0]) for batch in answered):
        raise BadInput(f"{type(task).__name__}.evaluate found no target: all labels are unknown.")
    columns = zip(*(batch.columns for batch in answered), strict=True)
    sample, true, guess, *counts = (np.concatenate(column) for column in columns)
    scores = torch.cat([batch.scores for batch in answered])
    number = counts[0] if counts else None
    return Judged(true, guess, number, _shares(task, scores), sample), scores


def _of_known(task: Any, labels: Tensor, values: Any) -> Tensor:
    """Returns (targets, ...) the scores for known labels, on the CPU."""
    kind = task._kind
    if not isinstance(values, tuple):
        return kind.of_known(labels, values).cpu()
    hidden, head = values
    return chunks.logits(hidden[kind.known(labels)], head).cpu()


def _has_shares(task: Any, outputs: Any) -> bool:
    """Returns whether a metric or answers.csv needs probabilities."""
    if scoring.needs_probabilities(task.metrics):
        return True
    has_few = task._kind.has_names and outputs.shape[-1] <= MOST_CLASSES
    return has_few and not task._has_own_scores  # which are not logits


def _shares(task: Any, scores: Tensor) -> np.ndarray | None:
    """Returns (targets, classes) probabilities, if a metric or answers.csv needs them."""
    if not _has_shares(task, scores):
        return None
    return task._kind.averaged(scores).numpy()


def guessed(task: Any, scores: Tensor, judged: Judged) -> Judged:
    """Returns the answer by (targets, classes) scores, for the targets of `judged`."""
    guess = task._kind.guess(scores).numpy()
    return Judged(judged.true, guess, None, _shares(task, scores), judged.sample)


def judged(test: Judged, guesses: Mapping[str, Any]) -> dict[str, Judged]:
    """Returns guesses for the targets of `test` by method. `Judged` ones stay, if need be with its samples."""
    rows = {}
    for name, values in guesses.items():
        row = values
        if not isinstance(values, Judged):
            row = test._replace(guess=np.asarray(values), shares=None)
        rows[name] = row if len(row.sample) == len(row.true) else row._replace(sample=test.sample)
    return rows
