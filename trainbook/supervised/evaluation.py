"""Scores outputs by losses and metrics of a whole set, and opens the gate. Each `task` is a `Supervised`."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.errors import BadInput
from lib.report.progress import working
from lib.task import Batch, Task
from trainbook.supervised import chunks, scoring, simple
from trainbook.supervised.intervals import least
from trainbook.supervised.samples import FLOATS, MOST_CLASSES, Part, target_of

_AT_ONCE = 64  # samples that are batched to look at their targets
_TRIED = 16  # samples whose target is compared with its label
_MEASURED = 1024  # samples by which the targets' variance is known to 5 %
_GATES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
_MOST_ROWS = 20_000  # that calibrate an answer
_SURE = 0.995
_MOST_UNITS = (
    100  # of one side: every validation asks; of validation: of more units several are one
)


def classes_last(kind: str, outputs: Tensor, labels: Tensor) -> Tensor:
    """(B, C, ...) -> (B, ..., C) scores of the tokens or pixels of labels (B, ...); others as they are."""
    is_first = (
        outputs.shape[:1] + outputs.shape[2:] == labels.shape and outputs.shape[:-1] != labels.shape
    )
    if kind == "tokens" and is_first:
        return outputs.movedim(1, -1)
    return outputs


def misfit(kind: str, outputs: Tensor, labels: Tensor, width: int) -> str:
    """Returns what to return instead of outputs whose shape does not fit the labels; "" where it does."""
    if kind == "numbers":
        fits = outputs.shape in (labels.shape, (*labels.shape, 1)) or labels.shape == (
            *outputs.shape,
            1,
        )
        return "" if fits else "Return a number for each label."
    if kind == "labels":
        fits = labels.dim() == 2 and outputs.shape == labels.shape
        return (
            ""
            if fits
            else "With kind = 'labels' both are (samples, classes): a score for each mark."
        )
    fits = outputs.shape[:-1] == labels.shape and width > 1
    return (
        ""
        if fits
        else "Return the labels' shape and one dimension more at the end: a score for each class."
    )


def weights(task: Any, outputs: Tensor, classes: int) -> Tensor | None:
    """Returns (classes) the weights of a task with `balanced`, on the device of outputs; None for another."""
    if not task.balanced:
        return None
    if outputs.is_meta:  # of a plan, which is made where there is no data
        return torch.ones(classes, device=outputs.device)
    return torch.from_numpy(scoring.balanced(task.class_counts("train"), classes)).to(
        outputs.device
    )


@torch.no_grad()
def evaluate(
    task: Any, model: nn.Module, loader: Any
) -> tuple[dict[str, float], dict[str, scoring.Judged]]:
    """Returns losses and metrics, and what each method of `combined` answers. Raises BadInput."""
    answered = list[tuple[list[np.ndarray], Tensor]]()
    starts = list[Tensor]()

    def watched() -> Iterator[Batch]:
        number = 0  # of the batch's first sample
        for batch in loader:
            yield batch  # whoever iterates computes its losses now, and the outputs that these have are used again
            outputs, labels = task.matched(task.passed(model, batch), batch["labels"])
            answered.append(_answered(task, number, outputs, labels, task.combines))
            number += len(labels)
            if task.starts:
                starts.append(_of_known(task, labels, simple.shaped(batch[simple.KEY], outputs)))

    losses = Task.evaluate(task, model, watched())
    judged, scores = _joined(task, answered)
    rows = {"network": judged}
    if task.combines:
        task.started = torch.cat(starts) if starts else None, judged
        answers = task.combined(
            model, scores, getattr(getattr(loader, "dataset", None), "name", "")
        )
        rows = {name: task.guessed(torch.as_tensor(of), judged) for name, of in answers.items()}
    return {**losses, **scoring.scores(task.metrics, [*rows.values()][-1])}, rows


def simple_rows(task: Any) -> dict[str, scoring.Judged]:
    """Returns what the simple method answers, as `baselines` of a task; `{**super().baselines(), ...}` adds to it."""
    if task.simple is None or task.simple.name == "constant":
        return {}
    part = task.parts["test"]
    width = 0 if task.kind in FLOATS else max(task.width, len(task.class_counts("test")))
    answered = []
    for first in range(0, len(part), simple.AT_ONCE):
        batch = task.labelled(
            [part[index].sample for index in range(first, min(first + simple.AT_ONCE, len(part)))]
        )
        scores = task.simple.scores(task, batch)
        scores = simple.shaped(
            scores, torch.empty(*scores.shape[:-1], max(width, scores.shape[-1]))
        )
        answered.append(_answered(task, first, *task.matched(scores, batch["labels"])))
    return {task.simple.name: _joined(task, answered)[0]}


def _answered(
    task: Any, number: int, outputs: Any, labels: Tensor, has_scores: bool = False
) -> tuple[list[np.ndarray], Tensor]:
    """Returns samples from `number` on, truths, guesses (of tokens how often) of known targets, and scores."""
    sample = torch.arange(number, number + len(labels), device=labels.device)
    sample = sample.view(-1, *[1] * (labels.dim() - 1)).expand_as(labels)
    if type(outputs) is tuple:
        guess = chunks.guesses(*outputs, labels)
    else:
        guess = guesses(task.kind, outputs)
    sample, true, guess = columns = [
        task.judged(labels, values) for values in (sample, labels, guess)
    ]
    if (
        task.kind in ("tokens", "next_tokens")
        and scoring.can_weigh(task.metrics)
        and not has_scores
    ):
        classes = task.width
        pairs, counts = ((sample * classes + true) * classes + guess).unique(return_counts=True)
        columns = [pairs // classes**2, pairs // classes % classes, pairs % classes, counts]
    elif sample.dim() > 1:
        columns[0] = sample[:, 0]
    has_scores = has_scores or _has_shares(task, outputs)
    scores = _of_known(task, labels, outputs) if has_scores else torch.zeros(0)
    return [column.cpu().numpy() for column in columns], scores


def _joined(
    task: Any, answered: Sequence[tuple[list[np.ndarray], Tensor]]
) -> tuple[scoring.Judged, Tensor]:
    if not sum(len(columns[0]) for columns, _ in answered):
        raise BadInput(f"{type(task).__name__}.evaluate found no target: all labels are unknown.")
    columns, scores = zip(*answered, strict=True)
    sample, true, guess, *counts = (np.concatenate(column) for column in zip(*columns, strict=True))
    whole = torch.cat(scores)
    return scoring.Judged(
        true, guess, counts[0] if counts else None, shares(task, whole), sample
    ), whole


def _of_known(task: Any, labels: Tensor, values: Any) -> Tensor:
    if task.kind == "numbers":
        return task.judged(labels, values).cpu()
    if task.kind == "labels":
        known = task.known(labels).all(1)
    else:
        known = task.known(labels)
    return (
        chunks.logits(values[0][known], values[1]) if isinstance(values, tuple) else values[known]
    ).cpu()


def _has_shares(task: Any, outputs: Any) -> bool:
    if scoring.needs_probabilities(task.metrics):
        return True
    has_few = task.kind in ("classes", "labels") and outputs.shape[-1] <= MOST_CLASSES
    return has_few and not task.has_own_scores  # which are no logits


def shares(task: Any, scores: Tensor) -> np.ndarray | None:
    """Returns (targets, classes) probabilities, where a metric or answers.csv needs them."""
    if not _has_shares(task, scores):
        return None
    return (scores.sigmoid() if task.kind == "labels" else scores.softmax(-1)).numpy()


def guesses(kind: str, outputs: Tensor) -> Tensor:
    if kind == "numbers":
        return outputs
    return outputs > 0 if kind == "labels" else outputs.argmax(-1)


def tested(task: Any) -> scoring.Judged:
    """Returns the targets of the test set as if each were guessed rightly; tokens by how often each class comes."""
    if task.kind in ("tokens", "next_tokens") and scoring.can_weigh(task.metrics):
        counts = task.class_counts("test")
        (true,) = counts.nonzero()
        return scoring.Judged(true, true, counts[true])
    true = task.targets("test")
    return scoring.Judged(true, true)


def baselines(task: Any, test: scoring.Judged) -> dict[str, scoring.Judged]:
    """Returns what always guessing the commonest class, or the mean, of the training answers, and the task's own."""
    if task.kind == "text":  # whose `guesses` have it
        return judged(test, task.guesses)
    if test.counts is not None:
        guess = np.full(len(test.true), task.class_counts("train").argmax())
        shares = None
    else:
        train = task.targets("train")
        if task.kind in FLOATS:
            classes = 0
        else:
            classes = max(task.width, int(max(train.max(), test.true.max())) + 1)
        guess, shares = scoring.constant(task.kind, train, len(test.true), classes)
    return {task.constant: test._replace(guess=guess, shares=shares), **judged(test, task.guesses)}


