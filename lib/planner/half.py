"""Computes on a CPU what CUDA's autocast computes in fp16: its lists of operations, and its range and rounding."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from lib.planner.cuda import RESULT_FP32, TO_FP32, TO_HALF, TO_WIDEST, InnerCalls, is_python_layer

_SOFTMAX = ("softmax", "log_softmax")


class Fp16OnCpu(InnerCalls):
    """Inside `torch.autocast("cpu")`: products take and give fp16 but add up in fp32, as tensor cores do.

    torch's own fp16 on a CPU has another list of operations (`exp` and `pow` stay in fp16 there) and takes 10 to 20
    times as long.
    """

    def __torch_function__(self, func: Any, types_: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        if is_python_layer(func):
            return self.inside(func, args, kwargs)
        with torch.autocast("cpu", enabled=False):
            return self._call(func, name, args, kwargs)

    def _call(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor | torch.dtype)]
        halves = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dtype is torch.float16]
        has_dtype = any(isinstance(leaf, torch.dtype) for leaf in leaves)
        if name in TO_HALF or name == "scaled_dot_product_attention":
            rounded = tree_map_only(Tensor, lambda t: t.half().float() if t.is_floating_point() else t, (args, kwargs))
            return _cast(func(*rounded[0], **rounded[1]), torch.float32, torch.float16)
        wide = name in TO_FP32 or (name in (*RESULT_FP32, *_SOFTMAX) and not has_dtype)
        if halves and (wide or (name in TO_WIDEST and len({t.dtype for t in leaves if isinstance(t, Tensor)}) > 1)):
            args, kwargs = _cast((args, kwargs), torch.float16, torch.float32)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if not halves or "Half" not in str(error):
                raise
        args, kwargs = _cast((args, kwargs), torch.float16, torch.float32)  # a kernel that a CPU lacks
        return _cast(func(*args, **kwargs), torch.float32, torch.float16)


def _cast(values: Any, before: torch.dtype, after: torch.dtype) -> Any:
    return tree_map_only(Tensor, lambda t: t.to(after) if t.dtype is before else t, values)
