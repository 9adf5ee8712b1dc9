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

# Time of the calling CPU thread for one operator; a faster GPU waits. A step with AdamW of an encoder of
# width 16 took 17 to 23 microseconds an operator on a Xeon of 2.8 GHz (torch 2.13, 2026-11); handing a
# kernel to CUDA adds some 5.
LAUNCH_SECONDS = (1.5e-5, 3.4e-5)
# Shares of the card's memory bandwidth; streaming kernels reach the upper end
_BANDWIDTH_SHARE = (0.5, 0.9)
_WITHOUT_KERNEL = {"detach", "alias", "lift_fresh", "_local_scalar_dense"}
_WITHOUT_KERNEL |= {"empty", "empty_like", "empty_strided"}


def tensors_of(values: Iterable[Any]) -> list[Tensor]:
    """Returns the tensors among an operator's arguments or results, also those in lists."""
    tensors: list[Tensor] = []
    for x in values:
        if isinstance(x, Tensor):
            tensors.append(x)
        elif isinstance(x, list | tuple):
            tensors += tensors_of(x)
    return tensors


def cost(func: Any, args: tuple, kwargs: dict, out: Any, target: Target) -> np.ndarray:
    """Returns the roofline of one operator (5,): two times at best and at worst, and FLOPs.

    The times are seconds of the GPU, and of launching. The GPU takes the longer of arithmetic and
    memory traffic (Williams, Waterman, Patterson, CACM 2009).
    """
    name = private.schema(func).name.removeprefix("aten::")
    tensors = [t for t in tensors_of((*args, *kwargs.values(), out)) if t.is_meta]
    if func.is_view or name in _WITHOUT_KERNEL or not tensors:
        return np.zeros(5)
    traffic = sum(map(_touched_bytes, tensors)) / (1e9 * target.card.bandwidth_gb_s)
    count = flop_registry.get(private.overloads(func))
    flops = count(*args, **kwargs, out_val=out) if count else 0
    types = {t.dtype for t in tensors}
    precision: Arithmetic = "fp32"
    if torch.float16 in types:
        precision = "fp16"
    elif torch.bfloat16 in types:
        precision = "bf16"
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
    best = max(arithmetic / most, traffic / fast)
    worst = max(arithmetic / least, traffic / slow)
    return np.array([best, worst, *LAUNCH_SECONDS, flops])


def _touched_bytes(tensor: Tensor) -> int:
    """Returns the bytes that a kernel reads or writes of a tensor: an expanded dimension once."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in strides if stride) * tensor.element_size()


def bounds(cost: np.ndarray) -> tuple[float, float]:
    """Returns the seconds of a `cost` (5,) at best and at worst.

    GPU and launches overlap, so the longer counts.
    """
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
    if name not in ("convolution", "convolution_backward") or target.card.capability < (7, 0):
        return []
    # backward reads the gradient and the input
    *read, weight = args[:2] if name == "convolution" else args[:3]
    # the channels-last copy of the largest plain half-precision input; 1x1 is a matrix product
    is_half = weight.dtype in (torch.float16, torch.bfloat16)
    if not is_half or weight.shape[2:].numel() <= 1 or read[-1].dim() != 4:
        return []
    plain = [t for t in read if not t.is_contiguous(memory_format=torch.channels_last)]
    if not plain:
        return []
    return [max(t.numel() * t.element_size() for t in plain)]


def workspace(name: str, args: tuple, out: Any, tries: bool) -> int:
    """Returns the most bytes that cuDNN may set aside for an operator.

    cuDNN chooses the algorithm on the card. Its tensor-core kernels, which compute fp32 too (as TF32,
    from capability 8.0), want channels last: a convolution copies its input and output, and backward
    the input and both gradients. If it `tries` all algorithms (torch.backends.cudnn.benchmark),
    Winograd's F(4 x 4, 3 x 3) is among them: tiles of 6 x 6 hold 4 weights for each of 9, and 2.25
    values for each that is read or written; in backward both again. Depthwise convolutions run in
    PyTorch's kernels.
    """
    if name not in ("convolution", "convolution_backward"):
        return 0
    backward = name == "convolution_backward"
    result, x, weight, _, stride, *options = args if backward else (out, *args)
    transposed = options[2]
    groups = options[4]
    if not transposed and groups == x.shape[1] > 1 and weight.shape[1] == 1:
        return 0
    read = x.nbytes
    written = result.nbytes
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        most = 0
    elif backward:
        most = 2 * read + written
    else:
        most = read + written
    has_tiles = weight.shape[2:] == (3, 3) and set(stride) == {1}
    if tries and has_tiles and groups == 1:
        tiles = 4 * weight.nbytes + 9 * (read + written) // 4
        most = max(most, tiles * (1 + backward))
    return most


RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def run_recurrent(args: Sequence[Any]) -> tuple[Tensor, ...]:
    """Returns (output, last states ...) of x (L, B, I), or (B, L, I), or packed (rows, I) with batch sizes.

    All steps of a layer run at once, as if none waited for another. Gates, cell and output wait for
    the backward pass: cudnnGetRNNTempSpaceSizes is not published, so this is an assumption.
    """
    place = 2 if isinstance(args[2], list) else 3  # behind the batch sizes of a packed sequence
    x = args[0]
    options = args[place - 1 : place + 6]
    states, weights, has_bias, layers, _, _, both = options
    states = states if isinstance(states, tuple) else (states,)
    width = states[0].shape[-1]
    inner = states[-1].shape[-1]
    each = len(weights) // (layers * (1 + both))
    sides: list[Tensor] = []
    for start in range(0, len(weights), each):
        of_both = torch.cat(weights[start : start + 2], -1)
        bias = weights[start + 2] if has_bias else None
        state_shape = (*x.shape[:-1], width)
        x_and_state = torch.cat([x, x.new_empty(state_shape)], -1)
        gates = F.linear(x_and_state, of_both, bias).sigmoid()
        sides.append(gates.unflatten(-1, (-1, inner)).sum(-2).tanh()[..., :width])
        if len(sides) == 1 + both:
            x = torch.cat(sides, -1) if both else sides[0]
            sides = []
    return x, *(state + x.mean() for state in states)
