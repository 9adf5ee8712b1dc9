"""Packs frozen linear layers in nf4, in the bytes of bitsandbytes, which a GPU uses if installed.

    model = quantise(self.pretrained(folder, AutoModelForCausalLM), ("lm_head",))    # in `model()`, before adapters

Their packed weights are frozen parameters: a checkpoint has only their hash if the base was
published.
"""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The levels of nf4 (QLoRA, arXiv 2305.14314, appendix E), as bitsandbytes has them
_LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_BLOCK = 64  # weights that share a scale
_AT_ONCE = 2**16  # blocks that plain torch unpacks in one go, with 24 MiB of temporaries


def replaced(model: nn.Module, make: Callable[[str, nn.Module], nn.Module | None]) -> nn.Module:
    """Replaces each layer inside a model for which `make(name, layer)` returns another one."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if (new := make(name, layer)) is not None:
                setattr(parent, name, new.train(layer.training))
    return model


def quantise(model: nn.Module, without: Iterable[str] = ()) -> nn.Module:
    """Freezes a model and replaces linear layers by `Linear4`, except the names in `without`."""
    spared = {*without}

    def packed(name: str, layer: nn.Module) -> nn.Module | None:
        if type(layer) is not nn.Linear or name in spared:
            return None
        if layer.weight.numel() % _BLOCK:
            return None
        if not layer.weight.is_meta:
            return Linear4(layer)
        layer.loaded_as = "nf4", None  # type: ignore[assignment]  # which a plan asks
        return None

    return replaced(model.requires_grad_(False), packed)


class Linear4(nn.Linear):
    """A frozen linear layer in nf4.

    It computes as nn.Linear: under autocast in its type, otherwise in the input's.
    """

    def __init__(self, layer: nn.Linear):
        nn.Module.__init__(self)
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        packed, scales = pack(layer.weight.detach())
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.weight.is_packed = self.scales.is_packed = True  # type: ignore[attr-defined]  # by which a run knows them
        self.bias = layer.bias

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        return unpack(self.weight, self.scales, dtype).view(self.out_features, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        dtype = computed_in(x)
        bias = None if self.bias is None else self.bias.to(dtype)
        return _Product.apply(x.to(dtype), self, bias)


class _Product(torch.autograd.Function):
    """A product with weights that are unpacked for it, forward and backward, and kept by neither."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Linear4, bias: Tensor | None) -> Tensor:
        ctx.layer = layer
        return F.linear(x, layer.unpacked(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return grad @ ctx.layer.unpacked(grad.dtype), None, None


def computed_in(x: Tensor) -> torch.dtype:
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (values / 2, 1) uint8, the first value in the high half, and (values / 64) fp32 scales."""
    blocks = weight.float().reshape(-1, _BLOCK)
    scales = blocks.abs().amax(1)
    levels = torch.tensor(_LEVELS, device=weight.device)
    middles = (levels[1:] + levels[:-1]) / 2
    shares = blocks / scales.clamp(min=1e-30)[:, None]
    numbers = torch.bucketize(shares, middles).byte().view(-1)
    return ((numbers[0::2] << 4) | numbers[1::2])[:, None], scales


def unpack(packed: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    size = 2 * packed.numel()
    if packed.is_cuda and (kernels := _kernels()):
        state = kernels.QuantState(
            scales, torch.Size([size]), blocksize=_BLOCK, quant_type="nf4", dtype=dtype
        )
        return kernels.dequantize_4bit(packed, state).view(-1)
    values = torch.empty(size, dtype=dtype, device=packed.device)
    levels = torch.tensor(_LEVELS, device=packed.device)
    # (256, 2), both values of a byte
    pairs = torch.stack([levels.repeat_interleave(16), levels.repeat(16)], 1)
    outputs = values.view(-1, _BLOCK).split(_AT_ONCE)
    blocks = packed.view(-1, _BLOCK // 2).split(_AT_ONCE)
    factors = scales[:, None].split(_AT_ONCE)
    for output, block, factor in zip(outputs, blocks, factors, strict=True):
        torch.mul(F.embedding(block.int(), pairs).flatten(1), factor, out=output)
    return values


def _kernels() -> Any:
    with contextlib.suppress(ImportError):  # it is not there, or not made for this CUDA
        return importlib.import_module("bitsandbytes.functional")
    return None


# --- for plans: the memory of quantised layers in the layout of bitsandbytes, without values ----------------

_SCALES = 256  # of 1 byte, which share one of 4 bytes in a doubly quantised layer


class Quantised(nn.Module):
    """A linear layer in nf4 or int8.

    Each pass unpacks a copy in `dtype` (None: as nn.Linear computes).
    """

    def __init__(self, layer: Any, kind: str, dtype: torch.dtype | None):
        super().__init__()
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.kind = kind
        self.dtype = dtype
        size = layer.weight.numel()
        if kind == "int8":
            blocks = layer.out_features
            weight = _empty(tuple(layer.weight.shape), torch.int8)
        else:
            blocks = size // _BLOCK
            weight = _empty((size // 2, 1), torch.uint8)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = layer.bias
        if kind in ("int8", "nf4"):
            self._add_scales("scales", blocks, torch.float32)
        else:
            self._add_scales("scales", blocks, torch.uint8)
            self._add_scales("scales_of_scales", math.ceil(blocks / _SCALES), torch.float32)

    def _add_scales(self, name: str, count: int, dtype: torch.dtype) -> None:
        self.register_buffer(name, _empty((count,), dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.dtype or computed_in(x)
        bias = None if self.bias is None else self.bias.to(dtype)
        shape = (self.out_features, self.in_features)
        product = _Stub.apply(x.to(dtype), self.weight, bias, shape, self.kind)
        if self.dtype:
            return product.to(x.dtype)
        return product


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class _Stub(torch.autograd.Function):
    """A product with weights that are unpacked for it, forward and backward; the input is not kept."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, packed: Tensor, bias: Tensor | None, shape: tuple[int, int], kind: str
    ) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.shape = shape
        # so that the result counts as an activation; nothing here has a gradient
        with torch.enable_grad():
            x = x.detach()
            wide = x.new_empty(shape)
            if kind != "int8":
                return F.linear(x, wide, None if bias is None else bias.detach())
            # the input in int8 and the sums in int32 live beside the result
            rows = x.numel() // x.shape[-1]
            rounded = x.new_empty(x.shape, dtype=torch.int8)
            sums = x.new_empty((rows, shape[0]), dtype=torch.int32)
            out = F.linear(x, wide)
            del sums, rounded
            if bias is None:
                return out
            return out + bias.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        if ctx.needs_input_grad[2]:
            bias = grad.flatten(0, -2).sum(0)
        else:
            bias = None
        return grad @ grad.new_empty(ctx.shape), None, bias, None, None
