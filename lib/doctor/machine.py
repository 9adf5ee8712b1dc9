"""Checks what the machine and its platform have for training, and the installed versions.

Nothing here runs a kernel, asks a host for anything or prints the value of an environment variable.
"""

import contextlib
import importlib.metadata
import importlib.util
import math
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from lib import dependencies
from lib.config import Config, Session, environment
from lib.doctor.findings import Finding, Verdict, run_check
from lib.machine import disk, hardware, inputs, memory, platform
from lib.machine.facts import FACTS, GB
from lib.machine.memory import GIB
from lib.machine.platform import Platform
from lib.task.files import file_of, own_files
from lib.text import amount, duration
from lib.training.precision import choose_precision
from lib.training.session import start_session

_SHM = Path("/dev/shm")

# Own choices. Below the first number a run is bound to fail, below the second it may.
_RAM_BYTES = (1 * GIB, 4 * GIB)
_OUTPUT_BYTES = (GB // 2, 5 * GB)  # GraphMER's checkpoint has 1.1 GB, and two are there while one is replaced
_SCRATCH_BYTES = (GB // 10, 2 * GB)
_SHM_BYTES = (0, GIB)
_SHORT_SESSION_SECONDS = 3600.0
_INTERNET_SECONDS = 2.0


def check_machine(config: Config | None = None, trains: bool = True) -> list[Finding]:
    """Checks any machine, quickly and without running a kernel.

    `trains`: whether it is to train; a machine that only plans needs neither GPU nor data.
    """
    here = platform.detect()
    output = platform.output_dir(config) if config else here.output_dir
    cards = 0
    with contextlib.suppress(Exception):  # `check_gpu` asks again, and reports it
        cards = len(hardware.gpus())
    kernels = [("kernels", check_kernels), ("bf16", check_bf16), ("driver", check_driver)] if cards else []
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("platform", lambda: check_platform(here)),
        ("GPU", lambda: check_gpu(here, trains)),
        *kernels,
        *((f"GPU {index} memory", partial(check_gpu_memory, index)) for index in range(cards)),
        ("RAM", check_ram),
        ("CPUs", lambda: check_cpus(config)),
        ("/dev/shm", lambda: check_shm(config)),
        ("output folder", lambda: check_folder("output folder", output, _OUTPUT_BYTES)),
        ("scratch folder", lambda: check_folder("scratch folder", here.scratch_dir, _SCRATCH_BYTES)),
        ("output budget", lambda: check_budget(here)),
        ("internet", lambda: check_internet(here)),
        ("inputs", lambda: check_inputs(here, trains)),
        ("session", lambda: check_session(config, trains)),
    ]
    return [run_check(name, check) for name, check in checks]


def check_platform(here: Platform) -> Finding:
    """Names the platform and its session limit."""
    limit = f"{here.session_minutes:.0f} minutes a session" if here.session_minutes else "no session limit"
    return Finding("platform", f"{here.name}{' (batch run)' if here.batch else ''}, {limit}")


def check_gpu(here: Platform, trains: bool = True) -> Finding:
    """Checks which GPUs torch can use, or why it can use none although the driver sees some."""
    if gpus := hardware.gpus():
        counts = Counter(map(str, gpus))
        return Finding("GPU", ", ".join(f"{number} x {gpu}" for gpu, number in counts.items()))
    if not trains:
        return Finding("GPU", "none, and none is needed here")
    driver = hardware.driver()
    if not (driver and driver.names):
        steps = {
            "kaggle": "Choose Settings > Accelerator > GPU T4 x2 and run again.",
            "colab": "Choose Runtime > Change runtime type > T4 GPU and run again.",
            "local": "Take a configuration of a small size. If there is a GPU, install its driver.",
        }
        return Finding("GPU", "none: training runs on the CPU", "warning", steps[here.name])
    value = f"the driver sees {', '.join(driver.names)}, PyTorch cannot use it"
    if torch.version.cuda is None:
        advice = f"PyTorch {torch.__version__} is built without CUDA. Install a CUDA build by the steps on pytorch.org."
        return Finding("GPU", value, "warning", advice)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return Finding("GPU", value, "warning", "CUDA_VISIBLE_DEVICES is set, and may hide the GPU. Unset it.")
    advice = (
        f"PyTorch {torch.__version__} is built for CUDA {torch.version.cuda}, and driver {driver.version} runs CUDA up "
        f"to {hardware.dotted(driver.cuda)}. Install a newer driver, or a PyTorch build for an older CUDA."
    )
    return Finding("GPU", value, "bad", advice)


def check_kernels() -> Finding:
    """Checks by name whether this build of torch has kernels for each GPU, before the first one would fail."""
    built = torch.cuda.get_arch_list()
    gpus = {gpu.capability: gpu for gpu in hardware.gpus()}
    fitting = {capability: hardware.fitting_kernel(capability, built) for capability in gpus}
    has = f"PyTorch {torch.__version__} has {', '.join(built) or 'none'}"
    if missing := [capability for capability, kernel in fitting.items() if kernel is None]:
        names = " and ".join(f"{gpus[c].name} (capability {hardware.dotted(c)})" for c in missing)
        needed = " and ".join(f"sm_{c[0]}{c[1]}" for c in missing)
        advice = (
            "The first kernel would fail with 'no kernel image is available'. On Kaggle choose Settings > Accelerator "
            f"> GPU T4 x2; elsewhere install a PyTorch build whose torch.cuda.get_arch_list() names {needed}."
        )
        return Finding("kernels", f"none for {names}: {has}", "bad", advice)
    kernels = ", ".join(f"{kernel} for capability {hardware.dotted(c)}" for c, kernel in fitting.items())
    if any(str(kernel).startswith("compute") for kernel in fitting.values()):
        advice = f"{has}: the driver compiles every kernel on its first use. A build for this card starts faster."
        return Finding("kernels", kernels, "warning", advice)
    return Finding("kernels", kernels)


def check_bf16() -> Finding:
    """Checks for true bf16 units; `torch.cuda.is_bf16_supported()` includes emulation."""
    units = [f"{gpu.name}: {'yes' if gpu.capability >= (8, 0) else 'emulated only'}" for gpu in hardware.gpus()]
    trains = choose_precision("auto", torch.device("cuda", 0))
    return Finding("bf16", f"{', '.join(dict.fromkeys(units))}; precision auto trains in {trains}")


def check_driver() -> Finding:
    """Checks that NVML answers."""
    driver = hardware.driver()
    if driver is None:
        value = "NVML does not answer; free memory is read through PyTorch"
        has_package = importlib.util.find_spec("pynvml") is not None
        advice = "The container lacks libnvidia-ml.so.1." if has_package else "pip install nvidia-ml-py."
        return Finding("driver", value, "warning", f"{advice} Only gpu_use in metrics.csv is missing without it.")
    value = f"{driver.version}, for CUDA up to {hardware.dotted(driver.cuda)}; PyTorch has {torch.version.cuda}"
    return Finding("driver", value)


def check_gpu_memory(index: int) -> Finding:
    """Checks the free memory of a GPU, with what other processes use."""
    reading = memory.readings()[1 + index]
    value = f"{(reading.total - reading.used) / GIB:.2f} of {reading.total / GIB:.2f} GiB free"
    if reading.share <= 0.2:
        return Finding(f"GPU {index} memory", value)
    if torch.cuda.memory_reserved(index) > reading.used / 2:
        advice = f"This process has {reading.detail}. Call memory.clear_memory(), or restart this kernel."
    else:
        advice = f"This process has {reading.detail}. Restart other kernels, and end other programs that use the GPU."
    return Finding(f"GPU {index} memory", value, "bad" if reading.share > 0.9 else "warning", advice)


def check_ram() -> Finding:
    """Checks the free memory of the machine, or of the container."""
    ram = hardware.ram()
    of = "the container's" if ram.limited else "the machine's"
    value = f"{ram.available / GIB:.2f} of {of} {ram.total / GIB:.2f} GiB free"
    advice = "Close other notebooks and programs; when it is full the system kills the run."
    return Finding("RAM", value, *_short_of(ram.available, _RAM_BYTES, advice))


def _short_of(left: float, limits: tuple[float, float], advice: str) -> tuple[Verdict, str]:
    """Returns verdict and advice on bytes or seconds that are left: bad below the first limit, ok from the second."""
    least, comfortable = limits
    if left >= comfortable:
        return "ok", ""
    return "bad" if left < least else "warning", advice


def check_cpus(config: Config | None) -> Finding:
    """Checks that there are CPUs for the loader workers and threads that are configured."""
    usable, total = hardware.cpus(), os.cpu_count() or 1
    of = f" of the machine's {total}" if usable < total else ""
    value = f"{usable:g}{of}; PyTorch computes in {torch.get_num_threads()} threads"
    workers = config.data.num_workers if config else 0
    if workers > usable:
        advice = f"data.num_workers is {workers}. Write {max(0, int(usable) - 1)}: more workers wait for each other."
        return Finding("CPUs", value, "warning", advice)
    if torch.get_num_threads() > max(1.0, usable):
        return Finding("CPUs", value, "warning", f"Set OMP_NUM_THREADS to {max(1, int(usable))} before Python starts.")
    return Finding("CPUs", value)


def check_shm(config: Config | None) -> Finding:
    """Checks the shared memory through which loader workers pass batches."""
    workers = config.data.num_workers if config else None
    if sys.platform != "linux" or workers == 0:
        return Finding("/dev/shm", "not needed: " + ("data.num_workers is 0" if workers == 0 else "this is no Linux"))
    advice = "Set data.num_workers to 0, or give the container more (docker run --shm-size=2g)."
    if not _SHM.is_dir():
        value = "not there: loader workers cannot pass their batches"
        return Finding("/dev/shm", value, "bad" if workers else "warning", advice)
    free = shutil.disk_usage(_SHM).free
    advice = f"A batch that does not fit kills a loader worker. {advice}"
    return Finding("/dev/shm", f"{free / GIB:.2f} GiB free", *_short_of(free, _SHM_BYTES, advice))


def check_folder(name: str, folder: Path, limits: tuple[int, int]) -> Finding:
    """Checks that a folder, which need not exist yet, can be written to and has room; leaves nothing behind."""
    existing = next(path for path in (folder, *folder.absolute().parents) if disk.exists(path))
    if problem := unwritable(existing):
        advice = "Give another folder: " + (f"{environment.CACHE}." if name.startswith("scratch") else "output_dir.")
        return Finding(name, f"{folder} cannot be written to ({problem})", "bad", advice)
    free = shutil.disk_usage(existing).free
    advice = f"Delete files that you no longer need on the disk of {existing}."
    return Finding(name, f"{folder}, {amount(free)} free", *_short_of(free, limits, advice))


def unwritable(folder: Path) -> str:
    """Returns why a folder cannot be written to, or nothing; tries with a file that is gone when it is closed."""
    if not folder.is_dir():
        return f"{folder} is no folder"
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(64 * 1024))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def check_budget(here: Platform) -> Finding:
    """Checks how much of its limits on bytes and files the platform's output folder has left."""
    if here.output_bytes is None and here.output_files is None:
        return Finding("output budget", f"no limit of bytes or files ({here.name})")
    size, number = disk.held(here.output_dir)
    of_bytes = f" of {here.output_bytes / GB:.0f}" if here.output_bytes else ""
    of_files = f" of {here.output_files}" if here.output_files else ""
    value = f"{size / GB:.2f}{of_bytes} GB in {number:,}{of_files} files"
    full, many = size / (here.output_bytes or math.inf), number / (here.output_files or math.inf)
    if max(full, many) < 0.8:
        return Finding("output budget", value)
    verdict: Verdict = "bad" if full > 0.98 else "warning"  # the number of files is a soft limit
    return Finding("output budget", value, verdict, f"Delete or pack old files in {here.output_dir}.")


