"""Reads CPUs and RAM within a container's limits, GPUs and drivers."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


class Gpu(NamedTuple):
    """A GPU by its name and properties, which torch reads without running a kernel."""

    name: str
    capability: tuple[int, int]
    total_bytes: int

    def __str__(self) -> str:
        gib = self.total_bytes / 2**30
        return f"{self.name} (capability {dotted(self.capability)}, {gib:.2f} GiB)"


def dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def gpus() -> list[Gpu]:
    """Lists the GPUs that torch can use; [] without CUDA or a driver that is new enough."""
    with warnings.catch_warnings():
        # torch warns of old GPUs and drivers; the doctor does in sentences
        warnings.simplefilter("ignore")
        if not torch.cuda.is_available():
            return []
        properties = [
            torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())
        ]
    return [Gpu(p.name, (p.major, p.minor), p.total_memory) for p in properties]


def _nvml() -> Any:
    """Opens NVML. Raises errors of many classes: no package, no library, a driver that refuses."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


class Driver(NamedTuple):
    """NVIDIA's driver: its version, the newest CUDA that it runs, and its GPUs."""

    version: str
    cuda: tuple[int, int]
    names: list[str]


def driver() -> Driver | None:
    with contextlib.suppress(Exception):
        nvml = _nvml()
        number = nvml.nvmlSystemGetCudaDriverVersion_v2()  # 12080 is 12.8
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        names = [nvml.nvmlDeviceGetName(handle) for handle in handles]
        cuda = (number // 1000, number % 1000 // 10)
        return Driver(nvml.nvmlSystemGetDriverVersion(), cuda, names)
    return None


def clocks() -> dict[str, int]:
    """Returns MHz and degrees of the first GPU; {} if NVML does not answer."""
    with contextlib.suppress(Exception):
        nvml = _nvml()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        clock = nvml.NVML_CLOCK_SM
        return {
            "MHz": nvml.nvmlDeviceGetClockInfo(handle, clock),
            "MHz at most": nvml.nvmlDeviceGetMaxClockInfo(handle, clock),
            "degrees": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
    return {}


class GpuLoad(NamedTuple):
    """Bytes of a GPU, used by all processes and in total; `use` is its busy share of time."""

    used: int
    total: int
    use: float | None = None


def gpu_reader(index: int) -> Callable[[], GpuLoad]:
    """Returns a reader of a GPU's load, by torch's number; without NVML it lacks `use`."""
    nvml: Any = None
    handle: Any = None
    with contextlib.suppress(Exception):  # a driver's errors are of many classes
        nvml = _nvml()
        # torch's numbers leave out GPUs hidden from it
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def read() -> GpuLoad:
        with contextlib.suppress(Exception):  # a slice of a GPU (MIG) has no utilisation
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            use = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            return GpuLoad(int(memory.used), int(memory.total), use)
        free, total = torch.cuda.mem_get_info(index)
        return GpuLoad(total - free, total)

    return read


class Ram(NamedTuple):
    """Bytes that this process may use, now and in total; `limited` by a container."""

    available: int
    total: int
    limited: bool


def ram() -> Ram:
    """Returns the machine's memory, or the limit of the container (cgroup)."""
    machine = psutil.virtual_memory()
    smallest = Ram(machine.available, machine.total, False)
    for folder in _cgroups("memory"):
        limit = _read(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit.isdigit() and int(limit) < smallest.total:  # not "max"
            used = int(_read(folder / "memory.current", folder / "memory.usage_in_bytes") or 0)
            fields = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
            # cached files count as used, and are dropped before memory runs out
            inactive = int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
            available = max(0, int(limit) - used + inactive)
            smallest = Ram(min(available, smallest.available), int(limit), True)
    return smallest


def cpus() -> float:
    """Returns the CPUs of this process by affinity and quota, maybe a fraction."""
    count = float(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        count = float(len(os.sched_getaffinity(0)))
    for folder in _cgroups("cpu"):
        version_1 = [_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota, period = _read(folder / "cpu.max").split() or version_1
        if quota.isdigit():  # not "max", not -1
            count = min(count, int(quota) / int(period))
    return count


def cpus_per_process(processes: int) -> int:
    return max(1, int(cpus() // processes))


def _cgroups(controller: str) -> list[Path]:
    """Lists the folders of this process's control groups, the innermost first, of version 2 or 1."""
    for _, controllers, path in (line.split(":", 2) for line in _read(_OWN_CGROUP).splitlines()):
        if not controllers or controller in controllers.split(","):
            # version 1 tells a container its path on the host, which it cannot see; the root is its
            # group
            root = _CGROUPS / controller if controllers else _CGROUPS
            own = root / path.strip("/")
            return [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return []


def _read(*paths: Path) -> str:
    for path in paths:
        with contextlib.suppress(OSError):
            return path.read_text("utf-8", "replace").strip()
    return ""
