"""The training loop: one visible function.

Under torchrun every rank runs it, each on its own slots of the effective batch. What could differ between them (counts,
memory that runs out, when to stop and save) is decided together; only the first rank writes.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lib import checkpoint, ranks
from lib.checkpoint.retention import Retention
from lib.checkpoint.saver import Saver
from lib.config import Config
from lib.errors import TrainingFailed
from lib.machine import memory
from lib.ranks.sums import about_norms
from lib.report.meter import Meter
from lib.report.metrics import EventLog, MetricsLog
from lib.report.progress import Progress
from lib.report.sampler import Advice, Sampler
from lib.task import Task
from lib.text import duration
from lib.training import data, optimization
from lib.training.evaluation import evaluate
from lib.training.order import Order, weights_of
from lib.training.session import Reason, Session
from lib.training.state import (
    State,
    checkpoint_from_first,
    new_state,
    observe,
    prepare_saving,
    restore_state,
    save_best,
    save_state,
    start_from,
)
from lib.training.step import optimizer_step


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended, with what it measured: steps per second, peak bytes, bytes after each phase."""

    reason: Reason
    state: State
    steps_per_second: float
    peak_bytes: int
    allocated: dict[str, int]
    samples_seen: list[int]  # by each rank, in this session


def train(
    task: Task,
    config: Config,
    folder: Path,
    session: Session,
    progress: Progress,
    resume: checkpoint.Checkpoint | None = None,
) -> Outcome:
    """Trains until `max_steps`, the session's deadline or a signal, saving into `folder` on the way.

    The next call, with the newest checkpoint as `resume`, goes on at its step: on the CPU bit for bit as if nothing had
    happened. Only the first rank's `resume` counts. Raises TrainingFailed where going on makes no sense, BadInput where
    `resume` does not fit.
    """
    training = config.training
    _be_deterministic(training.deterministic)
    torch.backends.cudnn.benchmark = training.cudnn_benchmark
    datasets = task.datasets()
    train_set = data.subset(datasets["train"], config.data.subset_ratio, config.seed)
    order = Order(
        len(train_set), config.seed, training.effective_batch, training.micro_batch_slots, weights_of(train_set)
    )
    state = new_state(task, config)
    saver = Saver(folder, Retention(folder, config.checkpoint), partial(session.record, "save"))
    if resume := checkpoint_from_first(resume):
        restore_state(state, resume)
        state.resumed_from = resume.path
        saver.retention.keep_best([best["step"] for best in state.kept_best])  # others belong to a lost session
    elif config.run.initial_weights:
        progress.note(start_from(state, task, config))
    state.events = EventLog(folder / "events.csv" if ranks.is_first() else None, progress.note)
    if ranks.world() > 1:
        progress.note(f"Training on {ranks.world()} ranks. {about_norms(state.with_buffers)}")
    loading, sentence = data.limit_workers(task, order.slot_size, config.data)
    if sentence:
        progress.note(sentence)
    advice = Advice(loading.num_workers)
    meter = Meter(state.pending, state.device)
    meter.allocated_at("after load")
    steps = range(state.step, training.max_steps)
    reason: Reason = "completed"
    saved_at = time.monotonic()

    with (
        session.catching_signals(),
        _table(folder / "metrics.csv", state.step) as append,
        Sampler() as sampler,
        data.naming_killed_workers(lambda: state.step, loading.num_workers),
        saver,
    ):
        batches = data.train_batches(task, train_set, order, steps, loading)
        for step, slots in meter.waiting(batches):
            with session.measured("step"):
                lr = optimization.learning_rate(config, step, state.plateau)
                optimization.set_learning_rate(state.optimizer, lr)
                meter.add(optimizer_step(state, task, config, slots, step, order, meter))
                state.step = step + 1
            if step == steps.start:
                ranks.keep_pace()
                prepare_saving(state, config, saver)
            last = state.step == training.max_steps

            if last or _due(state.step, training.log_every_steps):
                row = {**_worst(meter.row(training.effective_batch)), "lr": lr, "micro_batch": state.micro_batch}
                row |= sampler.row()
                append({"step": state.step, "split": "train", **row})
                progress.update(state.step, training.max_steps, _line(row, state, training.max_steps, meter))
                for sentence in advice.lines(row):
                    progress.note(sentence)

            if last or _due(state.step, training.evaluate_every_steps):
                with session.measured("evaluate"), meter.paused():
                    scores = evaluate(state, task, config, datasets["validation"])
                    append({"step": state.step, "split": "validation", **scores})
                    progress.note(f"step {state.step:,}, validation: {_figures(scores, task.shown)}")
                    observe(state, task, scores)
                    save_best(state, config, saver, task, scores)

            evaluating = _due(state.step + 1, training.evaluate_every_steps)
            stop = None if last else session.stop_reason(evaluating)
            stop, save = _decided(stop, _save_due(state.step, saved_at, config))
            session.agree(stop)
            if last or stop or save:
                with meter.saving():
                    state.pending = meter.pending()
                    save_state(state, task, config, saver)
                    saved_at = time.monotonic()
            if stop:
                reason = stop
                break
        _finish_saving(saver)

    progress.close()
    seen = ranks.gathered((state.step - steps.start) * len(order.share(ranks.rank(), ranks.world())) * order.slot_size)
    peak = max(ranks.gathered(meter.peak_bytes()))
    return Outcome(reason, state, meter.steps_per_second(), peak, meter.allocated, seen)


