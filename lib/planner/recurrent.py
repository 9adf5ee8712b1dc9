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
_LIBRARY.define(
    "recurrent(Tensor x, Tensor[] states, Tensor[] weights, int steps, int[] out, int reserved) "
    "-> (Tensor, Tensor[], Tensor)"
)
_LIBRARY.define("recurrent_backward(Tensor x, Tensor[] states, Tensor[] weights, int steps) -> Tensor[]")
_LIBRARY.impl(
    "recurrent",
    lambda x, states, weights, steps, out, reserved: (
        x.new_empty(out), [torch.empty_like(state) for state in states], x.new_empty(reserved),
    ),
    "Meta",
)  # fmt: skip
_LIBRARY.impl(
    "recurrent_backward",
    lambda x, states, weights, steps: [torch.empty_like(tensor) for tensor in (x, *states, *weights)],
    "Meta",
)


@register_flop_formula(torch.ops.trainbook_planner.recurrent)
def _flops(x: Any, states: Any, weights: Any, steps: int, *_: Any, **__: Any) -> int:
    """Counts: each weight matrix is multiplied once a row, a row being one sample at one step."""
    return 2 * steps * sum(math.prod(shape) for shape in weights if len(shape) == 2)


@register_flop_formula(torch.ops.trainbook_planner.recurrent_backward)
def _backward_flops(x: Any, states: Any, weights: Any, steps: int, *_: Any, **__: Any) -> int:
    return 2 * _flops(x, states, weights, steps)


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, shape: list[int], rows: int, reserved: int, count: int, x: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.rows, ctx.count = rows, count
        tensors = [t.detach() for t in rest]
        with torch.enable_grad():  # so that the results count as activations; nothing here has a gradient
            call = torch.ops.trainbook_planner.recurrent
            out, last, reserve = call(x.detach(), tensors[:count], tensors[count:], rows, shape, reserved)
        ctx.save_for_backward(x, out, reserve, *rest)
        return out, *last

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        x, _, _, *rest = ctx.saved_tensors
        call = torch.ops.trainbook_planner.recurrent_backward
        return None, None, None, None, *call(x, rest[: ctx.count], rest[ctx.count :], ctx.rows)


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
    out, *last = _Recurrent.apply(shape, rows, reserved, len(states), x, *states, *weights)
    return out, *last
