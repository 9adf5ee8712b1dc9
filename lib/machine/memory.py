"""Memory as it is: what the machine and its GPUs have and use; clearing it; what counts as running out."""

import functools
import gc
import os
from dataclasses import dataclass

import psutil
import torch

from lib.machine.hardware import gpu_used

GIB = 2**30


def device() -> torch.device:
    """This process's GPU, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


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
        used, total = gpu_used(index)
        own = f"allocated {torch.cuda.memory_allocated(index) / GIB:.2f}"
        kept = f"reserved {torch.cuda.memory_reserved(index) / GIB:.2f} GiB"
        found.append(Reading(f"GPU {index}, {torch.cuda.get_device_name(index)}", used, total, f"{own}, {kept}"))
    return found


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
