"""Evaluates a model on a whole data set, in batches that fit into memory."""

import math
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from lib import ranks
from lib.config import Config
from lib.errors import TrainingFailed
from lib.machine import memory
from lib.report.progress import Progress, Within, time_left, working
from lib.task import Batch, Task
from lib.task.contract import checked_numbers, checked_scores
from lib.training.data import check_samples, micro_batches, to_device
from lib.training.order import EVALUATE, mix, put_back, seed_all, seeded_draws
from lib.training.precision import autocast
from lib.training.state import State


class EvaluationStopped(BaseException):
    """A signal came between two batches. Not an Exception, which a task's `evaluate` may catch."""


class EvaluationLoader:
    """Iterates over all samples of a data set in their order, in batches on the device; `Task.evaluate` gets one.

    A batch of `batch_size` samples comes in slices of at most `most`: memory that runs out makes these smaller and
    changes no padding. With a `step` the generators are seeded before each slice, by the step and its first sample.
    """

    def __init__(
        self, task: Task, dataset: Any, batch_size: int, device: torch.device, seed: int = 0,
        on_batch: Callable[[int, int], None] = lambda done, total: None, most: int = 0, step: int | None = None,
    ):  # fmt: skip
        self.task = task
        self.dataset = dataset
        self.batch_size = batch_size
        self.device = device
        self.seed = seed
        self.on_batch = on_batch
        self.most = min(most or batch_size, batch_size)
        self.step = step

    def __len__(self) -> int:
        whole, rest = divmod(len(self.dataset), self.batch_size)
        slices = math.ceil(self.batch_size / self.most)
        return whole * slices + math.ceil(rest / self.most)

    def __iter__(self) -> Iterator[Batch]:
        done = 0
        places = range(len(self.dataset))
        for first in places[:: self.batch_size]:
            seed = mix(EVALUATE, self.seed, first)
            with seeded_draws(seed):
                samples = [self.dataset[i] for i in places[first : first + self.batch_size]]
                batch = self.task.collate(samples, torch.Generator().manual_seed(seed))
            check_samples(batch)
            for number, part in enumerate(micro_batches(batch, self.most)):
                if self.step is not None:
                    place = first + number * self.most
                    seed_all(mix(EVALUATE, self.seed, self.step, place), self.device)
                yield to_device(part, self.device)
                done += 1
                self.on_batch(done, len(self))


def evaluate(
    state: State, task: Task, config: Config, dataset: Any, progress: Progress | Within | None = None,
    must_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:  # fmt: skip
    """Returns the task's metrics on a data set. Raises TrainingFailed if a single sample does not fit.

    Every rank evaluates the whole data set, because metrics are not sums over parts; the first rank's scores count.
    If memory runs out, the evaluation is repeated with half as many samples at once: no metric changes. All ranks
    raise EvaluationStopped if one of them `must_stop` after a batch.
    """
    # padding and draws follow from this size
    collated = config.data.evaluation_batch or config.training.largest_micro_batch
    text = time_left("batches evaluated")

    def after_batch(done: int, total: int) -> None:
        if progress:
            progress.update(done, total, partial(text, done, total))
        if must_stop():
            raise EvaluationStopped

    task.step = state.step
    state.model.eval()
    while True:
        most = state.evaluation_batch or config.data.evaluation_batch or state.micro_batch
        loader = EvaluationLoader(
            task, dataset, collated, state.device, config.seed, after_batch, most, state.step
        )
        scores = None
        is_stopped = False
        cast = autocast(state.precision, state.device)
        try:
            with put_back(state.device), state.averaged(), torch.inference_mode(), cast:
                # before the first sample
                seed_all(mix(EVALUATE, config.seed, state.step, -1), state.device)
                scores = checked_scores(task, task.evaluate(state.model, loader))
        except EvaluationStopped:
            is_stopped = True
        except Exception as error:
            if not memory.is_oom(error):
                raise
        # outside the except block the traceback no longer pins the activations
        stops_anywhere, lacks_anywhere = ranks.highest(is_stopped, scores is None)
        if stops_anywhere:
            raise EvaluationStopped
        if not lacks_anywhere:
            assert scores is not None
            return ranks.from_first(scores)
        state.evaluation_batch = _halved(state, loader.most)


def _halved(state: State, before: int) -> int:
    """Clears memory; returns half of an evaluation's batch, with an event. Raises TrainingFailed for one sample."""
    if before <= 1:
        raise TrainingFailed(
            f"Memory ran out in the evaluation at step {state.step} with one sample at once. Let Task.evaluate "
            "keep its results on the CPU, make the model or its input smaller, or take a larger card."
        )
    memory.clear_memory()
    size = (before + 1) // 2
    sentence = (
        f"Memory ran out in the evaluation at step {state.step}: it is repeated with {size} samples at once "
        f"instead of {before}; no metric changes."
    )
    state.events.record(state.step, "oom_evaluation", before, size, sentence)
    return size


_baselines: "weakref.WeakKeyDictionary[Task, dict[str, float]]" = weakref.WeakKeyDictionary()


def baseline_of(task: Task) -> dict[str, float]:
    """Returns the baseline's metrics. They are computed once a task, which may take minutes and prints a line."""
    if task not in _baselines:
        with working("Scoring the baseline"), seeded_draws(mix(EVALUATE, task.config.seed)):
            _baselines[task] = checked_numbers(task, "baseline", task.baseline())
    return known_baseline(task)


def forget_baseline(task: Task) -> None:
    """Forgets the baseline's metrics: a test may have made a stronger one, which `baseline_of` then returns."""
    _baselines.pop(task, None)


def known_baseline(task: Task) -> dict[str, float]:
    return dict(_baselines.get(task, {}))
