"""Memory that really runs out: the card is filled at a place of a step until an allocation fails there."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from lib.config import with_changes
from lib.report.metrics import METRICS, read
from lib.report.progress import Plain
from lib.task import load_task
from lib.training import loop, step
from lib.training.session import Session
from tests.gpu.parts.bits import toy

ROWS = ("forward", "backward", "clipping", "moments", "evaluation")
AT_STEP = 3
_CHUNK = 2**30  # bytes of an allocation
TOLERANCE = 1e-3  # of a loss: sums in another order round otherwise


class Card:
    """Fills the card once, at the chosen call of a place; the next call of it gives the memory back."""

    def __init__(self, at: int):
        self.at = at
        self.calls = 0
        self.blocks: list[torch.Tensor] = []
        self.ran_out = 0

    def fill(self) -> None:
        self.calls += 1
        self.blocks.clear()
        if self.calls != self.at:
            return
        self.ran_out += 1
        if not torch.cuda.is_available():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
        torch.cuda.empty_cache()
        while True:  # until the card refuses: the error is the allocator's own
            self.blocks.append(torch.empty(_CHUNK, dtype=torch.uint8, device="cuda"))


def measure(row: str, folder: Path, tiny: bool) -> dict[str, Any]:
    """Trains the toy task undisturbed and with a card that is full at `row`; compares steps and losses."""
    changes = {
        "training__micro_batch": 4,
        "training__precision": "fp32",
        "training__log_every_steps": 1,
    }
    config = toy(folder, row, **changes)
    whole = losses(config, folder / "whole", contextlib.nullcontext())
    card = Card(AT_STEP)
    full = losses(config, folder / "full", PLACES[row](card))
    worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(full, whole, strict=True))
    return {
        "ok": card.ran_out == 1 and worst < TOLERANCE,
        "ran_out": card.ran_out,
        "steps": len(full),
        "worst": worst,
    }


def losses(config: Any, folder: Path, disturbed: contextlib.AbstractContextManager) -> list[float]:
    folder.mkdir()
    config = with_changes(config, {"checkpoint.keep_last": 0, "checkpoint.keep_best": 0})
    with disturbed:
        outcome = loop.train(load_task(config), config, folder, Session(None, 0, 0), Plain())
    assert outcome.state.step == config.training.max_steps
    rows = [row for row in read(folder / METRICS) if row["split"] == "train"]
    return [float(row["loss"]) for row in rows]


def hooked(card: Card, in_training: bool, backward: bool) -> contextlib.AbstractContextManager:
    """Fills the card in the forward or backward pass of linear layers."""

    @contextlib.contextmanager
    def hooks() -> Iterator[None]:
        def forward(module: Any, inputs: Any) -> None:
            if (
                isinstance(module, torch.nn.Linear)
                and module.training is in_training
                and not backward
            ):
                card.fill()

        def gradient(module: Any, inputs: Any, outputs: Any) -> None:
            if isinstance(module, torch.nn.Linear):
                card.fill()

        handles = [torch.nn.modules.module.register_module_forward_pre_hook(forward)]
        if backward:
            handles.append(torch.nn.modules.module.register_module_full_backward_hook(gradient))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    return hooks()


def replaced(card: Card, name: str) -> contextlib.AbstractContextManager:
    """Fills the card just before a function of the step."""

    @contextlib.contextmanager
    def replacing() -> Iterator[None]:
        original: Callable[..., Any] = getattr(step, name)

        def filled(*arguments: Any) -> Any:
            card.fill()
            return original(*arguments)

        setattr(step, name, filled)
        try:
            yield
        finally:
            setattr(step, name, original)

    return replacing()


PLACES: dict[str, Callable[[Card], contextlib.AbstractContextManager]] = {
    "forward": lambda card: hooked(card, True, False),
    "backward": lambda card: hooked(card, True, True),
    "clipping": lambda card: replaced(card, "total_norm"),
    "moments": lambda card: replaced(card, "make_moments"),
    "evaluation": lambda card: hooked(card, False, False),
}