@contextlib.contextmanager
def _table(path: Path, step: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """What appends a row to metrics.csv, and on all ranks but the first does nothing."""
    if not ranks.is_first():
        yield lambda row: None
        return
    with MetricsLog(path, step) as log:
        yield log.append


_WORST = ("peak_memory_bytes", "data_wait_share")  # of a row: the rank with the highest is the one to look at


def _worst(row: dict[str, float]) -> dict[str, float]:
    if ranks.world() == 1:
        return row
    peak, waiting = ranks.highest(*(row[name] for name in _WORST))
    return {**row, "peak_memory_bytes": int(peak), "data_wait_share": waiting}


_STOPS: tuple[Reason | None, ...] = (None, "deadline", "interrupted")


def _decided(stop: Reason | None, save: bool) -> tuple[Reason | None, bool]:
    """Whether to stop and to save, for all ranks alike: one that must stop stops all."""
    if ranks.world() == 1:
        return stop, save
    number, due = ranks.highest(_STOPS.index(stop), save)
    return _STOPS[int(number)], bool(due)


def _finish_saving(saver: Saver) -> None:
    """The last save of a session is waited for, and its failure is one of the run: nothing may be lost in silence."""
    try:
        saver.wait()
    except checkpoint.CheckpointNotSaved as error:
        raise TrainingFailed(
            f"{error} This was the last save of the session: the next one goes on from the checkpoint before."
        ) from error


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


def _save_due(step: int, saved_at: float, config: Config) -> bool:
    options = config.checkpoint
    by_time = options.every_minutes and time.monotonic() - saved_at >= 60 * options.every_minutes
    return bool(by_time) or _due(step, options.every_steps)


def _line(row: Mapping[str, float], state: State, total: int, meter: Meter) -> str:
    """What the progress shows: loss, learning rate, speed, time left at the speed measured so far."""
    left = duration((total - state.step) / max(meter.steps_per_second(), 1e-9))
    skipped = f"  skipped {state.skipped_steps}" if state.skipped_steps else ""
    return (
        f"loss {row.get('loss', math.nan):.4f}  lr {row['lr']:.2e}  {row['samples_per_second']:.1f} samples/s  "
        f"{left} left{skipped}"
    )


def _figures(scores: Mapping[str, float], shown: Sequence[str]) -> str:
    return "  ".join(f"{name} {scores[name]:.4f}" for name in dict.fromkeys(["loss", *shown]) if name in scores)


def _be_deterministic(wanted: bool) -> None:
    """Always on a CPU, where some backward passes (of `table[index]`, say) else add up in the order threads arrive."""
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when its first handle is made
    # This call and not use_deterministic_algorithms, which imports the compiler for a second and more.
    torch.set_deterministic_debug_mode("error" if wanted or memory.device().type == "cpu" else "default")
    torch.utils.deterministic.fill_uninitialized_memory = False  # for finding bugs; here it would only cost time
