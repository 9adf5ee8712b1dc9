"""Runs LSTM, GRU and plain recurrent layers as cuDNN does, in one kernel; on `meta` PyTorch would unroll them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

# What cuDNN keeps for backward, in widths of the hidden state for each step, layer and direction: the gates after their
# activation, and an LSTM's cell with its tanh. How cuDNN counts (cudnnGetRNNTempSpaceSizes) is not published, so this
# is an assumption.
RESERVED = {"lstm": 6, "gru": 4, "rnn_tanh": 1, "rnn_relu": 1}

_LIBRARY = torch.library.Library("trainbook_planner", "FRAGMENT")
_LIBRARY.define("kernel(Tensor[] read, Tensor[] written, int flops) -> Tensor")
_LIBRARY.impl("kernel", lambda read, written, flops: torch.empty(0, device="meta"), "Meta")
register_flop_formula(torch.ops.trainbook_planner.kernel)(lambda read, written, flops, **_: flops)


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, shape: list[int], flops: int, reserved: int, count: int, x: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.flops = flops
        with torch.enable_grad():  # so that the results count as activations; nothing here has a gradient
            out, reserve = (torch.empty(size, dtype=x.dtype, device="meta") for size in (shape, [reserved]))
            last = [torch.empty_like(state.detach()) for state in rest[:count]]
        torch.ops.trainbook_planner.kernel([x, *rest], [out, *last, reserve], flops)
        ctx.save_for_backward(x, out, reserve, *rest)
        return out, *last

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        x, _, _, *rest = ctx.saved_tensors
        gradients = [torch.empty_like(tensor) for tensor in (x, *rest)]
        torch.ops.trainbook_planner.kernel([x, *rest], gradients, 2 * ctx.flops)
        return None, None, None, None, *gradients


def run(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Returns (output, last states ...) of torch.lstm, torch.gru, torch.rnn_tanh or torch.rnn_relu on `meta`.

    Plain input (L, B, I), or (B, L, I) with `batch_first`; packed input (rows, I), followed by its batch sizes.
    """
    packed = isinstance(args[1 if name == "lstm" else 2], Tensor)
    x, states, weights = args[0], args[2 if packed else 1], args[3 if packed else 2]
    layers, train, both = (
        args[n + packed] if len(args) > n + packed else kwargs.get(key)
        for n, key in ((4, "num_layers"), (6, "train"), (7, "bidirectional"))
    )
    states = list(states) if isinstance(states, list | tuple) else [states]
    rows, sides = math.prod(x.shape[:-1]), 2 if both else 1
    keeps = train and torch.is_grad_enabled() and any(t.requires_grad for t in (x, *states, *weights))
    reserved = rows * layers * sides * RESERVED[name] * states[-1].shape[-1] if keeps else 0
    shape = [*x.shape[:-1], sides * states[0].shape[-1]]
    flops = 2 * rows * sum(weight.numel() for weight in weights if weight.dim() == 2)  # each is multiplied once a row
    out, *last = _Recurrent.apply(shape, flops, reserved, len(states), x, *states, *weights)
    return out, *last
