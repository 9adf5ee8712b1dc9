"""What torch.cuda, torch.compile and torch.distributed say inside a trace: what they do on one card, or a refusal."""

import contextlib
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import nn

from lib.planner.allocator import Allocator
from lib.planner.card import Target
from lib.planner.limits import NotTraceable, users_line

_FUSED = "torch.optim.optimizer._get_fused_kernels_supported_devices"
_REFUSED = {
    "DataParallel": "",
    "DistributedDataParallel": " predict(..., cards=N) adds the buckets of DDP, one more copy of the gradients.",
    "init_process_group": " What fully_shard divides among N cards is about 1/N of weights, gradients and optimizer.",
}


def _nothing(*_: Any, **__: Any) -> None: ...


class Event:
    """A CUDA event where no time passes."""

    def __init__(self, *_: Any, **__: Any): ...

    record = synchronize = wait = _nothing

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Event") -> float:
        return 0.0


def card_index(device: Any) -> int:
    """Returns the number of a CUDA device, 0 where it has none. Raises NotTraceable for a second card."""
    number = str(device) if isinstance(device, int) else str(device).partition(":")[2]
    index = int(number) if number.isdigit() else 0
    if index > 0:
        raise NotTraceable(
            f"The traced step uses a second card, cuda:{index} ({users_line()}), and a prediction follows one. Write "
            '"cuda", or predict the part on each card alone.'
        )
    return 0


def answers(target: Target, allocator: Allocator | None) -> dict[str, Any]:
    """Returns the functions of torch.cuda as they are on `target`, with the simulated allocator's figures."""
    card, figures = target.card, allocator or Allocator()
    total = int(card.memory_gib * 2**30)
    properties = types.SimpleNamespace(
        name=card.name, major=card.capability[0], minor=card.capability[1], total_memory=total
    )

    return {
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": card_index,
        "get_device_name": lambda *_: card.name,
        "get_device_capability": lambda *_: card.capability,
        "get_device_properties": lambda *_: properties,
        "mem_get_info": lambda *_: (total - figures.reserved - target.set_aside, total),
        "memory_allocated": lambda *_, **__: figures.allocated,
        "max_memory_allocated": lambda *_, **__: figures.peak_allocated,
        "memory_reserved": lambda *_, **__: figures.reserved,
        "max_memory_reserved": lambda *_, **__: figures.peak_reserved,
        "empty_cache": figures.empty_cache,
        **dict.fromkeys(("reset_peak_memory_stats", "synchronize", "init"), _nothing),
        "Event": Event,
    }


def _refuse(name: str, place: str) -> NoReturn:
    raise NotTraceable(
        f"{name} ({place}) needs several cards, so give the plain model: a prediction follows one card of however many."
        f"{_REFUSED[name]}"
    )


def _refusing(name: str) -> Callable[..., None]:
    return lambda *_, **__: _refuse(name, users_line())


@contextlib.contextmanager
def one_card(target: Target, allocator: Allocator | None, compiled: Counter[str]) -> Iterator[None]:
    """Lets torch say inside the block that there is one card, `target`, and refuse what needs several."""

    def compile(model: Any = None, *_: Any, **__: Any) -> Any:
        compiled["torch.compile"] += 1
        return (lambda function: function) if model is None else model

    with contextlib.ExitStack() as stack:
        for name, answer in answers(target, allocator).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch.object(torch, "compile", compile))
        for kind in (nn.DataParallel, nn.parallel.DistributedDataParallel):
            stack.enter_context(mock.patch.object(kind, "__init__", _refusing(kind.__name__)))
        if torch.distributed.is_available():
            for module in (torch.distributed, torch.distributed.distributed_c10d):
                stack.enter_context(mock.patch.object(module, "init_process_group", _refusing("init_process_group")))
        stack.enter_context(mock.patch(_FUSED, lambda: ["cuda", "cpu", "meta"]))
        try:
            yield
        finally:  # transformers remembers what torch.cuda.is_available was
            module = sys.modules.get("transformers.utils.import_utils")
            for name in ("is_torch_cuda_available", "is_flash_attn_2_available", "is_flash_attn_3_available"):
                getattr(getattr(module, name, None), "cache_clear", _nothing)()


def check_model(model: nn.Module, compiled: Counter[str]) -> None:
    """Raises NotTraceable for a model that stands on several cards; counts what was compiled before."""
    for name, module in model.named_modules():
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            _refuse(type(module).__name__, name or "the model itself")
        if getattr(module, "sparse", False) is True and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise NotTraceable(
                f"The gradient of {name or 'the model'} is sparse (sparse=True): it has a row for each different "
                "number of the batch, which depends on values. Write sparse=False for an upper bound."
            )
        compiled["torch.compile"] += hasattr(module, "_orig_mod")
