"""The training loop: one visible function, and the few steps that it is made of.

Under torchrun every rank runs it, each on its own slots of the effective batch. What could differ between them (counts,
memory that runs out, when to stop and save) is decided together; only the first rank writes.
"""

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib import checkpoint, data, memory, optimization, ranks, sharding, summation
from lib import state as states
from lib.config import Config
from lib.errors import OutOfMemory, TrainingFailed
from lib.events import EventLog
from lib.meter import Meter
from lib.metrics import MetricsLog
from lib.progress import Progress, duration
from lib.retention import Retention
from lib.sampler import Advice, Sampler
from lib.saver import Saver
from lib.session import Reason, Session
from lib.state import State
from lib.task import Batch, Task

NON_FINITE_LIMIT = 20  # in a row; a diverged run only burns quota


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
    order = data.Order(
        len(train_set), config.seed, training.effective_batch, training.micro_batch_slots, data.weights_of(train_set)
    )
    state = states.new(task, config)
    saver = Saver(folder, Retention(folder, config.checkpoint), partial(session.record, "save"))
    if resume := states.from_first(resume):
        states.restore(state, resume)
        state.resumed_from = resume.path
        saver.retention.keep_best([best["step"] for best in state.kept_best])  # others belong to a lost session
    elif config.run.initial_weights:
        progress.note(states.start_from(state, task, config))
    state.events = EventLog(folder / "events.csv" if ranks.is_first() else None, progress.note)
    if ranks.world() > 1:
        progress.note(f"Training on {ranks.world()} ranks. {summation.about_norms(state)}")
    loading, sentence = data.fitting(task, order.slot_size, config.data)
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
                states.prepare_saving(state, config, saver)
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
                    states.observe(state, task, scores)
                    states.save_best(state, config, saver, task, scores)

            evaluating = _due(state.step + 1, training.evaluate_every_steps)
            stop = None if last else session.stop_reason(evaluating)
            stop, save = _decided(stop, _save_due(state.step, saved_at, config))
            session.agree(stop)
            if last or stop or save:
                with meter.saving():
                    state.pending = meter.pending()
                    states.save(state, task, config, saver)
                    saved_at = time.monotonic()
            if stop:
                reason = stop
                break
            if _due(state.step, config.memory.empty_cache_every_steps):
                memory.empty_cache()
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


def optimizer_step(
    state: State, task: Task, config: Config, slots: list[Batch], step: int, order: data.Order, meter: Meter
) -> dict[str, Tensor]:
    """One step on the whole effective batch; returns the mean of each loss term, on the device (none when skipped).

    `slots` are this rank's. Running out of memory on any rank repeats the same step with half the micro-batch on all. A
    step whose gradient is not finite is skipped and counted; all ranks see the same sum, so they skip together. Raises
    TrainingFailed after 20 of those in a row, or when a single sample does not fit.
    """
    counts = ranks.add_counts(_counted(task, slots))
    buffers = _copied_buffers(state)
    tried: list[int] = []
    while ranks.anywhere((means := _gradients(state, task, config, slots, counts, step, meter)) is None):
        tried.append(state.micro_batch)
        _halve_micro_batch(state, buffers, step, tried)
    summation.over_ranks(state, means, buffers)

    state.scaler.unscale_(state.optimizer)
    norm = sharding.whole(nn.utils.get_total_norm([p.grad for p in state.parameters if p.grad is not None]))
    length = norm.item()  # the one wait for the device in a step
    if finite := math.isfinite(length):
        if 0 < config.training.clip_norm < length:  # scaling by 1 takes 20 microseconds
            nn.utils.clip_grads_with_norm_(state.parameters, config.training.clip_norm, norm)
        state.skipped_in_a_row = 0
        state.scaler.step(state.optimizer)
        if state.ema:
            state.ema.update(step)
    else:
        _restore_buffers(state, buffers)  # batch statistics that saw such values would stay so for ever
        _count_skipped(state, step, order)
    sharding.update_scale(state.scaler, state.optimizer, finite)
    _drop_gradients(state)
    meter.allocated_at("after optimizer step")
    return means if finite else {}


