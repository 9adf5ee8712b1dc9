"""Scores outputs by losses and metrics of a whole set, and finds a part's targets. Each `task` is a `Supervised`."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
        raise BadInput(
            f"{task}.batch has {', '.join(map(repr, inputs))}, and forward of {type(model).__name__} takes "
            f"{', '.join(parameters)}: {unknown[0]!r} is none of these. Give the tensors these names, or write "
            f"outputs(model, batch) in {task}."
        )
    answer = model(*inputs.values()) if unknown else model(**inputs)
    answer = getattr(answer, "logits", answer)
    if not isinstance(answer, Tensor):
        what = f"The model returned a {type(answer).__name__} without `logits`."
        raise BadInput(f"{what} Write outputs(model, batch) in {task}, which returns a tensor.")
    return answer


@dataclass(frozen=True)
class Judged:
    """Targets and guesses, of (targets,), or (samples, numbers) with NaN where a target is unknown.

    `counts` says how often each pair came; without it each came once. `shares` (targets, classes) are probabilities,
    where a metric needs them.
    """

    true: np.ndarray
    guess: np.ndarray
    counts: np.ndarray | None = None
    shares: np.ndarray | None = None

    def known(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns truths, guesses and counts; of numbers those that are known, (numbers)."""
        if self.true.dtype.kind == "f" and (unknown := np.isnan(self.true)).any():
            return self.true[~unknown], self.guess[~unknown], None
        return self.true, self.guess, self.counts

    def scores(self, metrics: Any) -> dict[str, float]:
        return scoring.scores(metrics, self.true, self.guess, self.shares, self.counts)


class _Watched:
    """The batches of a loader; what the model answers to each is kept once its losses were computed."""

    def __init__(self, task: Any, model: nn.Module, loader: Iterable[Batch]):
        self.task, self.model, self.loader = task, model, loader
        self.dataset = getattr(loader, "dataset", None)
        self.by_pair = task.kind in ("tokens", "next_tokens") and scoring.can_weigh(task.metrics)
        self.with_shares = scoring.needs_probabilities(task.metrics)
        self.true: list[Tensor] = []
        self.guess: list[Tensor] = []
        self.shares: list[Tensor] = []
        self.pairs = Pairs()

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            yield batch  # whoever iterates computes its losses now, and the outputs that these have are used again
            self._keep(batch, *self.task.matched(self.task.passed(self.model, batch), batch["labels"]))

    def _keep(self, batch: Batch, outputs: Tensor, labels: Tensor) -> None:
        is_number = self.task.kind == "numbers"
        true = self.task.judged(labels)
        answers = outputs if is_number else outputs > 0 if self.task.kind == "labels" else outputs.argmax(-1)
        guess = self.task.judged(labels, answers)
        if self.by_pair:
            self.pairs.add(true, guess, outputs.shape[-1])
            return
        self.true.append(true.cpu())
        self.guess.append(guess.cpu())
        if self.with_shares:
            known = self.task.known(labels)
            shares = outputs[known.all(1)].sigmoid() if self.task.kind == "labels" else outputs[known].softmax(-1)
            self.shares.append(shares.cpu())

    def judged(self) -> Judged:
        """Returns all of it. Raises BadInput where no target is known."""
        if not (len(self.pairs.counts) if self.by_pair else sum(map(len, self.true))):
            raise BadInput(f"{type(self.task).__name__}.evaluate found no target: all labels are unknown.")
        if self.by_pair:
            return Judged(self.pairs.true, self.pairs.guess, self.pairs.counts)
        shares = torch.cat(self.shares).numpy() if self.shares else None
        return Judged(torch.cat(self.true).numpy(), torch.cat(self.guess).numpy(), shares=shares)


