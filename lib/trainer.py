"""The training loop: one visible function, and the few steps that it is made of."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib import checkpoint, data, memory, optimization
from lib import state as states
from lib.config import Config
from lib.meter import Meter
from lib.metrics import MetricsLog
from lib.progress import Progress
from lib.retention import Retention
from lib.saver import Saver
from lib.session import Reason, Session
from lib.state import State
from lib.task import Batch, Task

NON_FINITE_LIMIT = 20  # in a row; a diverged run only burns quota


class TrainingFailed(RuntimeError):
    """The run cannot go on; says at which step, on which samples, and what to change."""


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended, with what it measured: steps per second, peak bytes, bytes after each phase."""

    reason: Reason
    state: State
    steps_per_second: float
    peak_bytes: int
    allocated: dict[str, int]


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
    happened. Raises TrainingFailed where going on makes no sense, BadInput where `resume` does not fit.
    """
    training = config.training
    _be_deterministic(training.deterministic)
    datasets = task.datasets()
    train_set = data.subset(datasets["train"], config.data.subset_ratio, config.seed)
    order = data.Order(len(train_set), config.seed, training.effective_batch, training.micro_batch_slots)
    state = states.new(task, config)
    saver = Saver(folder, Retention(folder, config.checkpoint), partial(session.record, "save"))
    if resume:
        states.restore(state, resume)
        saver.retention.keep_best([best["step"] for best in state.kept_best])  # others belong to a lost session
    meter = Meter(state.pending, state.device)
    meter.allocated_at("after load")
    steps = range(state.step, training.max_steps)
    reason: Reason = "completed"
    saved_at = time.monotonic()

    with session.catching_signals(), MetricsLog(folder / "metrics.csv", state.step) as log, saver:
        for step, slots in data.train_batches(task, train_set, order, steps, config.data.num_workers):
            with session.measured("step"):
                lr = optimization.learning_rate(config, step)
                optimization.set_learning_rate(state.optimizer, lr)
                meter.add(optimizer_step(state, task, config, slots, step, order, meter))
                state.step = step + 1
            if step == steps.start:
                states.prepare_saving(state, config, saver)
            last = state.step == training.max_steps

            if last or _due(state.step, training.log_every_steps):
                row = {**meter.row(training.effective_batch), "lr": lr, "micro_batch": state.micro_batch}
                log.append({"step": state.step, "split": "train", **row})
                progress.update(state.step, training.max_steps, _line(row, state, training.max_steps, meter))

            if last or _due(state.step, training.evaluate_every_steps):
                with session.measured("evaluate"), meter.paused():
                    scores = evaluate(state, task, config, datasets["validation"])
                    log.append({"step": state.step, "split": "validation", **scores})
                    progress.note(f"step {state.step:,}, validation: {_figures(scores)}")
                    states.save_best(state, config, saver, task, scores)

            stop = None if last else session.stop_reason()
            if last or stop or _save_due(state.step, saved_at, config):
                with meter.paused():
                    state.pending = meter.pending()
                    states.save(state, task, config, saver)
                    saved_at = time.monotonic()
            if stop:
                reason = stop
                break
        _finish_saving(saver)

    progress.close()
    return Outcome(reason, state, meter.steps_per_second(), memory.peak_bytes(), meter.allocated)


def _finish_saving(saver: Saver) -> None:
    """The last save of a session is waited for, and its failure is one of the run: nothing may be lost in silence."""
    try:
        saver.wait()
    except checkpoint.CheckpointNotSaved as error:
        raise TrainingFailed(
            f"{error} This was the last save of the session: the next one goes on from the checkpoint before."
        ) from error


def optimizer_step(
    state: State, task: Task, config: Config, slots: list[Batch], step: int, order: data.Order, meter: Meter
) -> dict[str, Tensor]:
    """One step on the whole effective batch; returns the mean of each loss term, on the device (none when skipped).

    Running out of memory repeats the same step with half the micro-batch. A step whose gradient is not finite is
    skipped and counted. Raises TrainingFailed after 20 of those in a row, or when a single sample does not fit.
    """
    counts = _counted(task, slots)
    buffers = {name: value.clone() for name, value in state.model.named_buffers()}
    while (means := _gradients(state, task, config, slots, counts, step, meter)) is None:
        _halve_micro_batch(state, buffers, step)

    state.scaler.unscale_(state.optimizer)
    norm = nn.utils.clip_grad_norm_(state.model.parameters(), config.training.clip_norm or math.inf)
    finite = bool(torch.isfinite(norm))
    if finite:
        state.skipped_in_a_row = 0
        state.scaler.step(state.optimizer)
    else:
        _count_skipped(state, step, order)
    state.scaler.update()
    state.optimizer.zero_grad(set_to_none=True)
    meter.allocated_at("after optimizer step")
    return means if finite else {}


def _counted(task: Task, slots: list[Batch]) -> dict[str, int]:
    """Valid targets of each term in the whole effective batch, known before the first backward pass."""
    counts: dict[str, int] = {}
    for batch in slots:
        for term, number in task.count(batch).items():
            counts[term] = counts.get(term, 0) + int(number)
    return counts


def _gradients(
    state: State, task: Task, config: Config, slots: list[Batch], counts: Mapping[str, int], step: int, meter: Meter
) -> dict[str, Tensor] | None:
    """Accumulates the gradient of the sum over terms of (sum of losses / count); None where memory ran out."""
    means = {term: torch.zeros((), device=state.device) for term in counts}
    state.model.train()
    position = 0
    try:
        for slot in slots:
            for micro in data.micro_batches(slot, state.micro_batch):
                _seed_dropout(config.seed, step, position, state.device)
                position += data.size(micro)
                with memory.autocast(state.precision, state.device):
                    sums, _ = task.loss(state.model, data.to_device(micro, state.device))
                parts = {term: value.float() / counts[term] for term, value in sums.items() if counts[term]}
                meter.allocated_at("after forward")
                if parts:
                    state.scaler.scale(torch.stack(list(parts.values())).sum()).backward()
                meter.allocated_at("after backward")
                for term, value in parts.items():
                    means[term] += value.detach()
        return means
    except Exception as error:
        if not memory.is_oom(error):
            raise
    return None  # outside the except block, where the traceback no longer pins the activations


def _seed_dropout(seed: int, step: int, position: int, device: torch.device) -> None:
    """Dropout masks become a function of (seed, step, position): a resumed or repeated step draws the same ones."""
    value = data.mix(data.DROPOUT, seed, step, position)
    torch.default_generator.manual_seed(value)  # 1 microsecond; torch.manual_seed takes 150
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)


def _halve_micro_batch(state: State, buffers: Mapping[str, Tensor], step: int) -> None:
    if state.micro_batch == 1:
        raise TrainingFailed(
            f"Memory ran out at step {step} with a micro-batch of one sample. Set training.gradient_checkpointing to "
            "all, make the model or its input smaller, or take a card with more memory."
        )
    state.optimizer.zero_grad(set_to_none=True)  # a failed backward pass leaves partial gradients
    with torch.no_grad():
        for name, value in state.model.named_buffers():
            value.copy_(buffers[name])
    memory.clear_memory()
    before, state.micro_batch = state.micro_batch, (state.micro_batch + 1) // 2
    print(
        f"Memory ran out at step {step}: the step is repeated in micro-batches of {state.micro_batch} instead of "
        f"{before}; the effective batch stays.",
        flush=True,
    )


def _count_skipped(state: State, step: int, order: data.Order) -> None:
    """fp16 skips a few steps while its loss scale settles; many in a row mean that the run has diverged."""
    state.skipped_steps += 1
    state.skipped_in_a_row += 1
    if state.skipped_in_a_row >= NON_FINITE_LIMIT:
        samples = [i for slot in range(order.slots) for i in order.indices(step, slot)]
        raise TrainingFailed(
            f"The gradient was not finite in {NON_FINITE_LIMIT} steps in a row, the last of them step {step} on "
            f"samples {samples[:16]}{'...' if len(samples) > 16 else ''}. Look at these, or lower optimizer.lr."
        )


def evaluate(
    state: State, task: Task, config: Config, dataset: Any, progress: Progress | None = None
) -> dict[str, float]:
    """The task's metrics on a data set, without gradients and in the run's precision."""
    on_batch = (lambda done, total: progress.update(done, total, "evaluation batches")) if progress else None
    loader = data.EvaluationLoader(task, dataset, state.micro_batch, state.device, config.seed, on_batch)
    state.model.eval()
    with torch.inference_mode(), memory.autocast(state.precision, state.device):
        return task.evaluate(state.model, loader)


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


def _save_due(step: int, saved_at: float, config: Config) -> bool:
    options = config.checkpoint
    by_time = options.every_minutes and time.monotonic() - saved_at >= 60 * options.every_minutes
    return bool(by_time) or _due(step, options.every_steps)


def _line(row: Mapping[str, float], state: State, total: int, meter: Meter) -> str:
    """What the progress shows: loss, learning rate, speed, time left at the speed measured so far."""
    left = (total - state.step) / max(meter.steps_per_second(), 1e-9)
    skipped = f"  skipped {state.skipped_steps}" if state.skipped_steps else ""
    return (
        f"loss {row.get('loss', math.nan):.4f}  lr {row['lr']:.2e}  {row['samples_per_second']:.1f} samples/s  "
        f"{int(left // 3600)}:{int(left % 3600 // 60):02d}:{int(left % 60):02d} left{skipped}"
    )


def _figures(scores: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in scores.items())


def _be_deterministic(wanted: bool) -> None:
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when its first handle is made
    torch.use_deterministic_algorithms(wanted)