def check_internet(here: Platform) -> Finding:
    """Checks whether packages could be installed, without asking a host: training needs none.

    Only Kaggle has a switch; there its own name is looked up, which is not resolved while the switch is off.
    """
    if here.name == "kaggle":
        if hardware.resolves(str(FACTS["kaggle_host"].value), _INTERNET_SECONDS):
            return Finding("internet", "on")
        advice = "Nothing here needs it. To install packages, switch it on: Settings > Internet."
        return Finding("internet", "off", "ok", advice)
    if hardware.has_route():
        return Finding("internet", "there is a route; no host was contacted")
    return Finding(
        "internet", "no way out of this machine", "ok", "Nothing here needs it. Packages cannot be installed."
    )


def check_inputs(here: Platform, trains: bool = True) -> Finding:
    """Lists the names of the mounted inputs."""
    if here.input_dir is None:
        return Finding("inputs", "nothing is mounted here" + ("; data.dir names the data" if trains else ""))
    names = [str(path.relative_to(here.input_dir)) for path in inputs.mounted(here)]
    if not names and not trains:
        return Finding("inputs", "none, and none are needed here")
    if not names:
        return Finding("inputs", "none: the embedded data is trained on", "ok", "Add Input mounts data of your own.")
    return Finding("inputs", f"{len(names)}: {', '.join(names)}")


