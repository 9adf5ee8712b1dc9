"""Takes one optimizer step, and retries it in smaller micro-batches if memory runs out."""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from lib import private, ranks
from lib.config import Config
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.machine import memory
from lib.ranks.sums import add_counts, over_ranks
from lib.report.meter import Logged, Meter, add_figures
from lib.task import Batch, Task
from lib.task.contract import check_loss_terms, check_terms
from lib.training import data, norms, optimization
from lib.training.optimization import Group, make_moments
from lib.training.order import DROPOUT, Order, mix, seed_all
from lib.training.precision import autocast
from lib.training.state import State

LOW_SCALE = 64  # of fp16's loss: gradients of 1e-9 become 0
NON_FINITE_LIMIT = 20  # in a row; a diverged run only burns quota


def optimizer_step(
    state: State,
    task: Task,
    config: Config,
    slots: list[Batch],
    step: int,
    order: Order,
    meter: Meter,
) -> dict[str, Tensor]:
    """Takes one step on the whole effective batch; returns the mean of each loss term as a () tensor on the device.

    If memory runs out before the weights change, all ranks retry the step with half the micro-batch. A step with a
    gradient that is not finite is skipped by all and returns no losses. Raises TrainingFailed after 20 skips in a row.
    """
    for slot in slots:
        data.check_samples(slot)
    task.step = step
    # over the whole effective batch, before the first backward pass
    counts = add_counts(map(task.count, slots))
    while (computed := _before_update(state, task, config, slots, step, counts, meter)) is None:
        _halve_micro_batch(state, config.training.slot, step)
    means, logged, is_finite = computed
    if is_finite:
        state.skipped_in_a_row = 0
        state.scaler.step(state.optimizer)
        if state.ema:
            state.ema.update(step)
        meter.log(logged)
    else:
        _name_nan_samples(state, step, order, slots)
        _count_skipped(state, step, order)
    state.scaler.update()
    _drop_gradients(state.parameters)
    meter.allocated_at("after optimizer step")
    return means if is_finite else {}


def _before_update(
    state: State,
    task: Task,
    config: Config,
    slots: list[Batch],
    step: int,
    counts: Mapping[str, float],
    meter: Meter,
) -> tuple[dict[str, Tensor], Logged, bool] | None:
    """Computes losses, figures and the clipped gradient. Returns None, with the state as before, if memory ran out."""
    buffers: list[dict[str, Tensor]] = []
    computed = None
    frozen = _frozen(state.groups, step)
    try:
        # A failed step must leave batch statistics alone.
        buffers = [_copied(module) for module in state.with_buffers]
        for parameter in frozen:
            parameter.requires_grad_(False)
        computed = _gradients(state, task, config, slots, step, counts, meter)
    except Exception as error:
        if norms.is_refusal(error):
            raise norms.refused(config.training.slot, state.micro_batch) from error
        if not memory.is_oom(error):
            raise
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
    # Outside the except block the traceback no longer pins the activations.
    _drop_gradients(frozen)
    if not ranks.anywhere(computed is None):
        assert computed
        means, logged = computed
        try:
            over_ranks(state.parameters, means, state.with_buffers, buffers)
            is_finite = _prepare_update(state, config.training.clip_norm)
            if not is_finite:  # batch statistics would keep such values
                _restore_buffers(state, buffers)
            return means, logged, is_finite
        except Exception as error:
            # Between two ranks' sums no other rank can be told, so a fresh launch repeats the step.
            if ranks.world() > 1 or not memory.is_oom(error):
                raise
    _drop_gradients(state.parameters)  # a failed backward pass leaves partial ones
    _restore_buffers(state, buffers)
    if state.scaler.is_enabled():
        private.forget_unscaling(state.scaler, state.optimizer)
    return None


def _frozen(groups: Iterable[Group], step: int) -> list[nn.Parameter]:
    """Returns the parameters of groups that are not trained in a step."""
    resting = [group for group in groups if not group.is_trained(step)]
    return [parameter for group in resting for parameter in group.parameters.values()]