def _counted(task: Task, slots: list[Batch]) -> dict[str, int]:
    """Valid targets of each term in these slots, known before the first backward pass."""
    counts: dict[str, int] = {}
    for batch in slots:
        for term, number in task.count(batch).items():
            counts[term] = counts.get(term, 0) + int(number)
    return counts


def _gradients(
    state: State, task: Task, config: Config, slots: list[Batch], counts: Mapping[str, int], step: int, meter: Meter
) -> dict[str, Tensor] | None:
    """Accumulates the gradient of the sum over terms of weight * (sum of losses / count); None where memory ran out."""
    means: dict[str, Tensor] = {}
    if not state.model.training:
        state.model.train()  # walks all modules: 40 microseconds in a model of six
    position = ranks.rank() * sum(map(data.size, slots))  # in the whole effective batch
    micro_batches = (micro for slot in slots for micro in data.micro_batches(slot, state.micro_batch))
    weight = task.term_weights(step)
    try:
        for micro in data.on_device(micro_batches, state.device):
            _seed_dropout(config.seed, step, position, state.device)
            position += data.size(micro)
            with memory.autocast(state.precision, state.device):
                sums, _ = task.loss(state.model, micro)
            parts = {
                term: weight.get(term, 1.0) * value.float() / counts[term]
                for term, value in sums.items()
                if counts[term]
            }
            meter.allocated_at("after forward")
            if parts:
                state.scaler.scale(functools.reduce(torch.add, parts.values())).backward()
            meter.allocated_at("after backward")
            for term, value in parts.items():
                means[term] = means[term] + value.detach() if term in means else value.detach()
        return {term: means[term] if term in means else torch.zeros((), device=state.device) for term in counts}
    except Exception as error:
        if not memory.is_oom(error):
            raise
        if state.sharded:  # the other ranks wait in the middle of a layer for what this one cannot compute
            raise _sharded_oom(state, step) from error
    return None  # outside the except block, where the traceback no longer pins the activations


def _sharded_oom(state: State, step: int) -> OutOfMemory:
    smaller = (state.micro_batch + 1) // 2
    advice = f"Set training.micro_batch to {smaller} and run again; it goes on from the newest checkpoint."
    if state.micro_batch == 1:
        advice = "Set training.gradient_checkpointing to all, or divide the states among more ranks."
    return OutOfMemory(
        f"Memory ran out at step {step} in micro-batches of {state.micro_batch}. With training.fully_shard the ranks "
        f"cannot repeat a step. {advice}",
        smaller if state.micro_batch > 1 else 0,
    )


def _seed_dropout(seed: int, step: int, position: int, device: torch.device) -> None:
    """Dropout masks become a function of (seed, step, position): a resumed or repeated step draws the same ones."""
    value = data.mix(data.DROPOUT, seed, step, position)
    torch.default_generator.manual_seed(value)  # 1 microsecond; torch.manual_seed takes 150
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)


def _halve_micro_batch(state: State, buffers: list[dict[str, Tensor]], step: int, tried: list[int]) -> None:
    if state.micro_batch == 1:
        raise TrainingFailed(
            f"Memory ran out at step {step} with a micro-batch of one sample (tried: {_listed(tried)}). Set "
            "training.gradient_checkpointing to all, make the model or its input smaller, or take a card with more "
            "memory."
        )
    _drop_gradients(state)  # a failed backward pass leaves partial ones
    _restore_buffers(state, buffers)
    memory.clear_memory()
    before, state.micro_batch = state.micro_batch, (state.micro_batch + 1) // 2
    state.events.record(
        step, "oom_training", before, state.micro_batch,
        f"Memory ran out at step {step}: the step is repeated in micro-batches of {state.micro_batch} instead of "
        f"{before}; the effective batch stays.",
    )  # fmt: skip


def _drop_gradients(state: State) -> None:
    for parameter in state.parameters:
        parameter.grad = None  # what zero_grad does, in a tenth of its time


def _copied_buffers(state: State) -> list[dict[str, Tensor]]:
    """Copies of every buffer, for each module that has some: a failed step must leave batch statistics alone."""
    return [{k: v.clone() for k, v in m._buffers.items() if v is not None} for m in state.with_buffers]


