"""What a model's outputs are worth: losses by term, and metrics of a whole set. Each `task` is a `Supervised`."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.supervised import scoring
from lib.task import Batch, Task

_MOST_PAIRS = 2**20  # of classes, up to which they are counted by their number and not sorted


def outputs(model: nn.Module, batch: Batch, task: str) -> Tensor:
    """Returns what a model answers to a batch without its labels. Raises BadInput; `task` is the name of its class."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    found = model(**inputs) if _is_by_name(model, inputs, task) else model(*inputs.values())
    found = getattr(found, "logits", found)
    if not isinstance(found, Tensor):
        what = f"The model returned a {type(found).__name__} without `logits`."
        raise BadInput(f"{what} Write outputs(model, batch) in {task}, which returns a tensor.")
    return found


def _is_by_name(model: nn.Module, inputs: Batch, task: str) -> bool:
    """Says whether `forward` is given tensors by name: where it has the names. Raises BadInput for some of them."""
    parameters = inspect.signature(model.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    unknown = [name for name in inputs if name not in parameters]
    if unknown and len(unknown) < len(inputs):
        raise BadInput(
            f"{task}.batch has {', '.join(map(repr, inputs))}, and forward of {type(model).__name__} takes "
            f"{', '.join(parameters)}: {unknown[0]!r} is none of these. Give the tensors these names, or write "
            f"outputs(model, batch) in {task}."
        )
    return not unknown


class Judged:
    """Targets and what was guessed for them, of (targets,), or (samples, numbers) with NaN where one is unknown.

    `counts` says how often each pair came; where it is None each stands for itself. `shares` (targets, classes) are
    probabilities, where a metric asks for them.
    """

    def __init__(self, true: np.ndarray, guess: np.ndarray, counts: np.ndarray | None, shares: np.ndarray | None):
        self.true, self.guess, self.counts, self.shares = true, guess, counts, shares

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
            return Judged(self.pairs.true, self.pairs.guess, self.pairs.counts, None)
        shares = torch.cat(self.shares).numpy() if self.shares else None
        return Judged(torch.cat(self.true).numpy(), torch.cat(self.guess).numpy(), None, shares)


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
        return Judged(true, np.full(len(true), commonest), counts[true], None).scores(task.metrics)
    train, true = task.targets("train"), task.targets("test")
    classes = 0 if task.kind in ("numbers", "labels") else max(classes, int(max(train.max(), true.max())) + 1)
    guess, shares = scoring.constant(task.kind, train, len(true), classes)
    return Judged(true, guess, None, shares).scores(task.metrics)