def judged(test: scoring.Judged, guesses: Mapping[str, Any]) -> dict[str, scoring.Judged]:
    """Returns guesses for the targets of `test` by method. `Judged` ones stay, if need be with its samples."""
    rows = {}
    for name, values in guesses.items():
        row = values
        if not isinstance(values, scoring.Judged):
            row = test._replace(guess=np.asarray(values), shares=None)
        rows[name] = row if len(row.sample) == len(row.true) else row._replace(sample=test.sample)
    return rows


def variance(task: Any) -> float:
    rows = task.parts["train"].samples
    places = sorted(random.Random(0).sample(range(len(rows)), min(len(rows), _MEASURED)))
    values = np.concatenate(
        [*targets(task, Part(task, "train", [rows[place] for place in places]))]
    )
    columns = np.ma.masked_invalid(values.astype(np.float64).reshape(len(values), -1))
    variance = float(columns.var(0).mean())
    if variance > 1e-12 * float((columns**2).mean()):
        return variance
    return 1.0


def targets(task: Any, part: Part) -> Iterator[np.ndarray]:
    """Yields the known targets of a part. Where samples have theirs as numbers, tried on some, nothing is decoded."""

    def plain(indices: Sequence[int]) -> np.ndarray | None:
        numbers = [target_of(part[index].sample) for index in indices]
        if task.kind not in ("classes", "numbers") or not all(
            isinstance(n, int | float | np.number) for n in numbers
        ):
            return None
        values = torch.tensor(
            numbers, dtype=torch.float32 if task.kind == "numbers" else torch.int64
        )
        return values[task.known(values)].numpy()

    def batched(indices: Sequence[int]) -> np.ndarray:
        return task.judged(
            task.placed(task.labelled([part[index].sample for index in indices])["labels"])
        ).numpy()

    tried = sorted({round(index) for index in np.linspace(0, len(part) - 1, _TRIED)})
    some = plain(tried)
    is_plain = some is not None and np.array_equal(some, batched(tried))
    if is_plain and (values := plain(range(len(part)))) is not None:
        yield values
        return
    with working(f"Looking at the targets of {part.name}"):
        for first in range(0, len(part), _AT_ONCE):
            yield batched(range(first, min(first + _AT_ONCE, len(part))))


