"""Reads and clears the memory of the machine and its GPUs, and detects that it ran out."""

import contextlib
import gc
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from lib.machine import hardware

GIB = 2**30
# Running out of memory has many names; illegal accesses and device asserts are never among them.
_OOM_MARKS = (
    "CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory",
)  # fmt: skip


def device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def is_oom(error: BaseException | None) -> bool:
    """Says whether `error`, or an error it came from, means that memory ran out."""
    seen: set[int] = set()  # a chain may have a circle
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error) if isinstance(error, RuntimeError) else ""
        has_mark = any(mark in text for mark in _OOM_MARKS)
        if has_mark or isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def clear_memory() -> None:
    """Empties the CUDA cache.

    Call it outside an `except` block, whose traceback holds the activations.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def card_bytes() -> int:
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(device()).total_memory
    return 0


def allocated_bytes() -> int:
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    return _resident_bytes()


def peak_bytes() -> int:
    """Returns the peak of bytes in tensors since `reset_peak`; on a CPU that of the resident memory."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    with contextlib.suppress(OSError, StopIteration, ValueError):  # a system without /proc
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        line = next(line for line in lines if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    return _resident_bytes()


def reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError):  # without this right it stays the peak of the whole process
        Path("/proc/self/clear_refs").write_text("5", "ascii")


@dataclass(frozen=True)
class Reading:
    """RAM or the memory of a GPU, in bytes; `detail` has the share of this process."""

    name: str
    used: int
    total: int
    detail: str = ""

    @property
    def share(self) -> float:
        return self.used / self.total


def readings() -> list[Reading]:
    """Reads RAM, by the container's limit if any, and each GPU, used by all processes."""
    ram = hardware.ram()
    limit = ", a container" if ram.limited else ""
    detail = f"this process {_resident_bytes() / GIB:.2f} GiB{limit}"
    rows = [Reading("RAM", ram.total - ram.available, ram.total, detail)]
    for index in range(torch.cuda.device_count()):
        load = hardware.gpu_reader(index)()
        allocated = torch.cuda.memory_allocated(index) / GIB
        reserved = torch.cuda.memory_reserved(index) / GIB
        detail = f"allocated {allocated:.2f}, reserved {reserved:.2f} GiB"
        name = f"GPU {index}, {torch.cuda.get_device_name(index)}"
        rows.append(Reading(name, load.used, load.total, detail))
    return rows


def check_memory() -> str:
    """Writes a line for RAM and each GPU, with advice where over 80 % is used."""
    lines = []
    for reading in readings():
        used = reading.used / GIB
        total = reading.total / GIB
        size = f"{used:.2f} of {total:.2f} GiB used ({reading.share:.0%})"
        line = f"{reading.name}: {size}, {reading.detail}"
        if reading.share > 0.8:
            line += ": nearly full. Close other notebooks and restart their kernels"
        lines.append(f"{line}.")
    if not torch.cuda.is_available():
        lines.append(
            "No GPU: training runs on the CPU. On Kaggle choose Settings > Accelerator > GPU T4 x2."
        )
    return "\n".join(lines)
