"""Number format, autocast and TF32 that fit the card."""

import contextlib
import fnmatch
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lib import private
from lib.checkpoint import weights
from lib.config import Config, Training
from lib.errors import BadInput
from lib.machine import memory
from lib.task.place import place_of

Precision = Literal["fp32", "fp16", "bf16"]
_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
LARGEST_FP16 = 65_504  # IEEE 754 binary16
_AMPERE = (8, 0)  # compute capability from which a card has bf16 and TF32
AUTO = "auto"  # among training.fp32_modules, until a run has decided


def set_determinism(training: Training) -> None:
    """Switches torch to deterministic algorithms if asked, and on every CPU, where threads would change some sums."""
    if training.deterministic:
        # cuBLAS reads it when its first handle is made
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # This call and not use_deterministic_algorithms, which imports the compiler for a second and more.
    always = training.deterministic or memory.device().type == "cpu"
    torch.set_deterministic_debug_mode("error" if always else "default")
    # it costs time and finds only bugs
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if training.deterministic:
        torch.backends.cudnn.benchmark = False  # which may choose another algorithm each time


def choose_precision(setting: str, on: torch.device) -> Precision:
    """Returns the precision to compute in: "auto" is fp32 on a CPU, bf16 on a card that has it, or fp16."""
    if on.type == "cpu":
        return "fp32" if setting == "auto" else setting  # type: ignore[return-value]
    capability = torch.cuda.get_device_capability(on)
    return precision_on_card(setting, capability, torch.cuda.get_device_name(on))


def precision_on_card(setting: str, capability: tuple[int, int], card: str) -> Precision:
    """Returns the choice of `choose_precision` for a card with this capability. Raises BadInput."""
    # torch.cuda.is_bf16_supported() is True on a T4, which only emulates it
    has_bf16 = capability >= _AMPERE
    if setting == "bf16" and not has_bf16:
        raise BadInput(f"training.precision is bf16, which {card} lacks. Write auto or fp16.")
    if setting == "auto":
        return "bf16" if has_bf16 else "fp16"
    return setting  # type: ignore[return-value]


def about_precision(in_precision: Precision, on: torch.device) -> list[str]:
    warning = "fp16 on a CPU takes 10 to 20 times as long as fp32. Use it to try a T4's arithmetic in a few steps."
    if (in_precision, on.type) == ("fp16", "cpu"):
        return [warning]
    return []


def allow_tf32(in_precision: Precision, on: torch.device) -> None:
    """Allows TF32 for operators that autocast leaves in fp32, if the card has it; a configured fp32 stays fp32."""
    if on.type == "cuda":
        fits = in_precision != "fp32" and torch.cuda.get_device_capability(on) >= _AMPERE
        torch.set_float32_matmul_precision("high" if fits else "highest")


class BeyondFp16(BadInput):
    """A constant of the model is larger than fp16 holds."""


def autocast(in_precision: Precision, on: torch.device) -> contextlib.AbstractContextManager:
    """Returns the context to compute in. In fp16 it raises BeyondFp16 with the line of a constant that is too large."""
    if in_precision == "fp32":
        return contextlib.nullcontext()
    cast = torch.autocast(on.type, _HALVES[in_precision])
    if in_precision == "fp16":
        return _naming_constants(cast)
    return cast


@contextlib.contextmanager
def _naming_constants(cast: contextlib.AbstractContextManager) -> Iterator[None]:
    try:
        with cast:
            yield
    except RuntimeError as error:
        if not is_beyond_fp16(error):
            raise
        raise BeyondFp16(
            f"A constant is beyond fp16, which ends at {LARGEST_FP16:,} ({place_of(error)}). "
            "Write torch.finfo(x.dtype).min in its place."
        ) from error


def is_beyond_fp16(error: Exception) -> bool:
    """Returns whether torch refuses a number that fp16 does not hold: masked_fill(mask, -1e9), say."""
    return "without overflow" in str(error)


def keep_in_fp32(model: nn.Module, globs: Sequence[str], on: torch.device) -> None:
    """Takes the modules that `globs` name out of autocast: weights, inputs and outputs are fp32. Raises BadInput."""
    for module in named_by(model, globs):
        module.float().forward = _in_fp32(module.forward, on.type)


def named_by(model: nn.Module, globs: Sequence[str]) -> list[nn.Module]:
    """Returns the modules whose names match one of `globs`. Raises BadInput for a glob that none matches."""
    modules = {name: module for name, module in model.named_modules() if name}
    names: set[str] = set()
    for glob in globs:
        if glob == AUTO:  # in a plan, which looks at no values
            continue
        matches = fnmatch.filter(modules, glob)
        if not matches:
            some = ", ".join(list(modules)[:8])
            raise BadInput(
                f"training.fp32_modules has {glob!r}, and the model has no such module. It has {some} ..."
            )
        names.update(matches)
    return [module for name, module in modules.items() if name in names]


def _in_fp32(forward: Callable[..., Any], device: str) -> Callable[..., Any]:
    def widened(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype in _HALVES.values():
            return value.float()
        return value

    @functools.wraps(forward)
    def wide(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return forward(*private.tree_map(widened, args), **private.tree_map(widened, kwargs))

    return wide


def widen_on_cpu(model: nn.Module, precision: Precision, on: torch.device) -> str:
    """Widens 16-bit weights on a CPU that computes in fp32; returns a sentence, or "" if there are none.

    Without units for them, products in 16 bits take 50 times as long on a CPU.
    """
    names = {dtype: name for name, dtype in _HALVES.items()}
    halves = {
        names[p.dtype] for p in model.parameters() if p.dtype in names and not p.requires_grad
    }
    if precision != "fp32" or on.type != "cpu" or not halves:
        return ""
    weights.widen(model)
    return (
        f"Frozen weights in {', '.join(sorted(halves))} are computed in fp32 on this CPU. "
        "training.precision: bf16 computes in 16 bits."
    )


def set_types(model: nn.Module, config: Config, precision: Precision) -> None:
    """Gives frozen matrices the type of `frozen_precision`, and trained parameters fp32. Raises BadInput."""
    wide: set[nn.Parameter] = set()
    for module in named_by(model, config.training.fp32_modules):
        wide.update(module.parameters())
    parameters = [p for p in model.parameters() if p.is_floating_point() and p not in wide]
    frozen = [p for p in parameters if not p.requires_grad]
    kind = config.training.frozen_precision if frozen else ""
    if kind and precision == "fp32":
        raise BadInput(
            f"training.frozen_precision is {kind}, but this run computes in fp32. Leave it empty here, or write "
            "training.precision: bf16 or fp16 where the processor has it."
        )
    for parameter in frozen:
        if kind and parameter.dim() >= 2:
            parameter.data = parameter.data.to(_HALVES[kind])
    halves = [p for p in parameters if p.requires_grad and p.dtype in _HALVES.values()]
    if not halves:
        return
    for module in model.modules():
        inside = list(module.parameters())
        if inside and all(p.requires_grad for p in inside):
            weights.widen(module)  # with its buffers, which its layers compute with
    for parameter in halves:
        parameter.data = parameter.data.float()
