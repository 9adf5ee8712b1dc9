"""The plain loop around a user's model and step: `predict` traces it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.planner.card import Target
from lib.planner.tracker import Tracker
from lib.training.precision import Precision, autocast, precision_on_card

STEPS = 2  # the optimizer makes its state at the end of the first, so the second is the one that lasts
PASSES = 2  # gradients are there from the second micro-batch of a step on
META = torch.device("meta")
_PRECISIONS = ("fp32", "fp16", "bf16")


def checked(target: Target, precision: str, accumulation: int, clip_norm: float, cards: int = 1) -> Precision:
    """Returns the precision on this card. Raises BadInput for values that no loop can have."""
    if precision not in (*_PRECISIONS, "auto"):
        raise BadInput(f"There is no precision {precision!r}. Write {', '.join(_PRECISIONS)} or auto.")
    if not (accumulation >= 1 and cards >= 1 and clip_norm >= 0):
        raise BadInput(
            f"A loop cannot have accumulation {accumulation}, cards {cards} and clip_norm {clip_norm}. Give numbers "
            "from 1, and a norm above 0, or 0 for no clipping."
        )
    if precision == "auto":
        return precision_on_card("auto", target.card.capability, target.card.name)
    return precision  # type: ignore[return-value]


def run(
    tracker: Tracker, net: nn.Module, step: Callable[[nn.Module], Any], optimizers: Sequence[Any], precision: Precision,
    passes: int, clip_norm: float, keeps_outputs: bool, zeroes_after_forward: bool, cards: int,
) -> None:  # fmt: skip
    """Runs two steps: zero_grad, forward and backward for each micro-batch, clipping, and every optimizer."""

    def zero() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()

    parameters = [p for p in net.parameters() if p.requires_grad]
    if cards > 1:  # reducer.cpp copies each gradient into a bucket, which stays
        tracker.hold(sum(p.nbytes for p in parameters), "gradients", "DDP's buckets")
    tracker.at("after load")
    for _ in range(STEPS):
        tracker.at("start")
        if not zeroes_after_forward:
            zero()
        for number in range(passes):
            with autocast(precision, META), tracker.users_code():
                result = step(net)
            tracker.at("after forward")
            if zeroes_after_forward and not number:
                zero()
            loss_of(result).backward()
            tracker.at("after backward")
            if not keeps_outputs:
                del result
        if clip_norm:
            nn.utils.clip_grad_norm_(parameters, clip_norm)
        for optimizer in optimizers:
            optimizer.step()
            tracker.adopt_optimizer(optimizer)
        tracker.at("after optimizer step")


def loss_of(result: Any) -> Tensor:
    """Returns the loss of what a step returned: itself, the first of a tuple, or its `loss`. Raises BadInput."""
    match result:
        case Tensor():
            loss = result
        case Mapping():
            loss = result.get("loss")
        case object(loss=_):  # a dataclass of one's own
            loss = result.loss
        case [first, *_]:
            loss = first
        case _:
            loss = None
    if isinstance(loss, Tensor):
        return loss
    raise BadInput(
        f"The step returned {type(result).__name__}, in which there is no loss. Let it return one number, a tuple that "
        'begins with it, or something with a "loss", as models of transformers do if they get labels.'
    )
