"""What this process may use of the machine it runs on: limits of its container, GPUs and their kernels, the network."""

import contextlib
import os
import re
import socket
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from lib.errors import BadInput

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_DEVICES = Path("/dev")
# What the runtime itself sets. TPU_NAME is not among them: people set it at home to rent one.
_TPU_VARIABLES = (
    "TPU_ACCELERATOR_TYPE", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_PROCESS_ADDRESSES", "TPU_SKIP_MDS_QUERY", "TPU_WORKER_ID",
    "COLAB_TPU_ADDR",
)  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """A card as torch names it, which takes no kernel."""

    name: str
    capability: tuple[int, int]
    total_bytes: int

    def __str__(self) -> str:
        return f"{self.name} (capability {dotted(self.capability)}, {self.total_bytes / 2**30:.2f} GiB)"


def dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def gpus() -> list[Gpu]:
    """The cards that torch can use; none where it was built without CUDA, or the driver is missing or too old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own words about old cards and drivers; `fitting_kernel` decides here
        if not torch.cuda.is_available():
            return []
        found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [Gpu(p.name, (p.major, p.minor), p.total_memory) for p in found]


def fitting_kernel(capability: tuple[int, int], built: Iterable[str]) -> str | None:
    """Which of `torch.cuda.get_arch_list()` runs on a card; machine code before PTX, which has to be compiled there.

    Machine code (sm_XY) runs on the same major and an equal or higher minor capability, PTX (compute_XY) on every
    equal or higher one; names that end in "a" on that very capability, in "f" on its family, here the same major
    (NVIDIA, CUDA Programming Guide, "The CUDA platform").
    """
    fitting = []
    for name in built:
        if match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name):
            kind, version, suffix = match[1], (int(match[2]), int(match[3])), match[4]
            if _runs_on(capability, kind, version, suffix):
                fitting.append((kind == "sm", version, name))
    return max(fitting)[2] if fitting else None


def _runs_on(capability: tuple[int, int], kind: str, version: tuple[int, int], suffix: str) -> bool:
    if suffix == "a":
        return capability == version
    if kind == "sm" or suffix == "f":
        return capability[0] == version[0] and capability[1] >= version[1]
    return capability >= version


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver as NVML knows it: its version, the newest CUDA that it runs, and the cards that it sees."""

    version: str
    cuda: tuple[int, int]
    names: list[str]


def driver() -> Driver | None:
    """None where NVML is not there or does not answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
        number = pynvml.nvmlSystemGetCudaDriverVersion_v2()  # 12080 is 12.8
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        return Driver(_text(pynvml.nvmlSystemGetDriverVersion()), (number // 1000, number % 1000 // 10), names)
    except Exception:  # no package, no library, a driver that refuses: errors of many classes, one meaning
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes in nvidia-ml-py before 11.5


def has_tpu() -> bool:
    """Whether this is a TPU runtime (Cloud TPU VMs, Kaggle, Colab), told by variables and devices; no value is read.

    A TPU is /dev/accel0, or /dev/vfio/0 and then known by its variables. In a folder, /dev/accel/accel0 is any other
    accelerator, such as a laptop's NPU.
    """
    return any(name in os.environ for name in _TPU_VARIABLES) or any(
        re.fullmatch(r"accel\d+", path.name) for path in _listed(_DEVICES)
    )


def refuse_tpu() -> None:
    """Raises BadInput in a TPU runtime without a GPU."""
    if has_tpu() and not torch.cuda.is_available():
        raise BadInput(
            "This is a TPU runtime, on which Trainbook would train on the CPU alone: choose GPU T4 x2 on Kaggle "
            "(Settings > Accelerator) or T4 GPU on Colab (Runtime > Change runtime type)."
        )


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


@dataclass(frozen=True)
class Ram:
    """Bytes that this process may use, now and in all; `limited` by a container rather than by the machine."""

    available: int
    total: int
    limited: bool


def ram() -> Ram:
    """The machine's memory, or what the container (cgroup) allows of it."""
    whole = psutil.virtual_memory()
    smallest = Ram(whole.available, whole.total, False)
    for folder in _cgroups("memory"):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        if limit is not None and limit < smallest.total:
            used = _number(folder, "memory.current", "memory.usage_in_bytes") or 0
            free = max(0, limit - (used - _dropped_first(folder)))
            smallest = Ram(min(free, smallest.available), limit, True)
    return smallest


def _dropped_first(folder: Path) -> int:
    """Bytes of files that nobody read lately: counted as used, and given up before memory runs out."""
    fields = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))


def cpus() -> float:
    """CPUs that this process may keep busy: by its affinity, and by the container's quota, which may be a fraction."""
    # macOS has no affinity
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for folder in _cgroups("cpu"):
        quota, period = (*_read(folder / "cpu.max").split(), "", "")[:2]
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit():  # not "max", not -1
            count = min(count, int(quota) / int(period))
    return count


def _cgroups(controller: str) -> list[Path]:
    """The folders of this process's control group and of those around it, in version 2 or 1."""
    for line in _read(_OWN_CGROUP).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _CGROUPS / controller if controllers else _CGROUPS
            own = root / path.strip("/")
            # a container of version 1 is told its path on the host, which it cannot see; its root is its own group
            return [folder for folder in (own, *own.parents) if folder.is_relative_to(root) and folder.is_dir()]
    return []


def _number(folder: Path, *names: str) -> int | None:
    texts = [_read(folder / name).strip() for name in names]
    return next((int(text) for text in texts if text.isdigit()), None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def has_route() -> bool:
    """Whether the system knows a way out. A datagram socket that is connected sends nothing, so no host is asked."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address for documentation (RFC 5737)
        return True
    return False


def resolves(host: str, seconds: float) -> bool:
    """Whether a name is resolved within `seconds`; the host itself is not connected to."""
    found: list[object] = []

    def look() -> None:
        with contextlib.suppress(OSError):
            found.extend(socket.getaddrinfo(host, None))

    thread = threading.Thread(target=look, name="resolver", daemon=True)  # the call itself cannot be bounded
    thread.start()
    thread.join(seconds)
    return bool(found)


def gpu_used(index: int) -> tuple[int, int]:
    with contextlib.suppress(Exception):  # no NVML in the image, or a driver that refuses it: torch knows as well
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(info.used), int(info.total)
    free, total = torch.cuda.mem_get_info(index)
    return total - free, total


def nvml_reader(index: int) -> Callable[[], tuple[float | None, int]]:
    import pynvml

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(index).uuid)  # torch's index leaves out cards that are hidden from it
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def read() -> tuple[float | None, int]:
        use = None
        with contextlib.suppress(pynvml.NVMLError):  # a slice of a card (MIG) has memory, but no utilisation
            use = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return use, int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)

    read()
    return read


def torch_reading(index: int) -> tuple[None, int]:
    free, total = torch.cuda.mem_get_info(index)
    return None, total - free
