"""Number format, autocast, TF32 and recomputation that fit the card."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from lib.config import Training
from lib.errors import BadInput
from lib.machine import memory

Precision = Literal["fp32", "fp16", "bf16"]


def set_determinism(training: Training) -> None:
    """Switches torch to deterministic algorithms where `training.deterministic` asks for them, and on every CPU.

    On a CPU some backward passes (of `table[index]`, say) would add up in the order in which threads arrive.
    """
    if training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when its first handle is made
    # This call and not use_deterministic_algorithms, which imports the compiler for a second and more.
    always = training.deterministic or memory.device().type == "cpu"
    torch.set_deterministic_debug_mode("error" if always else "default")
    torch.utils.deterministic.fill_uninitialized_memory = False  # for finding bugs; here it would only cost time
    torch.backends.cudnn.benchmark = training.cudnn_benchmark


def choose_precision(asked: str, on: torch.device) -> Precision:
    """Returns the precision to compute in: "auto" is bf16 where the card has hardware for it, else fp16, fp32 on a CPU.

    `torch.cuda.is_bf16_supported()` is True on a T4, which only emulates it, several times slower than fp16; the
    capability (8.0 and up) is what counts.
    """
    if on.type == "cpu":
        if asked == "fp16":
            raise BadInput("training.precision is fp16, but there is no GPU. Write auto or fp32.")
        return "bf16" if asked == "bf16" else "fp32"
    return precision_on_card(asked, torch.cuda.get_device_capability(on), torch.cuda.get_device_name(on))


def precision_on_card(asked: str, capability: tuple[int, int], card: str) -> Precision:
    """Returns what `choose_precision` gives on a card with this capability, here or not. Raises BadInput."""
    has_bf16 = capability >= (8, 0)
    if asked == "bf16" and not has_bf16:
        raise BadInput(f"training.precision is bf16, which {card} lacks. Write auto or fp16.")
    if asked == "auto":
        return "bf16" if has_bf16 else "fp16"
    return asked  # type: ignore[return-value]


def allow_tf32(in_precision: Precision, on: torch.device) -> None:
    """Lets what autocast leaves in fp32 use TF32, where the card has it (8.0 and up); a configured fp32 stays fp32."""
    if on.type == "cuda":
        fits = in_precision != "fp32" and torch.cuda.get_device_capability(on) >= (8, 0)
        torch.set_float32_matmul_precision("high" if fits else "highest")


def autocast(in_precision: Precision, on: torch.device) -> contextlib.AbstractContextManager:
    if in_precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(on.type, torch.float16 if in_precision == "fp16" else torch.bfloat16)


def recompute(model: nn.Module, layers: int | str) -> int:
    """Makes the first `layers` ("all" for every one) of `model.blocks` recompute their activations in backward.

    Returns how many. Raises BadInput where the model has no `blocks` or fewer than that.
    """
    if not layers:
        return 0
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        raise BadInput("training.gradient_checkpointing is set, but this model has no `blocks` to recompute. Write 0.")
    count = len(blocks) if layers == "all" else int(layers)
    if count > len(blocks):
        raise BadInput(f"training.gradient_checkpointing is {count}, but the model has {len(blocks)} blocks.")
    for block in list(blocks)[:count]:
        block.forward = _recomputing(block)
    return count


def _recomputing(block: nn.Module) -> Callable[..., Any]:
    """Returns the block's forward pass, recomputed in backward; batch statistics change in the first pass alone."""
    forward = block.forward
    norms = [m for m in block.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
    more = {"context_fn": lambda: (contextlib.nullcontext(), _statistics_aside(norms))} if norms else {}

    def wrapped(*args, **kwargs):
        if torch.is_grad_enabled():
            return recomputed(forward, *args, use_reentrant=False, **more, **kwargs)
        return forward(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def _statistics_aside(norms: list[nn.Module]) -> Iterator[None]:
    """Lets these layers update copies of their statistics inside the block.

    A momentum of 0 would not do (0 * inf is NaN, and None counts batches), and no statistics at all would save fewer
    tensors than the first pass, which torch refuses.
    """
    kept = [dict(norm._buffers) for norm in norms]
    for norm, buffers in zip(norms, kept, strict=True):
        norm._buffers.update({name: value.clone() for name, value in buffers.items() if value is not None})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)