def combined(task: Any, model: nn.Module, scores: Tensor, part: str) -> dict[str, Tensor]:
    """Returns the network's scores and those that the gate lets through; a validation sets the gate."""
    start, judged = task.started
    if part == "validation":
        model.get_buffer(simple.GATE).fill_(_opened(task, scores, start, judged))
    name = task.simple.name
    gate = float(model.get_buffer(simple.GATE))
    share = f"The gate is open by {gate:g}: the answer is that share of the network, and {name!r} for the rest."
    shut = f"The gate is shut: validation shows no sure gain, so {name!r} alone answers."
    task.about_gate = share if gate else shut
    return {"network": scores, "answer": simple.gated(model, scores, start)}


def _opened(task: Any, scores: Tensor, start: Tensor, judged: scoring.Judged) -> float:
    """Returns 1 where the network is surely better than the simple method, else the best sure share, else 0.

    Better: with less loss, and no worse by the metric of `selection`; or by that metric, where it follows from sums,
    and with less loss once both are calibrated: any answer but the commonest gains macro F1 where nothing is learned.
    Surely: the lower end of the paired interval over validation's groups is above 0.
    """
    if task.has_groups:
        named = task._groups("validation")
    else:
        named = range(1 + int(judged.sample.max()))
    names, unit = np.unique(np.array(named), return_inverse=True)
    unit = unit % _MOST_UNITS
    units = min(len(names), _MOST_UNITS)
    if units < 2:
        return 0.0
    answers = [start + gate * (scores - start) for gate in _GATES]
    rows = {
        str(gate): task.guessed(answer, judged)
        for gate, answer in zip(_GATES, answers, strict=True)
    }
    by_metric = _of_metric(task, rows, unit, units)
    by_loss = _of_loss(task, answers, judged, unit, units)
    by_loss[
        :, [task.strongest({"both": row, "alone": rows["0.0"]}) == "alone" for row in rows.values()]
    ] = 0
    if task.kind not in FLOATS:
        calibrated = [_calibrated(answer, torch.from_numpy(judged.true)) for answer in answers]
        known = _of_loss(task, calibrated, judged, unit, units)
        by_metric[:, ~(least(known[0], known[1:], _SURE) > 0)] = 0  # nor where no power was found
    sure = np.any([least(gains[0], gains[1:], _SURE) > 0 for gains in (by_metric, by_loss)], axis=0)
    gains = [*zip(np.nan_to_num(by_metric[0]), by_loss[0], strict=True)]
    return _GATES[-1 if sure[-1] else max(np.flatnonzero(sure), key=gains.__getitem__, default=0)]


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


def _of_metric(
    task: Any, rows: Mapping[str, scoring.Judged], unit: np.ndarray, units: int
) -> np.ndarray:
    """Returns (1 + units, gates) what each gains over the first: of all units, and without each; NaN if unknown."""
    if (tallies := task.tallied(rows, unit, units)) is None:
        return np.full((1 + units, len(rows)), np.nan)
    sums = np.concatenate([tallies.sum(0)[None], tallies.sum(0) - tallies])
    place, sign = task.selected
    gains = [
        task.measured(sums[:, n], sums[:, 0]) - task.measured(sums[:, 0], sums[:, n])
        for n in range(len(rows))
    ]
    return sign * np.stack(gains, 1)[..., place]


def _of_loss(
    task: Any, answers: Sequence[Tensor], judged: scoring.Judged, unit: np.ndarray, units: int
) -> np.ndarray:
    """Returns (1 + units, gates) as `_of_metric`, of the loss."""
    counts = task.class_counts("train") if task.balanced else None
    each = np.stack(
        [simple.losses(task, answer, judged.true, counts).double().numpy() for answer in answers], 1
    )
    sums = np.zeros((units, len(answers)))
    sizes = np.bincount(unit[judged.sample], minlength=units)[:, None]
    np.add.at(sums, unit[judged.sample], each[:, :1] - each)
    return np.concatenate(
        [sums.sum(0)[None] / sizes.sum(), (sums.sum(0) - sums) / np.maximum(sizes.sum() - sizes, 1)]
    )
