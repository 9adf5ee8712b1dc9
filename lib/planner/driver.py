"""What torch.cuda, torch.compile and torch.distributed say inside a trace: what they do on one card, or a refusal."""

import contextlib
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

from lib.planner.allocator import Allocator
from lib.planner.card import Target
from lib.planner.limits import NotTraceable, users_line

_DISTRIBUTED = "so give the plain model: a prediction follows one card of however many."
_REFUSED = {
    "DataParallel": "copies the model to every card in each step, and the outputs of all are gathered on the first, "
    f"{_DISTRIBUTED}",
    "DistributedDataParallel": "needs a process for each card, "
    f"{_DISTRIBUTED} Its buckets take one more copy of the gradients on each (as many bytes as the trained "
    "parameters), unless gradient_as_bucket_view=True: predict(..., cards=N) adds them.",
    "init_process_group": "starts one of several processes (DDP, FSDP2, DTensor), each with a part of the work, "
    f"{_DISTRIBUTED} What fully_shard divides among N cards is about 1/N of weights, gradients and optimizer.",
}


class Event:
    """A CUDA event where no time passes."""

    def __init__(self, *_: Any, **__: Any):
        self._time = time.perf_counter()

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Event") -> float:
        return 1000 * abs(other._time - self._time)


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

    def figure(name: str) -> Callable[..., int]:
        return lambda *_, **__: getattr(figures, name)

    def nothing(*_: Any, **__: Any) -> None: ...

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
        "memory_allocated": figure("allocated"),
        "max_memory_allocated": figure("peak_allocated"),
        "memory_reserved": figure("reserved"),
        "max_memory_reserved": figure("peak_reserved"),
        "empty_cache": lambda: figures.empty_cache(),
        "reset_peak_memory_stats": nothing,
        "synchronize": nothing,
        "init": nothing,
        "Event": Event,
    }


def _refusing(name: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise NotTraceable(f"{name} ({users_line()}) {_REFUSED[name]}")

    return refuse


def _compiling(compiled: Counter[str]) -> Callable[..., Any]:
    """Returns what stands for torch.compile: it gives the model or function back as it is, and counts."""

    def compile(model: Any = None, *_: Any, **__: Any) -> Any:
        compiled["torch.compile"] += 1
        return (lambda function: function) if model is None else model

    return compile


@contextlib.contextmanager
def one_card(target: Target, allocator: Allocator | None, compiled: Counter[str]) -> Iterator[None]:
    """Lets torch say inside the block that there is one card, `target`, and refuse what needs several."""
    with contextlib.ExitStack() as stack:
        for name, answer in answers(target, allocator).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch.object(torch, "compile", _compiling(compiled)))
        for kind in (nn.DataParallel, nn.parallel.DistributedDataParallel):
            stack.enter_context(mock.patch.object(kind, "__init__", _refusing(kind.__name__)))
        if torch.distributed.is_available():
            for module in (torch.distributed, torch.distributed.distributed_c10d):
                stack.enter_context(mock.patch.object(module, "init_process_group", _refusing("init_process_group")))
        stack.enter_context(mock.patch("torch.optim.optimizer._get_fused_kernels_supported_devices", _fused_devices))
        try:
            yield
        finally:
            _forget_answers()


def _fused_devices() -> list[str]:
    return ["cuda", "cpu", "meta"]


def _forget_answers() -> None:
    """Clears what transformers remembers of torch.cuda.is_available, which was not true."""
    module = sys.modules.get("transformers.utils.import_utils")
    for name in ("is_torch_cuda_available", "is_flash_attn_2_available", "is_flash_attn_3_available"):
        if forget := getattr(getattr(module, name, None), "cache_clear", None):
            forget()


def check_model(model: nn.Module, compiled: Counter[str]) -> None:
    """Raises NotTraceable for a model that stands on several cards; counts what was compiled before."""
    for name, module in model.named_modules():
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            kind = type(module).__name__
            raise NotTraceable(f"{kind} ({name or 'the model itself'}) {_REFUSED[kind]}")
        if getattr(module, "sparse", False) is True and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise NotTraceable(
                f"The gradient of {name or 'the model'} is sparse (sparse=True): it has a row for each different "
                "number of the batch, which depends on values. Write sparse=False for an upper bound."
            )
        compiled["torch.compile"] += hasattr(module, "_orig_mod")
