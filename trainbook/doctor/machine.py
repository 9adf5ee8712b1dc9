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
_OUTPUT_BYTES = (
    GB // 2,
    5 * GB,
)  # GraphMER's checkpoint has 1.1 GB, and two are there while one is replaced
_SHORT_SESSION_SECONDS = 3600.0
_BESIDE_TORCH = "by the steps on pytorch.org."


def check_machine(config: Config | None = None) -> list[Finding]:
    """Checks any machine without running a kernel."""
    here = platform.detect()
    output = platform.output_dir(config.output_dir) if config else here.output_dir
    checks: dict[str, Callable[[], Finding]] = {
        "GPU": partial(check_gpu, here),
        **({"kernels": check_kernels} if torch.cuda.is_available() else {}),
        "RAM": check_ram,
        "output folder": partial(check_folder, output),
        "session": partial(check_session, config),
    }
    limit = (
        f"{here.session_minutes:.0f} minutes a session"
        if here.session_minutes
        else "no session limit"
    )
    about = Finding("platform", f"{here.name}{' (batch run)' if here.batch else ''}, {limit}")
    return [about, *(run_check(name, check) for name, check in checks.items())]


def check_gpu(here: Platform) -> Finding:
    """Checks which GPUs torch can use, or why it can use none although the driver sees some."""
    if gpus := hardware.gpus():
        counts = Counter(map(str, gpus))
        return Finding("GPU", ", ".join(f"{number} x {gpu}" for gpu, number in counts.items()))
    driver = hardware.driver()
    if not (driver and driver.names):
        return Finding("GPU", "none: training runs on the CPU", "warning", here.gpu_advice)
    value = f"the driver sees {', '.join(driver.names)}, PyTorch cannot use it"
    is_chosen = torch.version.cuda is None or "CUDA_VISIBLE_DEVICES" in os.environ
    runs = f"driver {driver.version} runs CUDA up to {hardware.dotted(driver.cuda)}"
    what = f"PyTorch {torch.__version__} is built for CUDA {torch.version.cuda}, and {runs}"
    advice = f"{what}. Unset CUDA_VISIBLE_DEVICES, or install a newer driver or another build {_BESIDE_TORCH}"
    return Finding("GPU", value, "warning" if is_chosen else "bad", advice)


def check_kernels() -> Finding:
    """Checks by name whether this build of torch has kernels for each GPU, before the first one would fail."""
    built = torch.cuda.get_arch_list()
    names = re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(built))
    versions = [(kind, (int(major), int(minor))) for kind, major, minor in names]
    for gpu in hardware.gpus():
        # machine code (sm) runs on its own major capability upwards, PTX (compute) on any later one
        same = ((kind, v) for kind, v in versions if v[0] == gpu.capability[0] or kind == "compute")
        if not any(version <= gpu.capability for _, version in same):
            build = f"a PyTorch build whose torch.cuda.get_arch_list() names sm_{gpu.capability[0]}{gpu.capability[1]}"
            what = "The first kernel would fail with 'no kernel image is available'"
            advice = f"{what}. On Kaggle choose Settings > Accelerator > GPU T4 x2; elsewhere install {build}."
            value = f"none for {gpu}: PyTorch {torch.__version__} has {', '.join(built) or 'none'}"
            return Finding("kernels", value, "bad", advice)
    return Finding("kernels", f"PyTorch {torch.__version__} has some for each GPU")


def _judge(left: float, limits: tuple[float, float], advice: str) -> tuple[Verdict, str]:
    """Returns verdict and advice on what is left of something: bad below the first limit, ok from the second."""
    if left >= limits[1]:
        return "ok", ""
    return "bad" if left < limits[0] else "warning", advice


def check_ram() -> Finding:
    ram = hardware.ram()
    of = "the container's" if ram.limited else "the machine's"
    value = f"{ram.available / GIB:.2f} of {of} {ram.total / GIB:.2f} GiB free"
    advice = "Close other notebooks and programs; when it is full the system kills the run."
    return Finding("RAM", value, *_judge(ram.available, _RAM_BYTES, advice))


def check_folder(folder: Path) -> Finding:
    """Checks that a folder, which need not exist yet, can be written to and has room; leaves nothing behind."""
    existing = next(path for path in (folder, *folder.absolute().parents) if disk.exists(path))
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
    return Finding(
        "output folder", f"{folder}, {amount(free)} free", *_judge(free, _OUTPUT_BYTES, advice)
    )


def check_session(config: Config | None) -> Finding:
    options = config.session if config else Session()
    left = start_session(options.minutes, options.margin_seconds).remaining()
    if left == math.inf:
        return Finding("session", "no time limit")
    value = f"{duration(max(0.0, left))} left; {options.margin_seconds:.0f} s of it are kept for the last save"
    advice = "Start a new session (restart the machine, not only the kernel); a run resumes where it stopped."
    return Finding(
        "session", value, *_judge(left, (options.margin_seconds, _SHORT_SESSION_SECONDS), advice)
    )


def check_versions(config: Config | None = None) -> list[Finding]:
    """Checks Python and packages against the supported versions, and that those of the user's task are installed."""
    (oldest, newest), here = dependencies.PYTHON, sys.version_info[:2]
    findings = [check_package(*item) for item in dependencies.OLDEST.items()]
    if not oldest <= here <= newest:
        value = f"{hardware.dotted(here)} (supported: {hardware.dotted(oldest)} to {hardware.dotted(newest)})"
        advice = f"Install Python {hardware.dotted(newest)}."
        findings.append(Finding("Python", value, "bad" if here < oldest else "warning", advice))
    file = file_of(config.task) if config else None
    for name in own_files(file).packages if file else ():
        project = dependencies.project_of(name)
        if project not in dependencies.OLDEST and importlib.util.find_spec(name) is None:
            advice = f"pip install '{project}'." if project else f"Install it {_BESIDE_TORCH}"
            findings.append(
                Finding(project or name, f"missing, and the task imports {name}", "bad", advice)
            )
    supported = ", ".join(
        f"{finding.name} {finding.value}" for finding in findings if finding.verdict == "ok"
    )
    python = hardware.dotted(sys.version_info[:3])
    return [
        Finding("versions", f"Python {python}, {supported}"),
        *(f for f in findings if f.verdict != "ok"),
    ]


def check_package(project: str, oldest: str) -> Finding:
    """Checks an installed version by its metadata, without importing the package."""
    # torch never by pip: that would replace the platform's CUDA build
    image = f"Choose a newer image, or install it {_BESIDE_TORCH}"
    install = image if project == "torch" else f"pip install '{project}>={oldest}'."
    try:
        version = importlib.metadata.version(project)
    except importlib.metadata.PackageNotFoundError:
        verdict: Verdict = "bad" if project in dependencies.PACKAGES.values() else "warning"
        return Finding(project, f"missing (supported: {oldest} and later)", verdict, install)
    built, wanted = (
        tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", text)[0]))
        for text in (version, oldest)
    )  # (2, 13, 0) of 2.13.0+cpu
    if built >= wanted:
        return Finding(project, version)
    return Finding(project, f"{version} (supported: {oldest} and later)", "warning", install)
