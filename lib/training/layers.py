"""Convolutions whose backward pass breaks the memory of a process on a CPU, and the sentence on how to avoid them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

# oneDNN takes channels in blocks of this many with AVX-512, of 8 with AVX2, and reserves too little for fewer
_BLOCK = 16
_SOURCE = "uxlfoundation/oneDNN, issue 6035"


def risky_convolutions(model: nn.Module) -> list[str]:
    """Lists the layers whose backward pass writes past its memory where it runs on a CPU with channels last.

    These are the 1 x 1 convolutions with a stride of fewer than 16 channels. Whether input or weight has its channels
    last shows when the model runs: see `watched`.
    """
    return [name for name, module in model.named_modules() if _is_risky(module)]


def _is_risky(module: nn.Module) -> bool:
    if not isinstance(module, nn.Conv2d):
        return False
    has_stride = tuple(module.kernel_size) == (1, 1) and max(module.stride) > 1
    return has_stride and module.groups == 1 and module.in_channels < _BLOCK


def advice(names: Sequence[str]) -> str:
    """Says what is wrong with these layers and how to write them."""
    return (
        f"A 1 x 1 convolution with a stride, of fewer than {_BLOCK} channels in the memory format channels_last "
        f"({', '.join(names)}): on a CPU its backward pass writes past its memory ({_SOURCE}), so the process may die "
        "without a word, or the gradient be wrong. Take every second pixel first and convolve without the stride, "
        "which gives the same numbers: nn.Conv2d(..., kernel_size=1) of x[..., ::2, ::2]."
    )


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[list[str]]:
    """Yields a list, to which a risky layer is added when it runs on a CPU with channels last inside the block."""
    seen: list[str] = []

    def look(name: str, is_exposed: bool) -> None:
        if is_exposed and name not in seen:
            seen.append(name)

    handles = _look_at_inputs(model, look)
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def announce(model: nn.Module, note: Callable[[str], None]) -> None:
    """Gives `note` the advice once, as soon as a risky layer runs on a CPU with channels last: before its backward."""

    def look(name: str, is_exposed: bool) -> None:
        if is_exposed and handles:
            note(advice(risky_convolutions(model)))
        while handles:
            handles.pop().remove()

    handles = _look_at_inputs(model, look)


def _look_at_inputs(model: nn.Module, look: Callable[[str, bool], None]) -> list:
    """Calls `look` with name and verdict whenever a risky layer runs; returns the handles that end it."""

    def hook_of(name: str) -> Callable[..., None]:
        def hook(layer: nn.Conv2d, given: tuple, named: dict[str, Tensor]) -> None:
            image = given[0] if given else named["input"]
            on_cpu = image.device.type == "cpu" and torch.backends.mkldnn.enabled
            look(name, on_cpu and (_lies_channels_last(image) or _lies_channels_last(layer.weight)))

        return hook

    return [
        model.get_submodule(name).register_forward_pre_hook(hook_of(name), with_kwargs=True)
        for name in risky_convolutions(model)
    ]


def _lies_channels_last(tensor: Tensor) -> bool:
    """Decides as torch does for a view too (c10/core/MemoryFormat.h, is_channels_last_strides_2d)."""
    if tensor.ndim != 4:
        return False
    size, stride, least = tensor.shape, tensor.stride(), 0
    for axis in (1, 3, 2, 0):
        if stride[axis] < least or (axis == 0 and least == stride[1]):
            return False
        least = stride[axis] * size[axis]
    return stride[1] > 0
