"""The training loop in one visible function. All ranks take the same decisions; only the first one writes."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """The end of a call of `train`, with its measures: steps per second, peak bytes, bytes after each phase."""

    reason: Reason
    state: State
    steps_per_second: float
    peak_bytes: int
    allocated: dict[str, int]


def train(
    task: Task, config: Config, folder: Path, session: Session, progress: Progress,
    resume: Checkpoint | None = None, most: int = 0,
) -> Outcome:  # fmt: skip
    """Trains until `max_steps`, an early stop, the session's deadline or a signal, and saves into `folder`.

    The first rank's `resume` is the newest checkpoint: on the CPU a resumed run ends in the bits of an uninterrupted
    one. `most`: samples of a micro-batch (0: as configured). Raises TrainingFailed, and BadInput if it does not fit.
    """
    training = config.training
    set_determinism(training)
    values = learned.take(task, resume, folder if config.checkpoint.keep_last else None)
    sets = task.datasets()
    train_set = data.subset(sets["train"], config.data.subset_ratio, config.seed)
    order = Order.of(train_set, config)
    loading = data.limit_workers(task, train_set, config.data, progress.note)
    state = first_state(task, config, resume, progress.note, most)
    state.learned = learned.as_saved(values)
    run = _start(task, config, state, order, sets["validation"], session, progress, folder)
    if resume:  # the others belong to a lost session
        run.saver.retention.keep_best([best["step"] for best in state.kept_best])
    meter = run.meter
    advice = Advice(loading.num_workers)
    reason: Reason = "completed"
    with (
        session.catching_signals(),
        run.metrics,
        Sampler() as sampler,
        run.saver,
        memory_for_next_launch(state, training.slot),
    ):
        if state.validation_due:
            run.validate()
            run.save()
        is_over = state.validation_due or state.stopping.is_over
        steps = range(state.step, state.step if is_over else training.max_steps)
        batches = data.train_batches(
            task, train_set, order, steps, loading, session.stop_alone, progress.note
        )
        for step, slots in meter.waiting(batches):
            with session.measured("step"):
                lr = optimization.learning_rate(config, step, state.plateau)
                optimization.set_learning_rate(state.optimizer, lr)
                meter.add(optimizer_step(state, task, config, slots, step, order, meter))
                state.step = step + 1
            if step == steps.start:
                ranks.keep_pace()
                prepare_saving(state, config, run.saver)
            is_last = state.step == training.max_steps
            if is_last or _is_due(state.step, training.log_every_steps):
                for sentence in advice.lines(run.log(lr, sampler.row())):
                    progress.note(sentence)
            if is_last or _is_due(state.step, training.evaluate_every_steps):
                run.validate()
                is_last = is_last or state.stopping.is_over
            progress.update(state.step, training.max_steps, run.line)
            evaluates_next = _is_due(state.step + 1, training.evaluate_every_steps)
            stop, save = session.decide(evaluates_next, run.is_save_due(), is_last)
            if is_last or stop or save:
                run.save()
            if stop or state.stopping.is_over:
                reason = stop or reason
                break
        else:
            if state.step < steps.stop:  # a batch was late
                reason = session.stop_alone() or "interrupted"
                run.save()
        run.saver.finish()
        # a signal of the last step decides nothing, but it is the reason
        reason = session.signalled() or reason
    progress.close()
    peak = max(ranks.gathered(memory.peak_bytes()))
    return Outcome(reason, state, meter.steps_per_second(), peak, meter.allocated)


@dataclass
class _Run:
    """A run while it trains: what its steps, validations and saves have in common."""

    task: Task
    config: Config
    state: State
    order: Order
    validation_set: Any
    session: Session
    progress: Progress
    meter: Meter
    metrics: MetricsLog
    saver: Saver
    row: dict[str, float] = field(default_factory=dict)  # the last one of training in `metrics`
    saved_at: float = field(default_factory=time.monotonic)

    def log(self, lr: float, readings: Mapping[str, float]) -> dict[str, float]:
        """Writes the losses, speed and memory since the last row, and returns them."""
        state = self.state
        row = _worst(self.meter.row(self.config.training.effective_batch))
        row |= optimization.rates(state.groups, lr, state.step - 1)
        row |= {"micro_batch": state.micro_batch, **readings}
        if state.scaler.is_enabled():
            row["loss_scale"] = state.scaler.get_scale()
            row["skipped_steps"] = state.skipped_steps
        self.row = row
        self.metrics.append({"step": state.step, "split": "train", **self._place(), **row})
        return row

    def validate(self) -> None:
        """Validates, and hands the scores to everything that depends on them.

        A signal stops it between two batches: then it stays due, and the next session begins with it.
        """
        state = self.state
        task = self.task
        config = self.config
        state.validation_due = True
        within = Within(self.progress, state.step, config.training.max_steps)
        with self.session.measured("evaluate"), self.meter.paused():
            try:
                must_stop = lambda: self.session.is_signalled  # noqa: E731
                scores = evaluate(state, task, config, self.validation_set, within, must_stop)
            except EvaluationStopped:
                self.progress.note(
                    f"The validation of step {state.step:,} was stopped: the next session begins with it."
                )
                return
            row = {"step": state.step, "split": "validation", **self._place(), **scores}
            self.metrics.append(row)
            self.progress.note(_validation_line(state.step, scores, task))
            observe(state, task, config, scores)
            save_best(state, config, self.saver, task, scores)
            task.after_evaluation(state.step, scores)
        state.validation_due = False

    def save(self) -> None:
        with self.meter.paused():
            self.state.pending = self.meter.pending()
            self.state.rows = self.metrics.flush()
            save_state(self.state, self.task, self.config, self.saver)
        self.saved_at = time.monotonic()

    def is_save_due(self) -> bool:
        """Returns whether to save after this step, by `checkpoint.every_steps` or `every_minutes`."""
        options = self.config.checkpoint
        minutes = (time.monotonic() - self.saved_at) / 60
        if 0 < options.every_minutes <= minutes:
            return True
        return _is_due(self.state.step, options.every_steps)

    def line(self) -> str:
        """Returns the text of the progress: epoch and stage, loss and speed of the last row, and the time left."""
        state = self.state
        parts = [f"epoch {self.order.epoch(state.step):.2f}", self._stage()]
        if row := self.row:  # only a row waits for the device
            loss = row.get("loss", math.nan)
            parts += [f"loss {loss:.4f}", f"lr {row['lr']:.2e}"]
            parts += [f"{row['samples_per_second']:.1f} samples/s"]
        steps = self.config.training.max_steps - state.step
        seconds = steps / max(self.meter.steps_per_second(), 1e-9)
        parts.append(f"{duration(seconds)} left")
        if state.skipped_steps:
            parts.append(f"skipped {state.skipped_steps}")
        return "  ".join(filter(None, parts))

    def _place(self) -> dict[str, Any]:
        """Returns the columns of metrics.csv on the place of a row: epoch, and the stage if the task has stages."""
        place: dict[str, Any] = {"epoch": self.order.epoch(self.state.step)}
        if stage := self._stage():
            place["stage"] = stage
        return place

    def _stage(self) -> str:
        """Returns the name of the stage of the last step; "" for a task without stages."""
        if not hasattr(self.task, "stage_name"):
            return ""
        return self.task.stage_name(max(0, self.state.step - 1))


def _start(
    task: Task, config: Config, state: State, order: Order, validation_set: Any, session: Session,
    progress: Progress, folder: Path,
) -> _Run:  # fmt: skip
    """Opens the tables and the saver of a run, whose state is at the step that it resumes from."""
    tables = folder if ranks.is_first() else None
    state.events = EventLog(tables and tables / EVENTS, progress.note, state.step)
    metrics = MetricsLog(tables and tables / METRICS, state.step, state.rows)
    saver = Saver(
        folder,
        Retention(folder, config.checkpoint),
        record=partial(session.record, "save"),
        before=partial(sync, folder),
    )
    meter = Meter(state.pending, state.device)
    meter.allocated_at("after load")
    return _Run(
        task, config, state, order, validation_set, session, progress, meter, metrics, saver
    )


def _is_due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


def _worst(row: dict[str, float]) -> dict[str, float]:
    """Returns the row with the highest peak and the longest wait of all ranks: that rank is the one to look at."""
    peak, waiting = ranks.highest(row["peak_memory_bytes"], row["data_wait_share"])
    return {**row, "peak_memory_bytes": int(peak), "data_wait_share": waiting}


def _validation_line(step: int, scores: Mapping[str, float], task: Task) -> str:
    names = dict.fromkeys(["loss", *task.shown])
    shown = [f"{name} {scores[name]:.4f}" for name in names if name in scores]
    return f"step {step:,}, validation: {'  '.join(shown)}"
