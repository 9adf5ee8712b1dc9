"""Layers whose activations are computed again in the backward pass, to save memory (Chen et al., 2016)."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from lib import private
from lib.errors import BadInput

_SWITCHES = ("gradient_checkpointing", "grad_checkpointing")  # of transformers and of timm


class NotRecomputable(BadInput):
    """A layer whose second pass would not repeat the first one."""


def recomputable(model: nn.Module, blocks: Sequence[nn.Module]) -> Sequence[nn.Module]:
    """Returns the blocks, unless the model recomputes them itself: nothing is recomputed twice."""
    if any(getattr(m, switch, None) is True for m in model.modules() for switch in _SWITCHES):
        return ()
    return blocks


def recomputed_layers(setting: int | str, blocks: Sequence[nn.Module]) -> int:
    """Returns the number of layers for `training.gradient_checkpointing`. Raises BadInput without blocks."""
    if setting and not blocks:
        raise BadInput(
            f"training.gradient_checkpointing is {setting}, but this model has no `blocks` to recompute: it repeats no "
            "layer that was found, or recomputes its layers itself already. Write 0, leave "
            "gradient_checkpointing_enable out, or let blocks(model) of the task return its layers."
        )
    if setting == "all":
        return len(blocks)
    return min(int(setting), len(blocks))


def recompute(model: nn.Module, layers: int | str, blocks: Sequence[nn.Module]) -> int:
    """Makes the first `layers` (or "all") of a model's blocks recompute activations in backward; returns how many."""
    blocks = recomputable(model, blocks)
    count = recomputed_layers(layers, blocks)
    for block in blocks[:count]:
        block.forward = _recomputing(block)
    return count


def _recomputing(block: nn.Module) -> Callable[..., Any]:
    """Returns the block's forward pass, recomputed in backward; only the first pass changes batch statistics."""
    forward = block.forward
    norms = [m for m in block.modules() if isinstance(m, private.NORMS) and m.track_running_stats]
    options: dict[str, Any] = {}
    if norms:
        options["context_fn"] = lambda: (contextlib.nullcontext(), _statistics_aside(norms))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # transformers' mark of a layer that only reads its cache
        if not getattr(block, "_can_checkpoint_with_cache", False):
            args = tuple(_without_cache(block, value) for value in args)
            kwargs = {key: _without_cache(block, value) for key, value in kwargs.items()}
            if "use_cache" in kwargs:
                kwargs["use_cache"] = False
        first = len(args)
        keys = tuple(kwargs)

        def run(*values: Any) -> Any:
            named = dict(zip(keys, values[first:], strict=True))
            return forward(*values[:first], **named)

        values = (*args, *kwargs.values())
        before = _versions(values)
        # Tensors by position: torch keeps the random state of only those devices that it sees there.
        out = recomputed(run, *values, use_reentrant=False, **options)
        if _versions(values) != before:
            raise NotRecomputable(
                f"A {type(block).__name__} that is to be recomputed changes its input in place. Write inplace=False in "
                "its first layer, let blocks(model) of the task leave it out, or set training.gradient_checkpointing "
                "to 0."
            )
        return out

    return wrapped


def _versions(values: tuple) -> list[int]:
    """Returns the number of changes in place for each tensor among the values; nothing while a compiler traces."""
    if torch.compiler.is_compiling():
        return []
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return [private.version(tensor) for tensor in tensors if not tensor.is_inference()]


def _without_cache(block: nn.Module, value: Any) -> Any:
    """Returns None for an empty cache for generating text, which a second pass would fill again."""
    if not hasattr(value, "get_seq_length"):  # no cache of transformers
        return value
    if value.get_seq_length():
        raise NotRecomputable(
            f"A {type(block).__name__} that is to be recomputed reads keys and values from a cache. Call the model "
            "with use_cache=False and without a prefix, or set training.gradient_checkpointing to 0."
        )
    return None


@contextlib.contextmanager
def _statistics_aside(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Lets these layers update copies of their statistics. Without any, the passes would save different tensors."""
    before = [(norm, dict(norm.named_buffers(recurse=False))) for norm in norms]
    for norm, buffers in before:
        for name, value in buffers.items():
            setattr(norm, name, value.clone())
    try:
        yield
    finally:
        for norm, buffers in before:
            for name, value in buffers.items():
                setattr(norm, name, value)