def check_session(config: Config | None, trains: bool = True) -> Finding:
    """Checks the time that is left, by the clock that ends the run."""
    options = config.session if config else Session()
    session = start_session(options.minutes, options.margin_seconds)
    left = session.remaining()
    if left == math.inf:
        return Finding("session", "no time limit")
    if not trains:
        return Finding("session", f"{duration(max(0.0, left))} left")
    value = f"{duration(max(0.0, left))} left; {options.margin_seconds:.0f} s of it are kept for the last save"
    advice = "Start a new session (restart the machine, not only the kernel); a run resumes where it stopped."
    return Finding("session", value, *_short_of(left, (options.margin_seconds, _SHORT_SESSION_SECONDS), advice))


def check_versions(config: Config | None = None) -> list[Finding]:
    """Checks Python and packages against the supported versions, and lists others that bug reports name.

    Those that a configuration's own task imports must be there too.
    """
    findings = [check_python(), *(check_package(*item) for item in dependencies.OLDEST.items())]
    file = file_of(config) if config else None
    needed = own_files(file).packages if file else ()
    projects = {name: dependencies.project_of(name) or name for name in needed}
    findings += [check_own(*item) for item in projects.items() if item[1] not in dependencies.OLDEST]
    for project in (one for one in ("torchvision", "IPython") if one not in projects.values()):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            findings.append(Finding(project, f"{importlib.metadata.version(project)} (not needed)"))
    return findings


