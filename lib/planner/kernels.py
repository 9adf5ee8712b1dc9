"""The cost of an operator's CUDA kernels: temporaries beside its results, and time by a roofline.

LSTM, GRU and plain recurrent layers run as one step; on `meta` PyTorch would unroll them.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from lib import private
from lib.planner.allocator import round_up
from lib.planner.card import Arithmetic, Target

# What one operator takes of the CPU thread that calls it; where the GPU is faster, it waits. A step with AdamW of an
# encoder of width 16 took 17 to 23 microseconds an operator on a Xeon of 2.8 GHz (torch 2.13, 2026-11); handing a
# kernel to CUDA adds some 5.
LAUNCH_SECONDS = (1.5e-5, 3.4e-5)
_BANDWIDTH_SHARE = (
    0.5,
    0.9,
)  # of the card's memory bandwidth; streaming kernels reach the upper end
_NO_KERNEL = {
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "_local_scalar_dense",
    "lift_fresh",
    "alias",
}


def tensors_of(values: Iterable[Any]) -> list[Tensor]:
    """Returns the tensors among an operator's arguments or results, alone or in lists."""
    tensors: list[Tensor] = []
    for x in values:
        tensors += (
            [x] if isinstance(x, Tensor) else tensors_of(x) if isinstance(x, list | tuple) else []
        )
    return tensors


def cost(func: Any, args: tuple, kwargs: dict, out: Any, target: Target) -> np.ndarray:
    """Returns the roofline of one operator (5,): seconds of the GPU and of launching, each at best and at worst; FLOPs.

    The GPU takes the longer of arithmetic and memory traffic (Williams, Waterman, Patterson, CACM 2009). An expanded
    tensor is read once.
    """
    name = private.schema(func).name.removeprefix("aten::")
    tensors = [t for t in tensors_of((*args, *kwargs.values(), out)) if t.is_meta]
    if func.is_view or name in _NO_KERNEL or not tensors:
        return np.zeros(5)
    held = (
        math.prod(size for size, stride in zip(t.shape, t.stride(), strict=True) if stride)
        for t in tensors
    )
    touched = sum(number * t.element_size() for number, t in zip(held, tensors, strict=True))
    traffic = touched / (1e9 * target.card.bandwidth_gb_s)
    count = flop_registry.get(private.overloads(func))
    flops = count(*args, **kwargs, out_val=out) if count else 0
    types = {t.dtype for t in tensors}
    precision: Arithmetic = (
        "fp16" if torch.float16 in types else "bf16" if torch.bfloat16 in types else "fp32"
    )
    copied = False
    if name in ("convolution", "convolution_backward"):
        x, weight = args[1:3] if name == "convolution_backward" else args[:2]
        plain = x.dim() == 4 and not x.is_contiguous(memory_format=torch.channels_last)
        copied = plain and x.element_size() == 2 and weight.shape[2:].numel() > 1
        allowed = torch.backends.cudnn.allow_tf32
    else:
        allowed = torch.get_float32_matmul_precision() != "highest"
    if precision == "fp32" and allowed and target.card.capability >= (8, 0):
        precision = "tf32"
    least, most = target.sustained_share(precision, copied)
    arithmetic = flops / target.flops(precision)
    slow, fast = _BANDWIDTH_SHARE
    gpu = max(arithmetic / most, traffic / fast), max(arithmetic / least, traffic / slow)
    return np.array([*gpu, *LAUNCH_SECONDS, flops])


def bounds(cost: np.ndarray) -> tuple[float, float]:
    """Returns the seconds of a `cost` (5,) at best and at worst: GPU and launches overlap, so the longer counts."""
    best, worst = np.maximum(cost[:2], cost[2:4]).tolist()
    return best, worst