def _prepare_update(state: State, clip_norm: float) -> bool:
    """Unscales and clips the gradients, and makes the optimizer's states; returns whether the gradient is finite."""
    state.scaler.unscale_(state.optimizer)
    norm = total_norm([p.grad for p in state.parameters if p.grad is not None])
    length = norm.item()  # the one wait for the device in a step
    if not math.isfinite(length):
        return False
    if 0 < clip_norm < length:  # scaling by 1 takes 20 microseconds
        nn.utils.clip_grads_with_norm_(state.parameters, clip_norm, norm)
    make_moments(state.optimizer)
    return True


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Computes the norm of all gradients as torch's `get_total_norm` does, in half the time."""
    if not gradients:
        return torch.zeros(())
    lengths = torch.stack(private.norms_of(gradients))
    return torch.linalg.vector_norm(lengths)


def _gradients(
    state: State,
    task: Task,
    config: Config,
    slots: list[Batch],
    step: int,
    counts: Mapping[str, float],
    meter: Meter,
) -> tuple[dict[str, Tensor], Logged]:
    """Accumulates the gradient of the sum over terms of weight * (sum of losses / count); returns means, figures."""
    means = dict[str, Tensor]()
    logged = Logged()
    weight = task.term_weights(step)
    if not state.model.training:
        state.model.train()  # walks all modules: 40 microseconds in a model of six
    position = ranks.rank() * sum(map(data.size_of, slots))  # in the whole effective batch
    micro_batches = (
        micro for slot in slots for micro in data.micro_batches(slot, state.micro_batch)
    )
    for host_batch in micro_batches:
        micro = data.to_device(host_batch, state.device)
        # Dropout is a function of (seed, step, position of the micro-batch): a resumed step draws the same masks, and
        # so does a repeated one in micro-batches of the same size. Others draw other masks. So does a user's loss.
        seed_all(mix(DROPOUT, config.seed, step, position), state.device)
        size = data.size_of(micro)
        position += size
        with autocast(state.precision, state.device):
            sums, figures = task.loss(state.model, micro)
        if sums.keys() != counts.keys():
            check_loss_terms(task, counts, sums)
        parts = {}
        for term in filter(counts.get, sums):
            value = sums[term].float()
            factor = weight.get(term, 1.0)
            if factor != 1:
                value = factor * value
            parts[term] = value / counts[term]
        meter.allocated_at("after forward")
        if parts:
            total = functools.reduce(torch.add, parts.values())
            if not total.requires_grad:
                raise BadInput(
                    f"The loss of step {step} has no gradient: {type(task).__name__}.loss computes it with .detach() "
                    "or torch.no_grad(), or from frozen parameters only (until_step, say)."
                )
            state.scaler.scale(total).backward()
        meter.allocated_at("after backward")
        for term, value in parts.items():
            mean = value.detach()
            means[term] = means[term] + mean if term in means else mean
        if figures:
            columns = optimization.rates(state.groups, 0.0, step)
            add_figures(logged, figures, size, counts, columns)
    # several ranks share the counts, and a term may be missing on one
    if ranks.world() == 1 and (weight or means.keys() != counts.keys()):
        check_terms(task, counts, weight, means)
    for term in counts.keys() - means.keys():
        means[term] = torch.zeros((), device=state.device)
    return {term: means[term] for term in counts}, logged


@contextlib.contextmanager
def memory_for_next_launch(state: State, slot: int) -> Iterator[None]:
    """Turns an out-of-memory error after which no step can be retried into OutOfMemory."""
    try:
        yield
    except Exception as error:
        # a smaller micro-batch does not help a worker
        in_worker = "DataLoader worker process" in str(error)
        if in_worker or isinstance(error, BadInput | TrainingFailed) or not memory.is_oom(error):
            raise
        before = state.micro_batch
        has_norms = norms.has_batch_norms(state.model)
        smaller = norms.smaller(before, slot, 2 if has_norms else 1)
        why = "the weights may have changed in part"
        if ranks.world() > 1:
            why = "the other ranks wait for this one"
        advice = _advice(has_norms)
        if smaller:
            advice = f"Set training.micro_batch to {smaller} and run again; it resumes from the newest checkpoint."
        text = f"Memory ran out at step {state.step} in micro-batches of {before}, where it cannot be repeated: {why}."
        raise OutOfMemory(text, smaller, advice, before) from error


