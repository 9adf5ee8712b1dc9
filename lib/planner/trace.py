"""Predicts the peak memory and the time of a training step on a card that this machine lacks."""

import contextlib
import copy
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from lib.config import Config
from lib.errors import BadInput, NotTraceable
from lib.planner import kernels
from lib.planner.allocator import MIB
from lib.planner.card import CONTEXT_BYTES, NCCL_BYTES, Target, find_card
from lib.planner.cuda import CudaSemantics, simulated_cuda
from lib.planner.log import Followed, Prediction
from lib.planner.tracker import Tracker, is_users
from lib.ranks.sums import BUCKET_BYTES
from lib.task import Batch, Task
from lib.task.quantised import Quantised, replaced
from lib.training.order import put_back, seed_all
from lib.training.precision import Precision, autocast, precision_on_card
from lib.training.state import State, new_state
from lib.training.step import optimizer_step

STEPS = 2  # the optimizer makes its state in the first; all later ones are like the second
PASSES = 2  # the second micro-batch of a step, and all later ones, find gradients
META = torch.device("meta")


def predict(
    model: Callable[[], nn.Module], step: Callable[[nn.Module], Any], card: str = "t4", *, precision: str = "fp32",
    optimizer: Callable[[list[nn.Parameter]], Any] | None = None, accumulation: int = 1, clip_norm: float = 1.0,
    keeps_outputs: bool = False, zeroes_after_forward: bool = False, has_state: bool = False,
) -> Followed:  # fmt: skip
    """Predicts the peak of training any model.

    `model` makes it; `step` makes a batch on "cuda" and returns the loss.
    `keeps_outputs`: the loop holds a step's result until the next, as one without `del` does.
    `zeroes_after_forward`: the loop calls zero_grad between forward and backward, as Lightning does.
    `has_state`: the optimizer begins with its state, so that one step is traced instead of two.
    Raises BadInput; NotTraceable for shapes that depend on values, and for a second card; errors of
    `step`.
    """
    target = find_card(card)
    passes = min(accumulation, PASSES)
    computed_in = checked(target, precision)
    with _users_model(model, target) as (net, tracker, semantics):
        made = (optimizer or torch.optim.AdamW)(list(net.parameters()))
        _force_foreach(made)
        if has_state:
            _make_state(made)
        tracker.adopt(net)
        tracker.adopt_state(made.state)
        with tracker:
            tracker.at("after load")
            for _ in range(1 if has_state else STEPS):
                tracker.at("start")
                if not zeroes_after_forward:
                    made.zero_grad()
                for number in range(passes):
                    with autocast(computed_in, META), tracker.users_code():
                        result = step(net)
                    tracker.at("after forward")
                    if zeroes_after_forward and not number:
                        made.zero_grad()
                    _loss_of(result).backward()
                    tracker.at("after backward")
                    if not keeps_outputs:
                        del result
                if clip_norm:
                    trained = [p for p in net.parameters() if p.requires_grad]
                    nn.utils.clip_grad_norm_(trained, clip_norm)
                made.step()
                tracker.adopt_state(made.state)
                tracker.at("after optimizer step")
    return _followed(tracker, semantics, passes)


def predict_inference(
    model: Callable[[], nn.Module],
    step: Callable[[nn.Module], Any],
    card: str = "t4",
    *,
    precision: str = "fp32",
) -> Followed:
    """Predicts the peak of a pass without gradients; the result of `step` is held to its end."""
    target = find_card(card)
    computed_in = checked(target, precision)
    with _users_model(model, target) as (net, tracker, semantics):
        tracker.adopt(net.eval().requires_grad_(False))
        with tracker, torch.no_grad(), autocast(computed_in, META), tracker.users_code():
            tracker.at("after load")
            tracker.at("start")
            result = step(net)
            tracker.at("after forward")
            del result
    return _followed(tracker, semantics, 1)


def checked(target: Target, precision: str) -> Precision:
    """Returns the precision on this card. Raises BadInput for an unknown name."""
    if precision == "auto":
        return precision_on_card("auto", target.card.capability, target.card.name)
    if precision in ("fp32", "fp16", "bf16"):
        return cast(Precision, precision)
    raise BadInput(f"There is no precision {precision!r}. Write fp32, fp16, bf16 or auto.")


