"""Memory as it is: what the machine and its GPUs have and use; precision and recomputation that fit the card."""

import contextlib
import functools
import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from lib.errors import BadInput

GIB = 2**30

Precision = Literal["fp32", "fp16", "bf16"]


def device() -> torch.device:
    """This process's GPU, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def precision(asked: str, on: torch.device) -> Precision:
    """The precision to compute in: "auto" takes bf16 where the card has hardware for it, else fp16, and fp32 on a CPU.

    `torch.cuda.is_bf16_supported()` is True on a T4, which only emulates it, several times slower than fp16; the
    capability (8.0 and up) is what counts.
    """
    if on.type == "cpu":
        if asked == "fp16":
            raise BadInput("training.precision is fp16, but there is no GPU. Write auto or fp32.")
        return "bf16" if asked == "bf16" else "fp32"
    return planned_precision(asked, torch.cuda.get_device_capability(on), torch.cuda.get_device_name(on))


def planned_precision(asked: str, capability: tuple[int, int], card: str) -> Precision:
    """What `precision` gives on a card with this capability, here or not. Raises BadInput."""
    has_bf16 = capability >= (8, 0)
    if asked == "bf16" and not has_bf16:
        raise BadInput(f"training.precision is bf16, which {card} lacks. Write auto or fp16.")
    if asked == "auto":
        return "bf16" if has_bf16 else "fp16"
    return asked  # type: ignore[return-value]


def allow_tf32(in_precision: Precision, on: torch.device) -> None:
    """Lets what autocast leaves in fp32 use TF32, where the card has it (8.0 and up); fp32 asked for stays fp32."""
    if on.type == "cuda":
        fits = in_precision != "fp32" and torch.cuda.get_device_capability(on) >= (8, 0)
        torch.set_float32_matmul_precision("high" if fits else "highest")


def autocast(in_precision: Precision, on: torch.device) -> contextlib.AbstractContextManager:
    if in_precision == "fp32":
        return contextlib.nullcontext()
    kind = "cuda" if on.type == "meta" else on.type  # meta tensors stand for those of a GPU that is planned for
    return torch.autocast(kind, torch.float16 if in_precision == "fp16" else torch.bfloat16)


def recompute(model: nn.Module, layers: int | str) -> int:
    """Makes the first `layers` ("all" for every one) of `model.blocks` recompute their activations in backward.

    Returns how many. Raises BadInput where the model has no `blocks` or fewer than asked for.
    """
    if not layers:
        return 0
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        raise BadInput("training.gradient_checkpointing is set, but this model has no `blocks` to recompute. Write 0.")
    count = len(blocks) if layers == "all" else int(layers)
    if count > len(blocks):
        raise BadInput(f"training.gradient_checkpointing is {count}, but the model has {len(blocks)} blocks.")
    for block in list(blocks)[:count]:
        block.forward = _recomputing(block)
    return count


def _recomputing(block: nn.Module) -> Callable[..., Any]:
    """The block's forward pass, recomputed in backward; batch statistics are updated in the first pass alone."""
    forward = block.forward
    norms = [m for m in block.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
    more = {"context_fn": lambda: (contextlib.nullcontext(), _statistics_aside(norms))} if norms else {}

    def wrapped(*args, **kwargs):
        if torch.is_grad_enabled():
            return recomputed(forward, *args, use_reentrant=False, **more, **kwargs)
        return forward(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def _statistics_aside(norms: list[nn.Module]) -> Iterator[None]:
    """Inside, these layers update copies of their statistics.

    A momentum of 0 would not do (0 * inf is NaN, and None counts batches), and no statistics at all would save fewer
    tensors than the first pass, which torch refuses.
    """
    kept = [dict(norm._buffers) for norm in norms]
    for norm, buffers in zip(norms, kept, strict=True):
        norm._buffers.update({name: value.clone() for name, value in buffers.items() if value is not None})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)


# Running out of memory has many names; illegal accesses and device asserts are never among them.
_OOM_MARKS = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
)


def is_oom(error: BaseException | None) -> bool:
    """Whether `error`, or what caused it, is memory running out."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(mark in str(error) for mark in _OOM_MARKS):
            return True
        error = error.__cause__ or error.__context__
    return False


def clear_memory() -> None:
    """Gives back what nobody refers to. Call it outside an `except` block: the traceback pins the activations."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def empty_cache() -> None:
    """Gives the driver what PyTorch keeps for its next tensors. It waits for the GPU; see memory.empty_cache_..."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@functools.cache  # making one reads /proc, twice as long as asking it
def _process(number: int) -> psutil.Process:
    return psutil.Process(number)


def _resident_bytes() -> int:
    return _process(os.getpid()).memory_info().rss


def card_bytes() -> int:
    """Memory of the GPU as torch sees it; 0 without one."""
    return torch.cuda.get_device_properties(device()).total_memory if torch.cuda.is_available() else 0


def allocated_bytes() -> int:
    """Bytes in tensors on the GPU; on a CPU the resident memory of the process."""
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else _resident_bytes()


def peak_bytes() -> int:
    """Highest bytes in tensors on the GPU since `reset_peak`; on a CPU the resident memory of the process now."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _resident_bytes()


def reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


@dataclass(frozen=True)
class Reading:
    """One pool of memory: bytes used and in all, and for a GPU what this process allocated and reserved of it."""

    name: str
    used: int
    total: int
    detail: str = ""

    @property
    def share(self) -> float:
        return self.used / self.total


def readings() -> list[Reading]:
    """RAM first, then each GPU: by NVML where it answers (it sees other processes too), by torch otherwise."""
    ram = psutil.virtual_memory()
    process = _resident_bytes()
    found = [Reading("RAM", ram.total - ram.available, ram.total, f"this process {process / GIB:.2f} GiB")]
    for index in range(torch.cuda.device_count()):
        used, total = _gpu_used(index)
        own = f"allocated {torch.cuda.memory_allocated(index) / GIB:.2f}"
        kept = f"reserved {torch.cuda.memory_reserved(index) / GIB:.2f} GiB"
        found.append(Reading(f"GPU {index}, {torch.cuda.get_device_name(index)}", used, total, f"{own}, {kept}"))
    return found


def _gpu_used(index: int) -> tuple[int, int]:
    with contextlib.suppress(Exception):  # no NVML in the image, or a driver that refuses it: torch knows as well
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(info.used), int(info.total)
    free, total = torch.cuda.mem_get_info(index)
    return total - free, total


def check_memory() -> str:
    """A line for RAM and each GPU with a verdict: under half start, over 80 % what to reduce."""
    lines = [_verdict(reading) for reading in readings()]
    if not torch.cuda.is_available():
        lines.append("No GPU: training runs on the CPU. On Kaggle choose Settings > Accelerator > GPU T4 x2.")
    return "\n".join(lines)


def _verdict(reading: Reading) -> str:
    if reading.share < 0.5:
        advice = "free to start"
    elif reading.share <= 0.8:
        advice = "enough for a small run"
    elif reading.name == "RAM":
        advice = "nearly full: close other notebooks, or lower data.num_workers"
    else:
        advice = "nearly full: restart other kernels on this GPU, or lower training.micro_batch"
    size = f"{reading.used / GIB:.2f} of {reading.total / GIB:.2f} GiB used ({reading.share:.0%})"
    return f"{reading.name}: {size}, {reading.detail}: {advice}"