def _halve_micro_batch(state: State, slot: int, step: int) -> None:
    """Clears memory and halves the micro-batch, with an event. Raises TrainingFailed if none is smaller."""
    before = state.micro_batch
    has_norms = norms.has_batch_norms(state.model)
    size = norms.smaller(before, slot, 2 if has_norms else 1)
    if not size:
        raise TrainingFailed(
            f"Memory ran out at step {step} with {_samples(before)} at once. {_advice(has_norms)}"
        )
    memory.clear_memory()
    text = (
        f"Memory ran out at step {step}: it is repeated with {_samples(size)} at once instead of {before}; "
        "the effective batch stays the same."
    )
    state.events.record(state.step, "oom_training", before, size, text)
    state.micro_batch = size


def _samples(number: int) -> str:
    return "one sample" if number == 1 else f"{number} samples"


def _advice(has_norms: bool) -> str:
    """Returns the advice for a micro-batch that cannot be smaller."""
    advice = "Set training.gradient_checkpointing to all, make the model or its input smaller, or take a larger card."
    if not has_norms:
        return advice
    return (
        "The model has batch norms, whose statistics need two samples in each micro-batch: it is not made smaller. "
        f"{advice} If each norm sees many pixels of a sample, training.micro_batch: 1 works too."
    )


def _drop_gradients(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None  # zero_grad takes ten times as long


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.named_buffers(recurse=False)}


def _restore_buffers(state: State, buffers: list[dict[str, Tensor]]) -> None:
    if not buffers:  # memory ran out while they were copied, before anything changed
        return
    with torch.no_grad():
        for module, copies in zip(state.with_buffers, buffers, strict=True):
            for name, value in copies.items():
                module.get_buffer(name).copy_(value)


def _name_nan_samples(state: State, step: int, order: Order, slots: list[Batch]) -> None:
    """Names each training sample of a skipped step with NaN or infinity once; labels may be NaN."""
    for slot, batch in zip(order.share(ranks.rank(), ranks.world()), slots, strict=True):
        indices = order.indices(step, slot)
        for name, value in batch.items():
            if name == "labels" or not value.is_floating_point():
                continue
            finite = value.isfinite().reshape(len(value), -1).all(1).tolist()
            samples = {index for index, good in zip(indices, finite, strict=True) if not good}
            new = sorted(samples - state.nan_samples)
            if not new:
                continue
            state.nan_samples |= samples
            text = (
                f"Step {step:,} is skipped: {name!r} of the training samples {new[:5]} has NaN or infinity. "
                "Fill in numbers there, or leave them out."
            )
            state.events.record(step, "skipped", 0, 0, text)


def _count_skipped(state: State, step: int, order: Order) -> None:
    """Counts a skipped step: fp16 skips a few. Raises TrainingFailed, with the last samples, after many in a row."""
    state.skipped_steps += 1
    state.skipped_in_a_row += 1
    _watch_scale(state, step)
    if state.skipped_in_a_row >= NON_FINITE_LIMIT:
        samples = [i for slot in range(order.slots) for i in order.indices(step, slot)]
        more = "..." if len(samples) > 16 else ""
        raise TrainingFailed(
            f"The gradient was not finite in {NON_FINITE_LIMIT} steps in a row, the last of them step {step} on "
            f"samples {samples[:16]}{more}. Look at these, or lower optimizer.lr and run again: skipped steps change "
            "no weights."
        )


def _watch_scale(state: State, step: int) -> None:
    """Names the layer at which a loss scale sinks below 64. Raises TrainingFailed below 1: gradients become 0."""
    if not state.scaler.is_enabled():  # it has no factors
        return
    scale = state.scaler.get_scale() * state.scaler.get_backoff_factor()  # after this step
    if scale >= 1 and not scale < LOW_SCALE <= 2 * scale:
        return
    names = []
    for name, parameter in state.model.named_parameters():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            names.append(name)
    sentence = (
        f"The loss scale of fp16 is {scale:g} after step {step}, because the gradient of {names[-1]} is not finite. "
        "`trainbook precision CONFIG` finds the layer to name in training.fp32_modules."
    )
    if scale < 1:
        raise TrainingFailed(
            f"{sentence} Smaller gradients are 0 at this scale, so the run ends here."
        )
    state.events.record(step, "low_loss_scale", 2 * scale, scale, sentence)
