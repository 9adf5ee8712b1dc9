"""Stand-ins for quantised and adapted linear layers and for 8-bit Adam, in the layout of bitsandbytes and peft: their
memory, no values.

model = quantise(model, "nf4-dq", torch.float16)     # every nn.Linear but the head
model = adapt(model, 16, ("q_proj", "v_proj"))       # LoRA
predict(model, step, optimizer=Adam8bit)
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.errors import BadInput

KINDS = ("nf4", "nf4-dq", "int8")
# bitsandbytes: blocks of 64 weights have a scale of 4 bytes; doubly quantised (dq), of 1 byte, and 256 scales one of 4
_BLOCK, _SCALES = 64, 256
# bitsandbytes' optimizers: blocks of 256 values have a scale of 4 bytes; tensors of fewer than 4096 stay fp32
_MOMENTS, _MIN_8BIT = 256, 4096


class Quantised(nn.Module):
    """A linear layer whose weights are nf4 or int8; each pass makes one copy of them in `dtype`, and drops it."""

    def __init__(self, layer: nn.Linear, kind: str, dtype: torch.dtype):
        super().__init__()
        self.in_features, self.out_features, self.kind, self.dtype = layer.in_features, layer.out_features, kind, dtype
        size = layer.weight.numel()
        shape, scales = ((size // 2, 1), size // _BLOCK) if kind != "int8" else (tuple(layer.weight.shape), size)
        packed = torch.empty(shape, dtype=torch.int8 if kind == "int8" else torch.uint8, device="meta")
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = layer.bias
        if kind == "int8":
            self._scale("scales", layer.out_features, torch.float32)
        elif kind == "nf4":
            self._scale("scales", scales, torch.float32)
        else:
            self._scale("scales", scales, torch.uint8)
            self._scale("scales_of_scales", math.ceil(scales / _SCALES), torch.float32)

    def _scale(self, name: str, size: int, dtype: torch.dtype) -> None:
        self.register_buffer(name, torch.empty(size, dtype=dtype, device="meta"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(self.dtype)
        shape = (self.out_features, self.in_features)
        return _Product.apply(x.to(self.dtype), self.weight, bias, shape, self.kind).to(x.dtype)


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


class Adam8bit(torch.optim.Optimizer):
    """Adam with moments of one byte a value, as bitsandbytes lays them out: their memory, without values."""

    def __init__(self, parameters: Any, **_: Any):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        trained = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for parameter in trained:
            if self.state[parameter]:
                continue
            small = parameter.numel() < _MIN_8BIT
            for moment in ("state1", "state2"):
                kind = torch.float32 if small else torch.uint8
                self.state[parameter][moment] = torch.empty_like(parameter, dtype=kind)
                if not small:
                    scales = math.ceil(parameter.numel() / _MOMENTS)
                    self.state[parameter][f"{moment}_scales"] = parameter.new_empty(scales, dtype=torch.float32)


class Adapted(nn.Module):
    """A linear layer with a low-rank addition, as peft computes it: the adapters and what enters them are fp32."""

    def __init__(self, layer: nn.Module, rank: int, dropout: float):
        super().__init__()
        self.layer, self.dropout = layer, dropout
        self.lora_a = nn.Parameter(torch.empty(rank, layer.in_features, device="meta"))
        self.lora_b = nn.Parameter(torch.empty(layer.out_features, rank, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x)
        low = F.linear(F.dropout(x.to(self.lora_a.dtype), self.dropout, self.training), self.lora_a)
        return (result + F.linear(low, self.lora_b) * 2.0).to(result.dtype)


def quantise(model: nn.Module, kind: str, dtype: torch.dtype, without: Iterable[nn.Module] = ()) -> nn.Module:
    """Replaces every nn.Linear but those `without`; `dtype` is what products are computed in. Raises BadInput."""
    if kind not in KINDS:
        raise BadInput(f"There are no weights of the kind {kind!r}. Write {', '.join(KINDS)}.")
    spared = {id(layer) for layer in without}
    return _replaced(model, lambda _, layer: Quantised(layer, kind, dtype) if _is_linear(layer, spared) else None)


def as_loaded(model: nn.Module) -> nn.Module:
    """Replaces the layers that `Task.pretrained` loads quantised."""

    def loaded(_: str, layer: nn.Module) -> nn.Module | None:
        return Quantised(layer, *layer.loaded_as) if hasattr(layer, "loaded_as") else None

    return _replaced(model, loaded)


def adapt(model: nn.Module, rank: int, targets: Iterable[str], dropout: float = 0.0) -> nn.Module:
    """Freezes the model and adds adapters of a rank to the layers whose name ends so. Raises BadInput for none."""
    names = set(targets)
    model.requires_grad_(False)
    count = sum(name.rsplit(".", 1)[-1] in names and _is_linear(layer) for name, layer in model.named_modules())
    if not count or type(rank) is not int or rank < 1:
        linear = sorted({name.rsplit(".", 1)[-1] for name, layer in model.named_modules() if _is_linear(layer)})
        raise BadInput(
            f"No adapter of rank {rank!r} can be put on {', '.join(sorted(names)) or 'nothing'}. The linear layers are "
            f"{', '.join(linear)}."
        )
    return _replaced(
        model, lambda name, layer: Adapted(layer, rank, dropout) if name in names and _is_linear(layer) else None
    )


def _is_linear(layer: nn.Module, without: Iterable[int] = ()) -> bool:
    return isinstance(layer, nn.Linear | Quantised) and id(layer) not in without


def _replaced(model: nn.Module, make: Callable[[str, nn.Module], nn.Module | None]) -> nn.Module:
    for parent, name, layer in list(_children(model)):
        if (new := make(name, layer)) is not None:
            setattr(parent, name, new.train(layer.training))
    return model


def _children(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in model.modules():
        for name, child in parent.named_children():
            yield parent, name, child
