"""Prepares a model for LoRA or QLoRA in the layout of bitsandbytes and peft: the memory of it, no values.

model = quantise(model, "nf4-dq", torch.float16)     # every nn.Linear but the head
model = adapt(model, 16, ("q_proj", "v_proj"))       # LoRA
predict(model, step, optimizer=Adam8bit)
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.errors import BadInput
from lib.task.quantised import Quantised, replaced

KINDS = ("nf4", "nf4-dq", "int8")
# bitsandbytes' optimizers: blocks of 256 values have a scale of 4 bytes; tensors of fewer than 4096 stay fp32
_MOMENTS, _MIN_8BIT = 256, 4096


class Adam8bit(torch.optim.Optimizer):
    """Adam with moments of one byte a value, as bitsandbytes lays them out: their memory, without values."""

    def __init__(self, parameters: Any, **_: Any):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state, is_small = self.state[parameter], parameter.numel() < _MIN_8BIT
            for moment in () if state else ("state1", "state2"):
                state[moment] = torch.empty_like(parameter, dtype=torch.float32 if is_small else torch.uint8)
                if not is_small:
                    scales = math.ceil(parameter.numel() / _MOMENTS)
                    state[f"{moment}_scales"] = parameter.new_empty(scales, dtype=torch.float32)


class Adapted(nn.Module):
    """A linear layer with a low-rank addition, as peft computes it: the adapters and what enters them are fp32."""

    def __init__(self, layer: Any, rank: int, dropout: float):
        super().__init__()
        self.layer, self.dropout = layer, dropout
        self.lora_a = nn.Parameter(torch.empty(rank, layer.in_features, device="meta"))
        self.lora_b = nn.Parameter(torch.empty(layer.out_features, rank, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x)
        low = F.linear(F.dropout(x.to(self.lora_a.dtype), self.dropout, self.training), self.lora_a)
        return (result + F.linear(low, self.lora_b) * 2.0).to(result.dtype)


def quantise(model: nn.Module, kind: str, dtype: torch.dtype, without: Iterable[nn.Module] = ()) -> nn.Module:
    """Replaces every nn.Linear but those `without`; `dtype` is what products are computed in."""
    spared = {id(layer) for layer in without}
    return replaced(model, lambda _, layer: Quantised(layer, kind, dtype) if _is_linear(layer, spared) else None)


def adapt(model: nn.Module, rank: int, targets: Iterable[str], dropout: float = 0.0) -> nn.Module:
    """Freezes the model and adds adapters of a rank to the layers whose name ends so. Raises BadInput for none."""
    names, linear = set(targets), linear_names(model)
    model.requires_grad_(False)
    if not names & linear or type(rank) is not int or rank < 1:
        raise BadInput(
            f"No adapter of rank {rank!r} can be put on {', '.join(sorted(names)) or 'nothing'}. The linear layers are "
            f"{', '.join(sorted(linear))}."
        )
    return replaced(
        model, lambda name, layer: Adapted(layer, rank, dropout) if name in names and _is_linear(layer) else None
    )


def linear_names(model: nn.Module, head: nn.Module | None = None) -> set[str]:
    """Returns the last names of the linear layers, without the head's."""
    return {name.rsplit(".", 1)[-1] for name, layer in model.named_modules() if _is_linear(layer) and layer is not head}


def _is_linear(layer: nn.Module, without: Iterable[int] = ()) -> bool:
    return isinstance(layer, nn.Linear | Quantised) and id(layer) not in without
