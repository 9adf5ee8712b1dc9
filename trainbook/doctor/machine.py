"""Checks machine, platform and versions; runs no kernel, contacts no host, prints no value of the environment."""

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

from lib.config import Config, Session
from lib.machine import disk, hardware, platform
from lib.machine.facts import GB
from lib.machine.memory import GIB
from lib.machine.platform import Platform
from lib.report.findings import Finding, Verdict, run_check
from lib.task.files import file_of, own_files
from lib.text import amount, duration
from lib.training.session import start_session
from trainbook import dependencies

# Own choices. Below the first number a run is bound to fail, below the second it may.
_RAM_BYTES = (1 * GIB, 4 * GIB)
# GraphMER's checkpoint has 1.1 GB, and two are there while one is replaced
_OUTPUT_BYTES = (GB // 2, 5 * GB)
_SHORT_SESSION_SECONDS = 3600.0
_BESIDE_TORCH = "by the steps on pytorch.org."


def check_machine(config: Config | None = None) -> list[Finding]:
    """Checks any machine without running a kernel."""
    here = platform.detect()
    output = platform.output_dir(config.output_dir) if config else here.output_dir
    checks: dict[str, Callable[[], Finding]] = {"GPU": partial(check_gpu, here)}
    if torch.cuda.is_available():
        checks["kernels"] = check_kernels
    checks["RAM"] = check_ram
    checks["output folder"] = partial(check_folder, output)
    checks["session"] = partial(check_session, config)
    name = f"{here.name} (batch run)" if here.batch else here.name
    limit = "no session limit"
    if here.session_minutes:
        limit = f"{here.session_minutes:.0f} minutes a session"
    about = Finding("platform", f"{name}, {limit}")
    return [about, *(run_check(name, check) for name, check in checks.items())]


def check_gpu(here: Platform) -> Finding:
    """Checks which GPUs torch can use, or why torch sees none of the driver's."""
    counts = Counter(map(str, hardware.gpus()))
    if counts:
        return Finding("GPU", ", ".join(f"{number} x {gpu}" for gpu, number in counts.items()))
    driver = hardware.driver()
    if not (driver and driver.names):
        return Finding("GPU", "none: training runs on the CPU", "warning", here.gpu_advice)
    value = f"the driver sees {', '.join(driver.names)}, PyTorch cannot use it"
    is_chosen = torch.version.cuda is None or "CUDA_VISIBLE_DEVICES" in os.environ
    advice = (
        f"PyTorch {torch.__version__} is built for CUDA {torch.version.cuda}, and driver {driver.version} runs CUDA "
        f"up to {hardware.dotted(driver.cuda)}. Unset CUDA_VISIBLE_DEVICES, or install a newer driver or another "
        f"build {_BESIDE_TORCH}"
    )
    return Finding("GPU", value, "warning" if is_chosen else "bad", advice)


def check_kernels() -> Finding:
    """Checks by name whether this build of torch has kernels for each GPU, before the first one would fail."""
    built = torch.cuda.get_arch_list()
    names = re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(built))
    for gpu in hardware.gpus():
        major, minor = gpu.capability
        # Machine code (sm) runs on the same major capability and later minors, PTX (compute) on any later one
        usable = [
            (int(first), int(second))
            for kind, first, second in names
            if kind == "compute" or int(first) == major
        ]
        if not usable or min(usable) > (major, minor):
            advice = (
                "The first kernel would fail with 'no kernel image is available'. On Kaggle choose "
                "Settings > Accelerator > GPU T4 x2; elsewhere install a PyTorch build whose "
                f"torch.cuda.get_arch_list() names sm_{major}{minor}."
            )
            value = f"none for {gpu}: PyTorch {torch.__version__} has {', '.join(built) or 'none'}"
            return Finding("kernels", value, "bad", advice)
    return Finding("kernels", f"PyTorch {torch.__version__} has some for each GPU")


def _judge(left: float, limits: tuple[float, float], advice: str) -> tuple[Verdict, str]:
    """Judges a remaining amount: bad below the first limit, ok from the second."""
    if left >= limits[1]:
        return "ok", ""
    return "bad" if left < limits[0] else "warning", advice