def _loss_of(result: Any) -> Tensor:
    if isinstance(result, Mapping):
        loss = result.get("loss")
    else:
        loss = getattr(result, "loss", result)
    if isinstance(loss, tuple | list) and loss:
        loss = loss[0]
    if isinstance(loss, Tensor):
        return loss
    raise BadInput(
        f"The step returned {type(result).__name__}, in which there is no loss. Let it return one"
        ' number, a tuple that begins with it, or something with a "loss", as models of transformers do.'
    )


@contextlib.contextmanager
def _users_model(
    model: Callable[[], nn.Module], target: Target
) -> Iterator[tuple[nn.Module, Tracker, CudaSemantics]]:
    """Yields a model on the simulated card, seeded so that its steps draw the same numbers."""
    tracker = Tracker(target, target.usable_bytes)
    with _traceable(), seeded(), simulated_cuda(target) as semantics:
        try:
            with META:
                # legacy constructors (torch.FloatTensor) know no default device
                net = model().to(META)
        except (NotImplementedError, RuntimeError) as error:
            if "meta" not in str(error).lower():
                raise
            net = model().to(META)  # whose constructor computes with values
        for module in _as_loaded(net).modules():
            semantics.compiled += hasattr(module, "_orig_mod")
        yield net, tracker, semantics


def predict_task(
    task: Task, config: Config, target: Target, micro_batch: int, passes: int, count: int
) -> Prediction:
    """Predicts the trainer's step: `passes` micro-batches on each of `count` cards. Reads no data."""
    traced = min(passes, PASSES)
    tracker = Tracker(target, target.usable_bytes)
    precision = precision_on_card(
        config.training.precision, target.card.capability, target.card.name
    )
    on_meta: Any = copy.copy(task)
    on_meta.model = lambda: _as_loaded(task.model())
    with seeded():
        batch = task.example_batch(micro_batch, torch.device("cpu"))
    # what `precision.allow_tf32` sets on such a card; times depend on it
    before = torch.get_float32_matmul_precision()
    tf32 = precision != "fp32" and target.card.capability >= (8, 0)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        with put_back(), simulated_cuda(target) as semantics, _traceable():
            with META:
                state = new_state(on_meta, config, META, precision)
            state.micro_batch = micro_batch
            _force_foreach(state.optimizer)
            tracker.adopt(state.model)
            tracker.adopt_state(state.ema.average if state.ema else {})
            with tracker:
                _trainers_steps(tracker, state, task, config, [batch] * traced, count)
    finally:
        torch.set_float32_matmul_precision(before)
    semantics.compiled += config.training.compile
    nccl = f"NCCL's own buffers: {NCCL_BYTES // MIB} MiB are set aside, which is an assumption."
    return _result(tracker, semantics, traced, [nccl] * (count > 1))


def _trainers_steps(
    tracker: Tracker, state: State, task: Task, config: Config, slots: list[Batch], count: int
) -> None:
    def at(moment: str) -> None:
        tracker.at(moment)
        if moment == "after backward" and count > 1:  # the bucket that is sent to other ranks
            size = min(BUCKET_BYTES, 4 * tracker.trained)
            tracker.drop(tracker.take(size, "temporaries"))

    moments: Any = types.SimpleNamespace(allocated_at=at, log=lambda figures: None)
    watched: Any = types.SimpleNamespace(count=task.count, term_weights=task.term_weights)
    watched.loss = tracker.users_code()(task.loss)
    order: Any = None  # a single process reads no data
    tracker.at("after load")
    begins = sorted({0, *(group.from_step for group in state.groups)})
    # All groups from the first step on: the most that is ever trained together
    state.groups = [replace(group, from_step=0, until_step=None) for group in state.groups]
    for step in [*begins, begins[-1] + 1]:  # the first of each stage, and the last of these twice
        tracker.at("start")
        task.step = step
        optimizer_step(state, watched, config, slots, step, order, moments)
        tracker.adopt_state(state.optimizer.state)
        tracker.at("after optimizer step")


def _as_loaded(model: nn.Module) -> nn.Module:
    """Ties a model, and replaces layers that are loaded as nf4 or int8 (`loaded_as`)."""

    def quantised(_: str, layer: Any) -> nn.Module | None:
        if hasattr(layer, "loaded_as"):
            return Quantised(layer, *layer.loaded_as)
        return None

    return replaced(tied(model), quantised)