def temporaries(name: str, args: tuple, target: Target) -> list[int]:
    """Returns the bytes of each block that an operator's CUDA kernels allocate and free again."""
    if name == "_scaled_dot_product_efficient_attention_backward":
        B, H, M, K = args[1].shape  # batch, heads, positions, width of a head
        delta = 4 * B * H * M
        # the gradient of q is added up in fp32, in tiles of 64 rows and 32 columns
        if args[1].dtype is not torch.float32:
            in_fp32 = 4 * B * H * round_up(M, 64) * round_up(K, 32)
        else:
            in_fp32 = 0
        return [delta, in_fp32]
    if name == "_scaled_dot_product_flash_attention_backward":
        B, H, M, K = args[1].shape
        return [4 * B * H * round_up(M, 128) * (K + 1)]
    if name in ("convolution", "convolution_backward"):
        *read, weight = (
            args[:2] if name == "convolution" else args[:3]
        )  # backward reads the gradient and the input
        # the channels-last copy of the largest plain half-precision input; a 1x1 one is a matrix product
        half = weight.dtype in (torch.float16, torch.bfloat16) and target.card.capability >= (7, 0)
        if half and weight.shape[2:].numel() > 1 and read[-1].dim() == 4:
            plain = [t for t in read if not t.is_contiguous(memory_format=torch.channels_last)]
            if plain:
                return [max(t.numel() * t.element_size() for t in plain)]
            return []
    return []


def workspace(name: str, args: tuple, out: Any, tries: bool) -> int:
    """Returns the most bytes that cuDNN may set aside for an operator; it chooses the algorithm on the card.

    Its tensor-core kernels, which compute fp32 too (as TF32, from capability 8.0), want channels last: what a
    convolution reads and writes is copied, in backward the gradients of its input and output and the input. If it
    `tries` all algorithms (torch.backends.cudnn.benchmark), Winograd's F(4 x 4, 3 x 3) is among them: tiles of 6 x 6
    hold 4 weights for each of 9, and 2.25 values for each that is read or written; in backward both again. Depthwise
    convolutions have kernels of PyTorch's own.
    """
    if name not in ("convolution", "convolution_backward"):
        return 0
    backward = name == "convolution_backward"
    result, x, weight, _, stride, _, _, transposed, _, groups = (
        args[:10] if backward else (out, *args[:9])
    )
    if not transposed and groups == x.shape[1] > 1 and weight.shape[1] == 1:
        return 0
    read = x.nbytes
    written = result.nbytes
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    if last:
        most = 0
    else:
        most = 2 * read + written if backward else read + written
    if tries and groups == 1 and weight.shape[2:] == (3, 3) and set(stride) == {1}:
        tiles = 4 * weight.nbytes + 9 * (read + written) // 4
        most = max(most, tiles * (2 if backward else 1))
    return most


RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def run_recurrent(args: Sequence[Any]) -> tuple[Tensor, ...]:
    """Returns (output, last states ...) of x (L, B, I), or (B, L, I), or packed (rows, I) with batch sizes.

    All steps of a layer run at once, as if none waited for another. What waits for the backward pass are the gates,
    the cell and the output: cudnnGetRNNTempSpaceSizes is not published, so this is an assumption.
    """
    place = 2 if isinstance(args[2], list) else 3  # behind the batch sizes of a packed sequence
    x, states, weights, has_bias, layers, _, _, both = args[0], *args[place - 1 : place + 6]
    states = states if isinstance(states, tuple) else (states,)
    width = states[0].shape[-1]
    inner = states[-1].shape[-1]
    each = len(weights) // (layers * (1 + both))
    sides: list[Tensor] = []
    for start in range(0, len(weights), each):
        of_both = torch.cat(weights[start : start + 2], -1)
        x_and_state = torch.cat([x, x.new_empty(*x.shape[:-1], width)], -1)
        gates = F.linear(x_and_state, of_both, weights[start + 2] if has_bias else None).sigmoid()
        sides.append(gates.unflatten(-1, (-1, inner)).sum(-2).tanh()[..., :width])
        if len(sides) == 1 + both:
            x = torch.cat(sides, -1) if both else sides[0]
            sides = []
    return x, *(state + x.mean() for state in states)