def _restore_buffers(state: State, buffers: list[dict[str, Tensor]]) -> None:
    with torch.no_grad():
        for module, copies in zip(state.with_buffers, buffers, strict=True):
            for name, value in copies.items():
                module._buffers[name].copy_(value)


def _count_skipped(state: State, step: int, order: data.Order) -> None:
    """fp16 skips a few steps while its loss scale settles; many in a row mean that the run has diverged."""
    state.skipped_steps += 1
    state.skipped_in_a_row += 1
    if state.skipped_in_a_row >= NON_FINITE_LIMIT:
        samples = [i for slot in range(order.slots) for i in order.indices(step, slot)]
        raise TrainingFailed(
            f"The gradient was not finite in {NON_FINITE_LIMIT} steps in a row, the last of them step {step} on "
            f"samples {samples[:16]}{'...' if len(samples) > 16 else ''}. Look at these, or lower optimizer.lr. "
            f"{_last_good(state, step + 1 - NON_FINITE_LIMIT)}"
        )


def _last_good(state: State, before: int) -> str:
    """Names the newest checkpoint of at most `before` steps, the last whose gradients were finite."""
    folder = state.events.path.parent / "checkpoints" if state.events.path else None
    good = [saved for saved in checkpoint.steps(folder) if saved <= before] if folder else []
    path = checkpoint.path_of(folder, good[-1]) if folder and good else state.resumed_from
    if path is None:
        return "There is no checkpoint from before them."
    return f"The last good checkpoint is {path}, from before them (step {int(path.name.rpartition('-')[2]):,})."


def evaluate(
    state: State, task: Task, config: Config, dataset: Any, progress: Progress | None = None
) -> dict[str, float]:
    """The task's metrics on a data set, without gradients and in the run's precision.

    Every rank evaluates the whole: a task's metrics are no sums that could be put together from parts, so dividing them
    would change figures with the number of ranks. It takes as long as on one card. The first rank's scores count.

    Running out of memory repeats the whole evaluation with half as many samples at once: no metric changes. Raises
    TrainingFailed when a single sample does not fit.
    """
    slot = config.training.effective_batch // config.training.micro_batch_slots
    collated = min(config.training.micro_batch or slot, slot)  # whatever fits, padding and draws stay the same
    on_batch = (lambda done, total: progress.update(done, total, "evaluation batches")) if progress else None
    state.model.eval()
    tried = []
    while True:
        most = state.evaluation_batch or state.micro_batch
        loader = data.EvaluationLoader(task, dataset, collated, state.device, config.seed, on_batch, most)
        scores = _scores(state, task, loader)
        if not ranks.anywhere(scores is None):
            return ranks.from_first(scores)
        tried.append(loader.most)
        _halve_evaluation_batch(state, tried)


def _scores(state: State, task: Task, loader: data.EvaluationLoader) -> dict[str, float] | None:
    """What the task measures; None where memory ran out."""
    try:
        without_gradients = torch.no_grad() if state.sharded else torch.inference_mode()  # hooks write into weights
        with state.averaged(), without_gradients, memory.autocast(state.precision, state.device):
            return task.evaluate(state.model, loader)
    except Exception as error:
        if not memory.is_oom(error):
            raise
        if state.sharded:
            raise _sharded_oom(state, state.step) from error
    return None  # outside the except block, as in _gradients


def _halve_evaluation_batch(state: State, tried: list[int]) -> None:
    if tried[-1] == 1:
        raise TrainingFailed(
            f"Memory ran out in the evaluation at step {state.step} with one sample at once (tried: {_listed(tried)}). "
            "Make the model or its input smaller, let Task.evaluate keep its results on the CPU, or take a card with "
            "more memory."
        )
    memory.clear_memory()
    state.evaluation_batch = (tried[-1] + 1) // 2
    state.events.record(
        state.step, "oom_evaluation", tried[-1], state.evaluation_batch,
        f"Memory ran out in the evaluation at step {state.step}: it starts again with {state.evaluation_batch} samples "
        f"at once instead of {tried[-1]}; its metrics stay the same.",
    )  # fmt: skip


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes))


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
