"""The plain loop around a user's model and step: `predict` traces it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.planner.card import Target
from lib.planner.limits import NotTraceable
from lib.planner.tracker import Tracker
from lib.training.precision import Precision, autocast, precision_on_card

STEPS = 2  # the optimizer makes its state at the end of the first, so the second is the one that lasts
PASSES = 2  # gradients are there from the second micro-batch of a step on
META = torch.device("meta")
_PRECISIONS = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Loop:
    """How the steps are run; see `trace.predict`."""

    precision: Precision
    passes: int
    clip_norm: float
    keeps_outputs: bool
    zeroes_after_forward: bool
    cards: int


def checked(target: Target, precision: str, accumulation: int, clip_norm: float, cards: int = 1) -> Precision:
    """Returns the precision on this card. Raises BadInput for values that no loop can have."""
    if precision not in (*_PRECISIONS, "auto"):
        raise BadInput(f"There is no precision {precision!r}. Write {', '.join(_PRECISIONS)} or auto.")
    for name, value in (("accumulation", accumulation), ("cards", cards)):
        if type(value) is not int or value < 1:
            raise BadInput(f"{name} is {value!r}. Give a whole number from 1.")
    if isinstance(clip_norm, bool) or not isinstance(clip_norm, int | float) or not clip_norm >= 0:
        raise BadInput(f"clip_norm is {clip_norm!r}. Give a norm above 0, or 0 for no clipping.")
    if precision == "auto":
        return precision_on_card("auto", target.card.capability, target.card.name)
    return precision  # type: ignore[return-value]


def check_functions(model: Any, step: Any) -> None:
    """Raises BadInput where a model itself was given for the function that makes it, or a batch for a step."""
    for name, value, form in (
        ("model", model, "of no arguments that makes the model: predict(lambda: Net(), ...)"),
        ("step", step, 'of the model that makes a batch on "cuda" and returns the loss'),
    ):
        if isinstance(value, nn.Module) or not callable(value):
            raise BadInput(f"{name} is {_a(value)}. Give a function {form}.")


def optimizers(result: Any) -> list[torch.optim.Optimizer]:
    """Returns the optimizers of a loop. Raises BadInput for anything else than one or several, and for closures."""
    several = list(result) if isinstance(result, Sequence) else [result]
    for optimizer in several or [None]:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise BadInput(f"optimizer returned {_a(optimizer)}. Let it return an optimizer, or a list of them.")
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise NotTraceable(
                f"{type(optimizer).__name__} calls the step again as often as its values ask for (step(closure)), and "
                "a prediction computes no values. Predict a loop with another optimizer."
            )
    return several


def run(tracker: Tracker, net: nn.Module, step: Callable[[nn.Module], Any], chosen: Sequence[Any], loop: Loop) -> None:
    """Runs two steps: zero_grad, forward and backward for each micro-batch, clipping, and every optimizer."""

    def zero() -> None:
        for optimizer in chosen:
            optimizer.zero_grad()

    parameters = [p for p in net.parameters() if p.requires_grad]
    if loop.cards > 1:  # reducer.cpp copies each gradient into a bucket, which stays
        tracker.hold(sum(p.nbytes for p in parameters), "gradients", "DDP's buckets")
    tracker.at("after load")
    for _ in range(STEPS):
        tracker.at("start")
        if not loop.zeroes_after_forward:
            zero()
        for number in range(loop.passes):
            with autocast(loop.precision, META), tracker.users_code():
                result = step(net)
            tracker.at("after forward")
            if loop.zeroes_after_forward and not number:
                zero()
            loss_of(result).backward()
            tracker.at("after backward")
            if not loop.keeps_outputs:
                del result
        if loop.clip_norm:
            nn.utils.clip_grad_norm_(parameters, loop.clip_norm)
        for optimizer in chosen:
            optimizer.step()
            tracker.adopt_optimizer(optimizer)
        tracker.at("after optimizer step")


def loss_of(result: Any) -> Tensor:
    """Returns the loss of what a step returned: itself, the first of a tuple, or its `loss`. Raises BadInput."""
    loss = result
    if isinstance(result, Mapping):
        loss = result.get("loss")
    elif not isinstance(result, Tensor) and hasattr(result, "loss"):  # a dataclass of one's own
        loss = result.loss
    elif isinstance(result, tuple | list) and result:
        loss = result[0]
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = f" (its loss has the shape {tuple(loss.shape)})" if isinstance(loss, Tensor) else ""
        raise BadInput(
            f"The step returned {_a(result)}{shape}, in which there is no loss. Let it return one number, a tuple that "
            'begins with it, or something with a "loss", as models of transformers do if they get labels.'
        )
    if not loss.requires_grad:
        raise BadInput(
            "The loss that the step returned depends on no trained parameter. Leave torch.no_grad() and .detach() out, "
            "or predict a forward pass alone: predict_inference."
        )
    return loss


def _a(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {', '.join(map(repr, list(value)[:5])) or 'nothing'}"
    return "None" if value is None else f"an object of the class {type(value).__name__}"
