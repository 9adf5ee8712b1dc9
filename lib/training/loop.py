"""The training loop: one visible function. Ranks decide together what could differ; only the first one writes."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lib import ranks
from lib.checkpoint import Checkpoint
from lib.checkpoint.saver import Retention, Saver
from lib.config import Config
from lib.machine import memory
from lib.report.meter import Meter
from lib.report.metrics import EVENTS, METRICS, EventLog, MetricsLog, sync
from lib.report.progress import Progress, Within
from lib.report.sampler import Advice, Sampler
from lib.task import Task
from lib.text import duration
from lib.training import data, learned, optimization
from lib.training.evaluation import EvaluationStopped, evaluate
from lib.training.order import Order
from lib.training.precision import set_determinism
from lib.training.session import Reason, Session
from lib.training.state import State, first_state, observe, prepare_saving, save_best, save_state
from lib.training.step import memory_for_next_launch, optimizer_step


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended, with what it measured: steps per second, peak bytes, bytes after each phase."""

    reason: Reason
    state: State
    steps_per_second: float
    peak_bytes: int
    allocated: dict[str, int]


def train(
    task: Task, config: Config, folder: Path, session: Session, progress: Progress,
    resume: Checkpoint | None = None, most: int = 0,
) -> Outcome:  # fmt: skip
    """Trains until `max_steps`, an early stop, the session's deadline or a signal, and saves into `folder` on the way.

    The first rank's `resume` is the newest checkpoint: on the CPU the result is bit for bit that of one uninterrupted
    run. `most`: samples of a micro-batch (0: as configured). Raises TrainingFailed, and BadInput if it does not fit.
    """
    training = config.training
    set_determinism(training)
    learned.take(task, resume, folder if config.checkpoint.keep_last else None)
    sets = task.datasets()
    train_set = data.subset(sets["train"], config.data.subset_ratio, config.seed)
    order = Order.of(train_set, config)
    loading = data.limit_workers(task, train_set, config.data, progress.note)
    state = first_state(task, config, resume, progress.note, most)
    state.events = EventLog(
        folder / EVENTS if ranks.is_first() else None, progress.note, state.step
    )
    saver = Saver(
        folder,
        Retention(folder, config.checkpoint),
        partial(session.record, "save"),
        partial(sync, folder),
    )
    if resume:
        saver.retention.keep_best(
            [best["step"] for best in state.kept_best]
        )  # others belong to a lost session
    meter = Meter(state.pending, state.device)
    meter.allocated_at("after load")
    advice = Advice(loading.num_workers)
    reason: Reason = "completed"
    row = {}
    saved_at = time.monotonic()
    with (
        session.catching_signals(),
        MetricsLog(
            folder / METRICS if ranks.is_first() else None, state.step, state.rows
        ) as metrics,
        Sampler() as sampler,
        saver,
        memory_for_next_launch(state, training.slot),
    ):
        if state.validation_due:
            _validate(
                state,
                task,
                config,
                sets["validation"],
                session,
                progress,
                meter,
                metrics,
                saver,
                order,
            )
            _save(state, task, config, saver, meter, metrics)
        is_over = state.validation_due or state.stopping.is_over
        steps = range(state.step, state.step if is_over else training.max_steps)
        batches = data.train_batches(
            task, train_set, order, steps, loading, session.stop_alone, progress.note
        )
        for step, slots in meter.waiting(batches):
            begin = time.perf_counter()
            lr = optimization.learning_rate(config, step, state.plateau)
            optimization.set_learning_rate(state.optimizer, lr)
            meter.add(optimizer_step(state, task, config, slots, step, order, meter))
            state.step = step + 1
            session.record("step", time.perf_counter() - begin)
            if step == steps.start:
                ranks.keep_pace()
                prepare_saving(state, config, saver)
            last = state.step == training.max_steps
            if last or _due(state.step, training.log_every_steps):
                row = _worst(meter.row(training.effective_batch)) | optimization.rates(
                    state.groups, lr, step
                )
                row |= {"micro_batch": state.micro_batch, **sampler.row()}
                if state.scaler.is_enabled():
                    row |= {
                        "loss_scale": state.scaler.get_scale(),
                        "skipped_steps": state.skipped_steps,
                    }
                metrics.append(
                    {"step": state.step, "split": "train", **_where(order, task, step), **row}
                )
                for sentence in advice.lines(row):
                    progress.note(sentence)
            if last or _due(state.step, training.evaluate_every_steps):
                _validate(
                    state,
                    task,
                    config,
                    sets["validation"],
                    session,
                    progress,
                    meter,
                    metrics,
                    saver,
                    order,
                )
                last = last or state.stopping.is_over
            progress.update(
                state.step,
                training.max_steps,
                partial(_line, row, state, task, config, order, meter),
            )
            evaluates_next = _due(state.step + 1, training.evaluate_every_steps)
            by_time = 0 < 60 * config.checkpoint.every_minutes <= time.monotonic() - saved_at
            save = by_time or _due(state.step, config.checkpoint.every_steps)
            stop, save = session.decide(evaluates_next, save, last)
            if last or stop or save:
                _save(state, task, config, saver, meter, metrics)
                saved_at = time.monotonic()
            if stop or state.stopping.is_over:
                reason = stop or reason
                break
        if (
            state.step < steps.stop and reason == "completed" and not state.stopping.is_over
        ):  # a batch was late
            reason = session.stop_alone() or "interrupted"
            _save(state, task, config, saver, meter, metrics)
        saver.finish()
        reason = (
            session.signalled() or reason
        )  # also by a signal of the last step, which decides nothing
    progress.close()
    peak = max(ranks.gathered(memory.peak_bytes()))
    return Outcome(reason, state, meter.steps_per_second(), peak, meter.allocated)


