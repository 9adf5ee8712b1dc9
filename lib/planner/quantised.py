"""Stands in for linear layers with quantised weights, in the layout of bitsandbytes: their memory, no values."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.task.quantised import computed_in

# bitsandbytes: blocks of 64 weights have a scale of 4 bytes; doubly quantised (dq), of 1 byte, and 256 scales one of 4
_BLOCK, _SCALES = 64, 256


class Quantised(nn.Module):
    """A linear layer in nf4 or int8. Each pass makes a copy in `dtype`, else as nn.Linear computes, and drops it."""

    def __init__(self, layer: Any, kind: str, dtype: torch.dtype | None):
        super().__init__()
        self.in_features, self.out_features, self.kind, self.dtype = layer.in_features, layer.out_features, kind, dtype
        size, is_int8 = layer.weight.numel(), kind == "int8"
        shape = tuple(layer.weight.shape) if is_int8 else (size // 2, 1)
        packed = torch.empty(shape, dtype=torch.int8 if is_int8 else torch.uint8, device="meta")
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = layer.bias
        blocks = layer.out_features if is_int8 else size // _BLOCK
        scales = {"scales": (blocks, torch.float32)}
        if kind not in ("int8", "nf4"):
            scales = {"scales": (blocks, torch.uint8), "scales_of_scales": (math.ceil(blocks / _SCALES), torch.float32)}
        for name, (number, of_scale) in scales.items():
            self.register_buffer(name, torch.empty(number, dtype=of_scale, device="meta"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.dtype or computed_in(x)
        bias, shape = None if self.bias is None else self.bias.to(dtype), (self.out_features, self.in_features)
        product = _Product.apply(x.to(dtype), self.weight, bias, shape, self.kind)
        return product.to(x.dtype) if self.dtype else product


class _Product(torch.autograd.Function):
    """A product with weights that are unpacked for it, forward and backward; the input is not kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, bias: Tensor | None, shape: tuple[int, int], kind: str) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.shape = shape
        with torch.enable_grad():  # so that the result counts as an activation; nothing here has a gradient
            x = x.detach()
            if kind == "int8":  # the input in int8 and the sums in int32 stand beside the result
                rows, wide = x.numel() // x.shape[-1], x.new_empty(shape)
                held = x.new_empty(x.shape, dtype=torch.int8), x.new_empty((rows, shape[0]), dtype=torch.int32)
                out = F.linear(x, wide)
                del held
                return out if bias is None else out + bias.detach()
            return F.linear(x, x.new_empty(shape), None if bias is None else bias.detach())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        bias = grad.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        return grad @ grad.new_empty(ctx.shape), None, bias, None, None