def check_own(name: str, project: str) -> Finding:
    """Checks that a package which the task imports as `name` is there, without importing it."""
    if importlib.util.find_spec(name) is None:
        bound = dependencies.project_of(name) == ""
        advice = "Install it beside PyTorch by the steps on pytorch.org." if bound else f"pip install '{project}'."
        return Finding(project, f"missing, and the task imports {name}", "bad", advice)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return Finding(project, f"{importlib.metadata.version(project)} (the task imports it)")
    return Finding(project, "there (the task imports it)")


def check_python() -> Finding:
    """Checks the version of Python."""
    oldest, newest = dependencies.PYTHON
    supported = f"{hardware.dotted(oldest)} to {hardware.dotted(newest)}"
    value = f"{hardware.dotted(sys.version_info[:3])} (supported: {supported})"
    if oldest <= sys.version_info[:2] <= newest:
        return Finding("Python", value)
    verdict: Verdict = "bad" if sys.version_info[:2] < oldest else "warning"
    return Finding("Python", value, verdict, f"Install Python {hardware.dotted(newest)}; this one was not tested.")


def check_package(project: str, oldest: str) -> Finding:
    """Checks an installed version by its metadata, without importing the package."""
    supported = f"(supported: {oldest} and later)"
    install = f"pip install '{project}>={oldest}'."
    try:
        version = importlib.metadata.version(project)
    except importlib.metadata.PackageNotFoundError:
        verdict: Verdict = "bad" if project in dependencies.PACKAGES.values() else "warning"
        return Finding(project, f"missing {supported}", verdict, install)
    if project == "torch":  # never by pip: that would replace the platform's CUDA build
        install = "Choose a newer image, or install it by the steps on pytorch.org."
        supported = f"{f'with CUDA {torch.version.cuda}' if torch.version.cuda else 'without CUDA'} {supported}"
    if _parts(version) >= _parts(oldest):
        return Finding(project, f"{version} {supported}")
    return Finding(project, f"{version} {supported}", "warning", f"It is older than any tested version. {install}")


def _parts(version: str) -> tuple[int, ...]:
    """Returns the numbers that a version starts with: (2, 13, 0) of 2.13.0+cpu."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))