def _validate(
    state: State, task: Task, config: Config, dataset: Any, session: Session, progress: Progress, meter: Meter,
    metrics: MetricsLog, saver: Saver, order: Order,
) -> None:  # fmt: skip
    """Validates, and hands the scores to all that depends on them.

    A signal stops it between two batches: then it stays due, and the next session begins with it.
    """
    state.validation_due = True
    within = Within(progress, state.step, config.training.max_steps)
    with session.measured("evaluate"), meter.paused():
        try:
            scores = evaluate(state, task, config, dataset, within, lambda: session.is_signalled)
        except EvaluationStopped:
            progress.note(
                f"The validation of step {state.step:,} was stopped: the next session begins with it."
            )
            return
        where = _where(order, task, state.step - 1)
        metrics.append({"step": state.step, "split": "validation", **where, **scores})
        progress.note(_validation_line(state.step, scores, task))
        observe(state, task, config, scores)
        save_best(state, config, saver, task, scores)
    state.validation_due = False


def _save(
    state: State, task: Task, config: Config, saver: Saver, meter: Meter, metrics: MetricsLog
) -> None:
    with meter.paused():
        state.pending, state.rows = meter.pending(), metrics.flush()
        save_state(state, task, config, saver)


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


def _worst(row: dict[str, float]) -> dict[str, float]:
    """Returns the row with the highest peak and the longest wait of all ranks: that rank is the one to look at."""
    peak, waiting = ranks.highest(row["peak_memory_bytes"], row["data_wait_share"])
    return {**row, "peak_memory_bytes": int(peak), "data_wait_share": waiting}


def _stage(task: Task, step: int) -> str:
    return getattr(task, "stage_name", lambda step: "")(step)


def _where(order: Order, task: Task, step: int) -> dict[str, Any]:
    """Returns the columns of metrics.csv on the place of a step: epoch, and the stage if the task has stages."""
    name = _stage(task, step)
    return {"epoch": order.epoch(step + 1), **({"stage": name} if name else {})}


def _line(
    row: Mapping[str, Any], state: State, task: Task, config: Config, order: Order, meter: Meter
) -> str:
    """Returns what the progress shows: epoch and stage, loss and speed of the last row, and the time left."""
    parts = [f"epoch {order.epoch(state.step):.2f}", _stage(task, max(0, state.step - 1))]
    if row:  # a row alone waits for the device
        parts += [f"loss {row.get('loss', math.nan):.4f}", f"lr {row['lr']:.2e}"]
        parts += [f"{row['samples_per_second']:.1f} samples/s"]
    left = duration((config.training.max_steps - state.step) / max(meter.steps_per_second(), 1e-9))
    skipped = f"skipped {state.skipped_steps}" if state.skipped_steps else ""
    return "  ".join(filter(None, [*parts, f"{left} left", skipped]))


def _validation_line(step: int, scores: Mapping[str, float], task: Task) -> str:
    names = dict.fromkeys(["loss", *task.shown])
    return f"step {step:,}, validation: " + "  ".join(
        f"{name} {scores[name]:.4f}" for name in names if name in scores
    )