def check_ram() -> Finding:
    ram = hardware.ram()
    owner = "the container's" if ram.limited else "the machine's"
    free = ram.available / GIB
    total = ram.total / GIB
    value = f"{free:.2f} of {owner} {total:.2f} GiB free"
    advice = "Close other notebooks and programs; when it is full the system kills the run."
    return Finding("RAM", value, *_judge(ram.available, _RAM_BYTES, advice))


def check_folder(folder: Path) -> Finding:
    """Checks that a folder, which need not exist yet, can be written to and has room; leaves nothing behind."""
    places = (folder, *folder.absolute().parents)
    existing = next(path for path in places if disk.exists(path))
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(bytes(64 * 1024))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        value = f"{folder} cannot be written to ({error.strerror or error})"
        return Finding("output folder", value, "bad", "Give another folder: output_dir.")
    free = shutil.disk_usage(existing).free
    advice = f"Delete files that you no longer need on the disk of {existing}."
    verdict, advice = _judge(free, _OUTPUT_BYTES, advice)
    return Finding("output folder", f"{folder}, {amount(free)} free", verdict, advice)


def check_session(config: Config | None) -> Finding:
    options = config.session if config else Session()
    left = start_session(options.minutes, options.margin_seconds).remaining()
    if left == math.inf:
        return Finding("session", "no time limit")
    value = f"{duration(max(0.0, left))} left; {options.margin_seconds:.0f} s of it are kept for the last save"
    advice = "Start a new session (restart the machine, not only the kernel); a run resumes where it stopped."
    limits = (options.margin_seconds, _SHORT_SESSION_SECONDS)
    return Finding("session", value, *_judge(left, limits, advice))


def check_versions(config: Config | None = None) -> list[Finding]:
    """Checks Python and packages against the supported versions, and that the task's own packages are installed."""
    findings = [check_package(*item) for item in dependencies.OLDEST.items()]
    oldest, newest = dependencies.PYTHON
    here = sys.version_info[:2]
    if not oldest <= here <= newest:
        supported = f"{hardware.dotted(oldest)} to {hardware.dotted(newest)}"
        value = f"{hardware.dotted(here)} (supported: {supported})"
        advice = f"Install Python {hardware.dotted(newest)}."
        findings.append(Finding("Python", value, "bad" if here < oldest else "warning", advice))
    file = file_of(config.task) if config else None
    for name in own_files(file).packages if file else ():
        project = dependencies.project_of(name)
        if project not in dependencies.OLDEST and importlib.util.find_spec(name) is None:
            advice = f"pip install '{project}'." if project else f"Install it {_BESIDE_TORCH}"
            value = f"missing, and the task imports {name}"
            findings.append(Finding(project or name, value, "bad", advice))
    versions = [f"Python {hardware.dotted(sys.version_info[:3])}"]
    versions += [f"{each.name} {each.value}" for each in findings if each.verdict == "ok"]
    troubles = [each for each in findings if each.verdict != "ok"]
    return [Finding("versions", ", ".join(versions)), *troubles]


def check_package(project: str, oldest: str) -> Finding:
    """Checks an installed version by its metadata, without importing the package."""
    # torch never by pip: that would replace the platform's CUDA build
    if project == "torch":
        install = f"Choose a newer image, or install it {_BESIDE_TORCH}"
    else:
        install = f"pip install '{project}>={oldest}'."
    try:
        version = importlib.metadata.version(project)
    except importlib.metadata.PackageNotFoundError:
        verdict: Verdict = "bad" if project in dependencies.PACKAGES.values() else "warning"
        return Finding(project, f"missing (supported: {oldest} and later)", verdict, install)
    if _numbers(version) >= _numbers(oldest):
        return Finding(project, version)
    return Finding(project, f"{version} (supported: {oldest} and later)", "warning", install)


def _numbers(version: str) -> tuple[int, ...]:
    """Returns (2, 13, 0) for 2.13.0+cpu."""
    release = re.split(r"[^\d.]", version)[0]
    return tuple(map(int, re.findall(r"\d+", release)))