def tied(model: nn.Module) -> nn.Module:
    """Ties a model's weights by its method: transformers 5.0 leaves them untied on `meta`, to count twice."""
    if callable(tie := getattr(model, "tie_weights", None)):
        tie()
    return model


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Seeds the generators of an example batch: its values may decide shapes."""
    with put_back():
        seed_all(0, torch.device("cpu"))
        yield


def _make_state(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def _force_foreach(optimizer: torch.optim.Optimizer) -> None:
    """Sets `foreach`, as PyTorch does for parameters on a GPU and not for those on `meta`."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


@contextlib.contextmanager
def _traceable() -> Iterator[None]:
    """Raises NotTraceable, with the line, for an operator without a rule for shapes."""
    try:
        yield
    except NotImplementedError as error:
        if "meta" not in str(error).lower() and "Sparse" not in str(error):
            raise
        line = ""
        for frame in traceback.extract_tb(error.__traceback__):  # the innermost of the user's
            if is_users(frame.filename):
                line = f" ({frame.filename}, line {frame.lineno})"
        raise NotTraceable(
            f"The step uses an operator whose shape cannot be traced without values{line}:"
            f" {str(error).splitlines()[0]} Remove it from the predicted step, or replace it by one"
            " with a fixed shape."
        ) from error


def _followed(tracker: Tracker, semantics: CudaSemantics, passes: int) -> Followed:
    one_pass, rest = _costs(tracker, passes)
    prediction = _result(tracker, semantics, passes)
    return Followed(
        **vars(prediction),
        stretches=tracker.log.stretches(),
        pass_cost=tuple(one_pass.tolist()),
        rest_cost=tuple(rest.tolist()),
    )


def _costs(tracker: Tracker, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the costs of forward and backward of one micro-batch, and of clipping and the optimizer."""
    costs = {name: cost for name, (_, cost) in tracker.moments.items()}
    after_passes = costs.get("after backward", costs["after forward"])
    after_step = costs.get("after optimizer step", after_passes)
    return (after_passes - costs["start"]) / passes, after_step - after_passes


def _result(
    tracker: Tracker, semantics: CudaSemantics, passes: int, libraries: Sequence[str] = ()
) -> Prediction:
    one_pass, rest = _costs(tracker, passes)
    target = tracker.target
    allocator = tracker.allocator
    peak = allocator.peak_allocated
    moments = {name: size for name, (size, _) in tracker.moments.items()}
    moments.pop("start", None)
    result = Prediction(
        card=target.card.name, usable_bytes=target.usable_bytes, limit_bytes=target.limit_bytes,
        peak_bytes=peak, reserved_bytes=allocator.peak_reserved,
        fits=not allocator.overflowed and peak <= target.limit_bytes,
        by_category=tracker.log.at_peak(), moments=moments, parameters=tracker.parameters,
        pass_seconds=kernels.bounds(one_pass), rest_seconds=kernels.bounds(rest),
        pass_kernels=round(one_pass[2] / kernels.LAUNCH_SECONDS[0]),
        pass_flops=float(one_pass[4]), attention=dict(semantics.attention),
        unseen=(*_unseen(tracker, semantics), *libraries, *target.assumed),
        layers=tracker.log.layers(), trained=tracker.trained,
    )  # fmt: skip
    with_workspaces = tracker.log.with_workspaces(target.usable_bytes)
    if with_workspaces is None:
        return result
    most_peak = max(peak, with_workspaces.peak_allocated)
    most_reserved = max(result.reserved_bytes, with_workspaces.peak_reserved)
    return replace(result, most_peak_bytes=most_peak, most_reserved_bytes=most_reserved)


def _unseen(tracker: Tracker, semantics: CudaSemantics) -> list[str]:
    """Returns a sentence for each part of the memory or time that no trace can see."""
    unseen = []
    for name, times in sorted(tracker.bounded.items()):
        unseen.append(
            f"the shape of {name} depends on values, so its upper bound was taken ({times} times)."
        )
    for (line, taken), times in tracker.taken.most_common(5):
        unseen.append(
            f"a value read into Python ({line}) was taken as {taken} ({times} times): another may"
            " need more memory."
        )
    if semantics.compiled:
        unseen.append("what torch.compile saves or adds: the step was traced without it.")
    if semantics.recurrent:
        unseen.append(
            "the reserve space of cuDNN's recurrent layers: its size is an assumption, and speed a guess."
        )
    unseen.append(
        f"the CUDA context and kernels that load later: {CONTEXT_BYTES // MIB} MiB are set aside for them."
    )
    return unseen
