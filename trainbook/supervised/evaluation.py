"""Scores outputs by losses and metrics of a whole set, and opens the gate. Each `task` is a `Supervised`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.errors import BadInput
from lib.task import Batch, Task
from trainbook.supervised import chunks, scoring, simple
from trainbook.supervised.intervals import least
from trainbook.supervised.samples import MOST_CLASSES
from trainbook.supervised.scoring import Judged
from trainbook.supervised.targets import class_counts

_GATES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
_MOST_ROWS = 20_000  # that calibrate an answer
_SURE = 0.995  # on one side: every validation asks
_MOST_UNITS = 100  # of validation: of more units several are one


class Scored(NamedTuple):
    """Losses and metrics by name, the answers of each method, the last of which counts, and a sentence on that one."""

    scores: dict[str, float]
    rows: Mapping[str, Judged]
    about: str = ""


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
    if outputs.is_meta:  # of a plan, which is made where there is no data
        return torch.ones(classes, device=outputs.device)
    each = scoring.balanced(class_counts(task, "train"), classes)
    return torch.from_numpy(each).to(outputs.device)


@torch.no_grad()
def evaluate(task: Any, model: nn.Module, loader: Any) -> Scored:
    """Returns losses and metrics, what each method of `combined` answers, and a sentence on the gate, if any.

    Raises BadInput if no target is known.
    """
    answered = list[_Answered]()
    starts = list[Tensor]()

    def watched() -> Iterator[Batch]:
        number = 0  # of the batch's first sample
        for plain in loader:
            batch = _Watched(plain)
            yield batch  # its losses are computed now, and their outputs used again
            outputs, labels = task.matched(outputs_of(task, model, batch), batch["labels"])
            answered.append(_answered(task, number, outputs, labels, task._combines))
            number += len(labels)
            if task._starts:
                start = simple.shaped(batch[simple.KEY], outputs)
                starts.append(_of_known(task, labels, start))

    losses = Task.evaluate(task, model, watched())
    network, scores = _joined(task, answered)
    rows = {"network": network}
    about = ""
    if task._starts:
        answer, about = _gated(task, model, scores, torch.cat(starts), network, part_of(loader))
        rows = {"network": guessed(task, scores, network), "answer": guessed(task, answer, network)}
    elif task._combines:
        answers = task.combined(model, scores, part_of(loader))
        rows = {
            name: guessed(task, torch.as_tensor(each), network) for name, each in answers.items()
        }
    *_, last = rows.values()
    return Scored({**losses, **scoring.scores(task.metrics, last)}, rows, about)


def part_of(loader: Any) -> str:
    """Returns the part of the samples that a loader is of; "" for other batches."""
    part = getattr(loader, "dataset", None)
    return getattr(part, "name", "")


def simple_rows(task: Any) -> dict[str, Judged]:
    """Returns what each simple method answers, as `baselines` of a task; `{**super().baselines(), ...}` adds to it."""
    methods = [method for method in task._simples if not method.is_constant]
    part = task.parts["test"]
    width = 0
    if task._kind.has_classes:
        width = max(task._width, len(class_counts(task, "test")))
    answered: dict[str, list[_Answered]] = {method.name: [] for method in methods}
    for first in range(0, len(part) if methods else 0, simple.AT_ONCE):
        places = range(first, min(first + simple.AT_ONCE, len(part)))
        batch = task.labelled([part[place].sample for place in places])
        for method in methods:
            scores = method.scores(task, batch)
            outputs = torch.empty(*scores.shape[:-1], max(width, scores.shape[-1]))
            scores = simple.shaped(scores, outputs)
            matched = task.matched(scores, batch["labels"])
            answered[method.name].append(_answered(task, first, *matched))
    return {name: _joined(task, batches)[0] for name, batches in answered.items()}


def _answered(
    task: Any, number: int, outputs: Any, labels: Tensor, has_scores: bool = False
) -> _Answered:
    """Returns what a batch whose first sample is `number` adds; of tokens how often each pair came."""
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
    """Returns the answers of all batches together, and (targets, ...) their scores. Raises BadInput for none."""
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
    return has_few and not task._has_own_scores  # which are no logits


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


def _gated(
    task: Any, model: nn.Module, scores: Tensor, start: Tensor, network: Judged, part: str
) -> tuple[Tensor, str]:
    """Returns the scores that the gate lets through, and a sentence on it; a validation sets the gate."""
    if part == "validation":
        model.get_buffer(simple.GATE).fill_(_opened(task, scores, start, network))
    name = task._simple.name
    gate = float(model.get_buffer(simple.GATE))
    about = f"The gate is shut: validation shows no sure gain, so {name!r} alone answers."
    if gate:
        about = (
            f"The gate is open by {gate:g}: the answer is that share of the network, "
            f"and {name!r} for the rest."
        )
    return simple.gated(model, scores, start), about


def _opened(task: Any, scores: Tensor, start: Tensor, network: Judged) -> float:
    """Returns 1 if the network is surely better than the simple method, else the best sure share, else 0.

    Better: with less loss, and no worse by the metric of `selection`; or by that metric, if it follows from sums, and
    with less loss once both are calibrated: any answer but the commonest gains macro F1 where nothing is learned.
    Surely: the lower end of the paired interval over validation's groups is above 0.
    """
    unit, units = _units(task, network)
    if units < 2:
        return 0.0
    answers = [start + gate * (scores - start) for gate in _GATES]
    rows = {
        str(gate): guessed(task, answer, network)
        for gate, answer in zip(_GATES, answers, strict=True)
    }
    by_metric = _of_metric(task, rows, unit, units)
    by_loss = _of_loss(task, answers, network, unit, units)
    alone = rows["0.0"]
    is_worse = [task._strongest({"both": row, "alone": alone}) == "alone" for row in rows.values()]
    by_loss[:, is_worse] = 0
    if task._kind.has_classes:
        true = torch.from_numpy(network.true)
        calibrated = [_calibrated(answer, true) for answer in answers]
        known = _of_loss(task, calibrated, network, unit, units)
        by_metric[:, ~(least(known[0], known[1:], _SURE) > 0)] = 0  # nor where no power was found
    sure = np.any([least(gains[0], gains[1:], _SURE) > 0 for gains in (by_metric, by_loss)], axis=0)
    if sure[-1]:
        return _GATES[-1]
    gains = [*zip(np.nan_to_num(by_metric[0]), by_loss[0], strict=True)]
    return _GATES[max(np.flatnonzero(sure), key=gains.__getitem__, default=0)]


def _units(task: Any, network: Judged) -> tuple[np.ndarray, int]:
    """Returns the unit of each validation sample, groups or samples, of which several may be one; and their number."""
    if task._has_groups:
        groups = task._groups("validation")
    else:
        groups = range(1 + int(network.sample.max()))
    names, unit = np.unique(np.array(groups), return_inverse=True)
    return unit % _MOST_UNITS, min(len(names), _MOST_UNITS)


def _calibrated(scores: Tensor, true: Tensor) -> Tensor:
    """Returns a power of probabilities, times a factor for each class, that has the least loss."""
    every = -(-len(true) // _MOST_ROWS)
    with torch.inference_mode(False), torch.enable_grad():
        some = scores[::every].float().clone()
        classes = true[::every].clone()
        power = torch.ones((), requires_grad=True)
        factors = torch.zeros(scores.shape[-1], requires_grad=True)
        optimizer = torch.optim.LBFGS([power, factors], max_iter=20)

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(power * some + factors, classes)
            value.backward()
            return value

        optimizer.step(loss)
    return power.detach() * scores + factors.detach()


def _of_metric(task: Any, rows: Mapping[str, Judged], unit: np.ndarray, units: int) -> np.ndarray:
    """Returns (1 + units, gates) what each gains over the first: of all units, and without each; NaN if unknown."""
    kind = task._kind
    tallies = kind.tallied(task.metrics, rows, unit, units)
    if tallies is None:
        return np.full((1 + units, len(rows)), np.nan)
    sums = np.concatenate([tallies.sum(0)[None], tallies.sum(0) - tallies])
    first = sums[:, 0]
    gains = []
    for place in range(len(rows)):
        method = sums[:, place]
        score = kind.measured(task.metrics, method, first)
        gains.append(score - kind.measured(task.metrics, first, method))
    selected, sign = task._selected
    return sign * np.stack(gains, 1)[..., selected]


def _of_loss(
    task: Any, answers: Sequence[Tensor], network: Judged, unit: np.ndarray, units: int
) -> np.ndarray:
    """Returns (1 + units, gates) as `_of_metric`, of the loss."""
    counts = class_counts(task, "train") if task.balanced else None
    losses = [
        simple.losses(task._kind, answer, network.true, counts).double().numpy()
        for answer in answers
    ]
    each = np.stack(losses, 1)
    sums = np.zeros((units, len(answers)))
    units_of_targets = unit[network.sample]
    sizes = np.bincount(units_of_targets, minlength=units)[:, None]
    np.add.at(sums, units_of_targets, each[:, :1] - each)
    whole = sums.sum(0)
    number = sizes.sum()
    without_each = (whole - sums) / np.maximum(number - sizes, 1)
    return np.concatenate([whole[None] / number, without_each])
