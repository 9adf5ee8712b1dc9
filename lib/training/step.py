"""One optimizer step, and its repetition where memory runs out."""

import functools
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lib import checkpoint, ranks
from lib.config import Config
from lib.errors import OutOfMemory, TrainingFailed
from lib.machine import memory
from lib.ranks import sharding
from lib.ranks.sums import add_counts, over_ranks
from lib.report.meter import Meter
from lib.task import Batch, Task, check_terms
from lib.text import listed
from lib.training import data
from lib.training.order import DROPOUT, Order, mix, seed_generators
from lib.training.precision import autocast
from lib.training.state import State

NON_FINITE_LIMIT = 20  # in a row; a diverged run only burns quota


def optimizer_step(
    state: State, task: Task, config: Config, slots: list[Batch], step: int, order: Order, meter: Meter
) -> dict[str, Tensor]:
    """Takes one step on the whole effective batch; returns the mean of each loss term as a () tensor on the device.

    `slots` are this rank's batches, samples first. Where memory runs out on any rank, all repeat the same step with
    half the micro-batch. A step whose gradient is not finite is skipped and counted, and returns no losses; all ranks
    see the same sum, so they skip together. Raises TrainingFailed after 20 of those in a row, and where a single sample
    does not fit.
    """
    counts = add_counts(map(task.count, slots))  # of the whole effective batch, before the first backward pass
    # A failed step must leave batch statistics alone.
    buffers = [{k: v.clone() for k, v in m._buffers.items() if v is not None} for m in state.with_buffers]
    tried: list[int] = []
    while ranks.anywhere((means := _gradients(state, task, config, slots, counts, step, meter)) is None):
        tried.append(state.micro_batch)
        _drop_gradients(state)  # a failed backward pass leaves partial ones
        _restore_buffers(state, buffers)
        _halve_micro_batch(state, step, tried)
    over_ranks(state.parameters, means, state.with_buffers, buffers, state.sharded)

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


def _gradients(
    state: State, task: Task, config: Config, slots: list[Batch], counts: Mapping[str, int], step: int, meter: Meter
) -> dict[str, Tensor] | None:
    """Accumulates the gradient of the sum over terms of weight * (sum of losses / count); None where memory ran out."""
    means: dict[str, Tensor] = {}
    if not state.model.training:
        state.model.train()  # walks all modules: 40 microseconds in a model of six
    position = ranks.rank() * sum(map(data.size_of, slots))  # in the whole effective batch
    micro_batches = (micro for slot in slots for micro in data.micro_batches(slot, state.micro_batch))
    weight = task.term_weights(step)
    try:
        for micro in data.on_device(micro_batches, state.device):
            # Dropout is a function of (seed, step, position): a resumed or repeated step draws the same masks.
            seed_generators(mix(DROPOUT, config.seed, step, position), state.device)
            position += data.size_of(micro)
            with autocast(state.precision, state.device):
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
        if ranks.world() == 1:  # else the counts are those of all ranks
            check_terms(task, counts, weight, means)
        return {term: means[term] if term in means else torch.zeros((), device=state.device) for term in counts}
    except Exception as error:
        if not memory.is_oom(error):
            raise
        if state.sharded:  # the other ranks wait in the middle of a layer for what this one cannot compute
            raise sharded_oom(state, step) from error
    return None  # outside the except block, where the traceback no longer pins the activations


def sharded_oom(state: State, step: int) -> OutOfMemory:
    """Returns the error for memory that ran out under FSDP2, with the micro-batch for the next launch."""
    smaller = (state.micro_batch + 1) // 2
    advice = f"Set training.micro_batch to {smaller} and run again; it resumes from the newest checkpoint."
    if state.micro_batch == 1:
        advice = "Set training.gradient_checkpointing to all, or divide the states among more ranks."
    return OutOfMemory(
        f"Memory ran out at step {step} in micro-batches of {state.micro_batch}. With training.fully_shard the ranks "
        f"cannot repeat a step. {advice}",
        smaller if state.micro_batch > 1 else 0,
    )


def _halve_micro_batch(state: State, step: int, tried: list[int]) -> None:
    """Clears memory and halves the micro-batch, with an event. Raises TrainingFailed where it is one sample already."""
    if state.micro_batch == 1:
        raise TrainingFailed(
            f"Memory ran out at step {step} with a micro-batch of one sample (tried: {listed(tried)}). Set "
            "training.gradient_checkpointing to all, make the model or its input smaller, or take a card with more "
            "memory."
        )
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


def _restore_buffers(state: State, buffers: list[dict[str, Tensor]]) -> None:
    with torch.no_grad():
        for module, copies in zip(state.with_buffers, buffers, strict=True):
            for name, value in copies.items():
                module._buffers[name].copy_(value)


def _count_skipped(state: State, step: int, order: Order) -> None:
    """Counts a skipped step. fp16 skips a few while its loss scale settles; many in a row mean divergence.

    Raises TrainingFailed, with the samples of the last step and the newest checkpoint from before the first.
    """
    state.skipped_steps += 1
    state.skipped_in_a_row += 1
    if state.skipped_in_a_row < NON_FINITE_LIMIT:
        return
    samples = [i for slot in range(order.slots) for i in order.indices(step, slot)]
    before = step + 1 - NON_FINITE_LIMIT
    folder = state.events.path.parent / "checkpoints" if state.events.path else None
    steps = [saved for saved in checkpoint.steps(folder) if saved <= before] if folder else []
    path = checkpoint.path_of(folder, steps[-1]) if folder and steps else state.resumed_from
    last_good = "There is no checkpoint from before them."
    if path:
        number = int(path.name.rpartition("-")[2])
        last_good = f"The last good checkpoint is {path}, from before them (step {number:,})."
    raise TrainingFailed(
        f"The gradient was not finite in {NON_FINITE_LIMIT} steps in a row, the last of them step {step} on "
        f"samples {samples[:16]}{'...' if len(samples) > 16 else ''}. Look at these, or lower optimizer.lr. {last_good}"
    )