class Pairs:
    """How often each class was taken for each: millions of tokens or pixels are a few numbers."""

    def __init__(self) -> None:
        self.true = self.guess = self.counts = np.zeros(0, np.int64)

    def add(self, true: Tensor, guess: Tensor, classes: int) -> None:
        """Adds (targets,) truths and guesses, all below `classes`."""
        number = true.long() * classes + guess.long()
        if classes**2 <= _MOST_PAIRS:
            every = torch.bincount(number, minlength=classes**2)
            found = every.nonzero()[:, 0]
            counts = every[found]
        else:
            found, counts = number.unique(return_counts=True)
        found, counts = found.cpu().numpy(), counts.cpu().numpy()
        pairs = np.stack([np.append(self.true, found // classes), np.append(self.guess, found % classes)])
        (self.true, self.guess), where = np.unique(pairs, axis=1, return_inverse=True)
        added = np.zeros(len(self.true), np.int64)
        np.add.at(added, where.ravel(), np.append(self.counts, counts))
        self.counts = added


@torch.no_grad()
def evaluate(task: Any, model: nn.Module, loader: Iterable[Batch]) -> tuple[dict[str, float], Judged]:
    """Returns losses as every task has them, with the task's metrics, and what they are of."""
    watched = _Watched(task, model, loader)
    losses = Task.evaluate(task, model, watched)
    judged = watched.judged()
    return {**losses, **judged.scores(task.metrics)}, judged


def baseline(task: Any, classes: int) -> dict[str, float]:
    """Returns the metrics on the test set of always guessing the commonest class, or the mean, of the training."""
    if task.kind in ("tokens", "next_tokens") and scoring.can_weigh(task.metrics):
        commonest = task.class_counts("train").argmax()
        counts = task.class_counts("test")
        (true,) = counts.nonzero()
        return Judged(true, np.full(len(true), commonest), counts[true]).scores(task.metrics)
    train, true = task.targets("train"), task.targets("test")
    classes = 0 if task.kind in ("numbers", "labels") else max(classes, int(max(train.max(), true.max())) + 1)
    guess, shares = scoring.constant(task.kind, train, len(true), classes)
    return Judged(true, guess, shares=shares).scores(task.metrics)


def targets(task: Any, part: Part) -> np.ndarray:
    """Returns the known targets of a part: (targets,), or (samples, numbers)."""
    return np.concatenate([*_labels(task, part)])


def class_counts(task: Any, part: Part) -> np.ndarray:
    """Returns how often each class is a target, (classes); of the targets no more than a batch is held at once."""
    counts = np.zeros(0, np.int64)
    for labels in _labels(task, part):
        more = np.bincount(labels, minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    return counts


def _labels(task: Any, part: Part) -> Iterator[np.ndarray]:
    """Yields known targets. Where samples have their labels as numbers, tried on some, nothing is decoded for it."""
    tried = sorted({round(index) for index in np.linspace(0, len(part) - 1, _TRIED)})
    plain = _plain(task, [part[index].sample for index in tried])
    if plain is not None and np.array_equal(plain, np.concatenate([*_batched(task, part, tried)])):
        plain = _plain(task, [part[index].sample for index in range(len(part))])
        if plain is not None:
            yield plain
            return
    with working(f"Looking at the targets of {part.name}"):
        yield from _batched(task, part, range(len(part)))


def _plain(task: Any, samples: list[Any]) -> np.ndarray | None:
    """Returns the known targets in the samples; None where they are not one number each."""
    numbers = [target_of(sample) for sample in samples]
    if task.kind not in ("classes", "numbers") or not all(isinstance(n, int | float | np.number) for n in numbers):
        return None
    values = np.array(numbers, dtype=np.float32 if task.kind == "numbers" else np.int64)
    return values[~np.isnan(values) if task.kind == "numbers" else values != IGNORED]


def _batched(task: Any, part: Part, chosen: Sequence[int]) -> Iterator[np.ndarray]:
    for first in range(0, len(chosen), _AT_ONCE):
        labels = task.labelled([part[index].sample for index in chosen[first : first + _AT_ONCE]])["labels"]
        yield task.judged(task.placed(labels)).numpy()
